"""Retention, whatever keeps the data: how much a batch looks at and removes, what it has found, and where it is.

What may go is looked for beside whoever writes, and removed in small writes like any other. A place says how far that
has come: jobs first, then records, then loose events, each in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.core.job import JobId, Tenant
from holdfast.core.record import Kind
from holdfast.core.retention import Limits

T = TypeVar("T")

LOOK_MAX = 1000
"""Jobs, records or events that one batch looks at, beside the writer."""
FAMILIES_MAX = 50
RUNS_MAX = 10
"""That one batch removes from a server: each takes several questions."""
EVENTS_MAX = 1000
"""That one batch removes: a few milliseconds, between which others have their turn."""
RECORDS = 2**62
"""From here on, places are of records; those of jobs are below."""
LOOSE = RECORDS + 2**61
"""From here on, places are of events that are neither of a job nor of a run."""


class Origin(NamedTuple):
    """A job that is nobody's replay: it stands for its family."""

    seq: int
    id: JobId


class Ended(NamedTuple):
    """A run, or a post."""

    seq: int
    kind: Kind
    tenant: Tenant
    id: str

    @property
    def place(self) -> tuple[str, str, str]:
        return (self.kind.value, self.tenant, self.id)


class Loose(NamedTuple):
    number: int
    tenant: Tenant


class Found(NamedTuple, Generic[T]):
    going: list[T]
    after: int | None
    """As in `Pruned`, if all of them go."""


class Spent(NamedTuple):
    """What it took to remove a run, or a part of it."""

    jobs: int
    rows: int
    """Events and records."""
    is_gone: bool


def loose_among(rows: Sequence[Any], limits: Limits) -> Found[Loose]:
    """Of up to `LOOK_MAX` events, oldest first, those that nothing takes with it: (number, tenant, what it is of or '', when,
    whether it is the newest of all, which stays)."""
    found: list[Loose] = []
    for number, tenant, of, at, is_newest in rows:
        if at >= limits.ended_before or is_newest:
            return Found(found, None)  # from here on they are all too young
        if not of:
            found.append(Loose(number, tenant))
    return Found(found, LOOSE + rows[-1][0] if len(rows) == LOOK_MAX else None)
