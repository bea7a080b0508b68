"""How fast the locks are, measured against other libraries: `make bench`."""
