"""Jobs in Redis or Valkey. Begin with `store.py`, then `keys.py`."""
