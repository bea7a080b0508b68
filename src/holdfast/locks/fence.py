"""Fences: integers that only grow, and the marks a resource keeps of them. Pure."""

from __future__ import annotations

from typing import NamedTuple


def next_fence(last: int, clock_us: int) -> int:
    """The fence of the next grant.

    The counter alone goes backwards when a failover or a restore loses the last increments; the
    clock alone goes backwards when it is set. The larger of both grows as long as no clock that
    issued a fence was ahead by more than the time between the last grant that was lost and the next.
    """
    return max(last + 1, clock_us)


class Mark(NamedTuple):
    """The highest (fence, seq) a resource has accepted. Tuples compare in the order we need."""

    fence: int
    seq: int


NO_MARK = Mark(0, 0)


class Ruling(NamedTuple):
    accepted: bool
    repeated: bool


def rule(current: Mark, offered: Mark, *, once_per_fence: bool = False) -> Ruling:
    """What a resource answers to an operation that carries `offered`.

    A strict `fence > current` would refuse the holder's own second write, so the sequence
    decides within a fence. Equality is the same operation again: its reply was lost.
    """
    if offered == current:
        return Ruling(accepted=True, repeated=True)
    if once_per_fence:
        return Ruling(accepted=offered.fence > current.fence, repeated=False)
    return Ruling(accepted=offered > current, repeated=False)
