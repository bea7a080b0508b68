"""Locks in a SQLite file. Begin with `store.py`."""
