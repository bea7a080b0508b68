"""Sessions of runs, done wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.run import Run
from holdfast.core.run_result import About, CancelWish
from holdfast.core.run_session import RunSession, Seat
from holdfast.errors import SessionBusy
from holdfast.flow.give import transact
from holdfast.flow.run_draft import RunDraft
from holdfast.flow.run_session import Arrival, enter_session, find_session
from holdfast.flow.run_tools import Tools
from holdfast.flow.runs import Runs
from holdfast.flow.session import SessionPolicy
from holdfast.ports import RecordChange, Store, Transaction
from simulation.governed_mutants import ignoring
from simulation.mutant import Mutant

# -- those who go ----------------------------------------------------------------------------------------


async def _leave_silently(self: RunDraft, run: Run) -> None:
    """The seat is free, and nobody is told."""
    session = await find_session(run.tenant, run.session, store=self._tools.store)
    self.change(RecordChange(after=session.left(run), replaces=session.version))


def _keep_the_seat(self: RunSession, run: Run) -> Record:
    return self._record(self.seats, run)


def _turn_of_whoever_is_behind(self: RunSession, run: Run) -> Seat | None:
    """Though the run that ends may not have begun."""
    names = [seat.run for seat in self.seats]
    return dict(zip(names, self.seats[1:], strict=False)).get(run.id)


def _apart(is_later: Callable[[RecordChange], bool]) -> Callable[..., Any]:
    """What belongs to the start or the end of a run is written when that is certain, in a commit of its own."""

    async def transact_apart(self: Tools, transactions: Sequence[Transaction]) -> list[bool]:
        first = [
            replace(one, records=[change for change in one.records if not is_later(change)]) for one in transactions
        ]
        written = await transact(first, store=self.store, giver=self.giver)
        done = [one for one, ok in zip(transactions, written, strict=True) if ok]
        later = [Transaction(records=[change]) for one in done for change in one.records if is_later(change)]
        if later:
            await self.store.transact(later)
        return written

    return transact_apart


def _is_turn(change: RecordChange) -> bool:
    return change.after.state == About.TURN and not change.remove


def _is_seat(change: RecordChange) -> bool:
    return change.after.kind is Kind.SESSION


# -- those who come --------------------------------------------------------------------------------------


class _Line(tuple[Seat, ...]):
    __slots__ = ()

    def __bool__(self) -> bool:
        return not all(seat.stopping for seat in self)


async def _wait_for_no_one_who_stops(tenant: Tenant, name: str, policy: SessionPolicy, *, store: Store) -> Arrival:
    arrival = await enter_session(tenant, name, policy, store=store)
    return arrival._replace(session=arrival.session._replace(seats=_Line(arrival.session.seats)))


async def _stop_the_first_alone(tenant: Tenant, name: str, policy: SessionPolicy, *, store: Store) -> Arrival:
    """Those that wait behind it have done nothing yet."""
    session, stops = await enter_session(tenant, name, policy, store=store)
    first, forgotten = stops[:1], stops[1:]
    names = [seat.run for seat in forgotten]
    seats = tuple(replace(seat, stopping=False) if seat.run in names else seat for seat in session.seats)
    return Arrival(session._replace(seats=seats), first)


async def _look_at_the_first_alone(tenant: Tenant, name: str, policy: SessionPolicy, *, store: Store) -> Arrival:
    """A session is as busy as the run at its head."""
    try:
        return await enter_session(tenant, name, policy, store=store)
    except SessionBusy as busy:
        session = await find_session(tenant, name, store=store)
        if not session.seats or session.seats[0].run in str(busy):
            raise
        return Arrival(session, ())


def _stop_without_undoing(self: RunDraft, seat: Seat, *, by: str, compensate: bool) -> None:
    _stop(self, seat, by=by, compensate=False)


def _stop_whichever_it_is(self: RunDraft, seat: Seat, *, by: str, compensate: bool) -> None:
    """Also if it has ended, and was run again."""
    wish = CancelWish(by, "", compensate)
    self._leave(seat.run, f"{seat.run}.cancel.{seat.generation}", About.CANCEL, wish)


async def _keep_the_key(self: Runs, applicant: Any) -> Any:
    """The key is taken before anybody looks into the session."""
    try:
        return await _draft(self, applicant)
    except SessionBusy:
        order, new = applicant.order, applicant.new
        key = Record(kind=Kind.KEY, tenant=order.tenant, id=order.key, parent=new.id, created_at=0.0, body=b'""')
        await self._store.transact([Transaction(records=[RecordChange(after=key, replaces=0)])])
        raise


async def _may_always_begin(run: Run, *, store: Store) -> bool:
    return True


_draft, _stop = Runs._draft, RunDraft.stop
_TRANSACT = "holdfast.flow.run_tools.Tools.attempt"
_ENTER = "holdfast.flow.runs.enter_session"
_SESSION = "holdfast.core.run_session.RunSession"

MUTANTS = (
    Mutant("end a run and tell nobody", "S4", {"holdfast.flow.run_draft.RunDraft._leave_session": _leave_silently}),
    Mutant("tell the next run in a commit of its own", "S4", {_TRANSACT: _apart(_is_turn)}),
    Mutant("keep the seat of a run that has ended", "S4", {f"{_SESSION}.left": _keep_the_seat}),
    Mutant("give the turn to whoever is behind the one that ends", "S3", {f"{_SESSION}.next_after": _turn_of_whoever_is_behind}),
    Mutant("take a seat without looking at the version", "S3", {"holdfast.stores.transactions.may_change_records": ignoring(Kind.SESSION)}),
    Mutant("take a seat in a commit of its own", "S3", {_TRANSACT: _apart(_is_seat)}),
    Mutant("begin beside runs that were told to stop", "S3", {_ENTER: _wait_for_no_one_who_stops}),
    Mutant("begin a run that has waited for long", "S3", {"holdfast.flow.recover_runs.may_begin": _may_always_begin}),
    Mutant("interrupt the run at work and forget those that wait", "S4", {_ENTER: _stop_the_first_alone}),
    Mutant("reject by the first run of the session alone", "S4", {_ENTER: _look_at_the_first_alone}),
    Mutant("roll back and undo nothing", "S4", {"holdfast.flow.run_draft.RunDraft.stop": _stop_without_undoing}),
    Mutant("stop a run that was run again since", "S4", {"holdfast.flow.run_draft.RunDraft.stop": _stop_whichever_it_is}),
    Mutant("keep the key of a run that is turned away", "S4", {"holdfast.flow.runs.Runs._draft": _keep_the_key}),
)  # fmt: skip
