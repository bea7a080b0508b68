"""The runs of a session that have not ended, in the order they came. The first is at work, the others wait.

They are one record, which whoever comes or goes compares and sets, in the transaction that starts or ends
the run: of two at the same moment one is first, and the other sees it. So nobody is forgotten, and nobody
begins beside another. It is as long as the tenant may have runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.run import Run


class Seat(msgspec.Struct, frozen=True, omit_defaults=True):
    run: str
    generation: int = 0
    """Of the run. One that is run again has a new seat, behind all others."""
    stopping: bool = False
    """A newer one has told it to stop. The session is not busy with it, but waits until it has stopped."""


class RunSession(NamedTuple):
    tenant: Tenant
    name: str
    version: int
    """Of the record; 0: there is none."""
    seats: tuple[Seat, ...]

    def ahead_of(self, run: Run) -> tuple[Seat, ...]:
        """Those that must have ended before it begins. None, if it has no seat: nobody would ever tell it to."""
        names = [seat.run for seat in self.seats]
        return self.seats[: names.index(run.id)] if run.id in names else ()

    def next_after(self, run: Run) -> Seat | None:
        """Whose turn it is when the run ends; None: nobody's, or somebody else's end decides that."""
        is_first = bool(self.seats) and self.seats[0].run == run.id
        return self.seats[1] if is_first and len(self.seats) > 1 else None

    def stopped(self, told: Collection[Seat]) -> RunSession:
        """With these told to stop."""
        return self._replace(seats=tuple(replace(seat, stopping=True) if seat in told else seat for seat in self.seats))

    def joined(self, run: Run) -> Record:
        """With the run behind the others, unless it has ended already."""
        mine = () if run.is_terminal else (Seat(run.id, run.generation),)
        return self._record((*self.seats, *mine), run)

    def left(self, run: Run) -> Record:
        return self._record([seat for seat in self.seats if seat.run != run.id], run)

    def _record(self, seats: Sequence[Seat], run: Run) -> Record:
        return Record(
            kind=Kind.SESSION,
            tenant=self.tenant,
            id=self.name,
            version=self.version + 1,
            # Retention takes it with its parent: with one that has not ended, that is not before its time. It is not
            # removed when it is empty, for a new one would begin with a version that somebody may have read before.
            parent=seats[-1].run if seats else run.id,
            created_at=run.created_at,
            body=msgspec.json.encode(seats),
        )


def session_of(tenant: Tenant, name: str, record: Record | None) -> RunSession:
    if record is None:
        return RunSession(tenant, name, 0, ())
    return RunSession(tenant, name, record.version, msgspec.json.decode(record.body, type=tuple[Seat, ...]))


def has_seat(run: Run) -> bool:
    """Whether a run that has not ended is one of its session's line. A run within a run goes with that, and would wait
    for it for ever; run again by itself, it is on its own."""
    return bool(run.session) and (not run.parent_run or run.generation > 0)
