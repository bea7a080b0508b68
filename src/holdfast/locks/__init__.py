"""Leases, fences and fenced writes. A library with no server; imports nothing else of Holdfast."""
