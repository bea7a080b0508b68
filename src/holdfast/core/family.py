"""Names, and families of names: `mail.*` is every name that begins with `mail.`, and `*` is every name."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def fits(name: str, *wanted: str) -> bool:
    """Whether the name is one of those wanted, or of a family that is."""
    if name in wanted:
        return True
    return any(one[-1:] == "*" and name.startswith(one[:-1]) for one in wanted)
