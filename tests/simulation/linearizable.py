"""Is there an order that explains every answer? The search of Wing and Gong, with Lowe's memory of where it has been.

Each operation takes effect at one moment between being asked and being answered. One that was never
answered may take effect at any moment after it was asked, up to the end, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

TRIES_MAX = 100_000
"""A history that needs more is not decided. None of ours comes near it."""


@dataclass(frozen=True)
class Operation:
    what: str
    asked: int
    answered: int | None
    """None: never. Both count events of the whole history, so that no two are at the same moment."""
    steps: Callable[[Any], Iterable[Hashable]]
    """From the state before it to each state that can follow; none if it could not be answered so."""


def find_contradiction(operations: Sequence[Operation], start: Hashable) -> list[str] | None:
    """None if some order explains every answer; else as much of one as there is, and what does not fit behind it."""
    answered = sum(1 << n for n, operation in enumerate(operations) if operation.answered is not None)
    furthest: tuple[int, tuple[int, ...]] = (-1, ())
    been: set[tuple[int, Hashable]] = set()
    waiting: list[tuple[int, Hashable, tuple[int, ...]]] = [(0, start, ())]
    for _ in range(TRIES_MAX):
        if not waiting:
            return _explain(operations, furthest[1])
        done, state, order = waiting.pop()
        if done & answered == answered:
            return None
        if (done, state) in been:
            continue
        been.add((done, state))
        furthest = max(furthest, ((done & answered).bit_count(), order))
        for n in _possible(operations, done):
            # What was never answered and would change nothing need not have happened.
            idle = state if operations[n].answered is None else None
            waiting += [(done | 1 << n, after, (*order, n)) for after in operations[n].steps(state) if after != idle]
    raise AssertionError(f"a history of {len(operations)} operations was not decided")


def _possible(operations: Sequence[Operation], done: int) -> list[int]:
    """What may come next: nothing that was asked only after the answer to something that has not happened yet.
    Those that were never answered come first here, so that they are tried last."""
    open_ = [n for n in range(len(operations)) if not done >> n & 1]
    first_answer = min((a for n in open_ if (a := operations[n].answered) is not None), default=None)
    possible = [n for n in open_ if first_answer is None or operations[n].asked < first_answer]
    return sorted(possible, key=lambda n: (operations[n].answered is not None, -operations[n].asked))


def _explain(operations: Sequence[Operation], order: Sequence[int]) -> list[str]:
    done = sum(1 << n for n in order)
    told = [operations[n].what for n in order]
    return [*told, *(f"and then not: {operations[n].what}" for n in _possible(operations, done))]
