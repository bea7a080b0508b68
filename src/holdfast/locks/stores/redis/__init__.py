"""Locks in Redis or Valkey. Begin with `store.py`, then `locks.lua`."""
