"""Names, and families of names: `mail.*` is every name that begins with `mail.`, and `*` is every name."""

from __future__ import annotations


def fits(name: str, *wanted: str) -> bool:
    """Whether the name is one of those wanted, or of a family that is."""
    if name in wanted:
        return True
    # No generator: it is asked of every job and every worker.
    for one in wanted:  # noqa: SIM110
        if one[-1:] == "*" and name.startswith(one[:-1]):
            return True
    return False
