"""Locks in Postgres. Begin with `store.py`, then `locks.sql`."""
