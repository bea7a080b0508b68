"""HTTP: one table of routes (`routes.py`), one file per resource, errors as RFC 9457 (`problems.py`)."""
