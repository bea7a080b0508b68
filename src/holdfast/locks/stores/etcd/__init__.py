"""Locks in etcd. Begin with `store.py`."""
