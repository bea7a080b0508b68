"""Jobs in Postgres. Begin with `store.py`, then `database.py`."""
