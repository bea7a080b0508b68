"""What carries deliveries to workers. The store is the truth; a bus is a wake-up."""
