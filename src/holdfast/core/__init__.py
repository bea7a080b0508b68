"""What is decided. Pure: no await, no clock, no I/O; the same input gives the same answer."""
