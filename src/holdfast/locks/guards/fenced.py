"""What a guard needs of a lease."""

from __future__ import annotations

from typing import Protocol


class Fenced(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def fence(self) -> int: ...

    def next_seq(self) -> int:
        """The next number of this lease's operations, starting at 1."""

    @property
    def numbered(self) -> bool:
        """Whether `next_seq` was ever called."""

    def fence_refused(self, resource: str) -> None:
        """Told when the resource refused this lease's fence, for whoever counts that."""

    def check(self) -> None:
        """Raise `LeaseLost` if the trust window has ended: no guarded operation starts after it."""


def require_fence(lease: Fenced, resource: str) -> None:
    """Raise `ValueError` if there is nothing that the resource could check, or no name that all of them can keep."""
    if lease.fence <= 0:
        raise ValueError(f"a lease without a fence cannot guard {resource!r}: {lease.key!r} is held locally only")
    if not resource:
        raise ValueError("a guarded resource needs a name")
    if "\0" in resource:
        raise ValueError(f"the name of a guarded resource cannot contain NUL: {resource!r}")  # Postgres cannot keep it
