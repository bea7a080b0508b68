"""Deliveries on NATS JetStream. Begin with `bus.py`."""
