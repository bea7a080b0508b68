"""Run session: what a new run does about those of its session that have not ended."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.job import Tenant
from holdfast.core.record import Kind
from holdfast.core.run import Run, RunState, run_of
from holdfast.core.run_session import RunSession, Seat, session_of
from holdfast.errors import SessionBusy
from holdfast.flow.session import SessionPolicy
from holdfast.ports import Store

_BUSY = (RunState.QUEUED, RunState.RUNNING, RunState.PAUSED)
"""One that was told to stop, and has not stopped yet, does not make its session busy."""


class Arrival(NamedTuple):
    session: RunSession
    """With those marked that are to stop."""
    stops: tuple[Seat, ...]
    """Those that are to be told to stop, in the transaction that starts the new one."""


async def find_session(tenant: Tenant, name: str, *, store: Store) -> RunSession:
    [record] = await store.find_records(Kind.SESSION, tenant, [name])
    return session_of(tenant, name, record)


async def enter_session(tenant: Tenant, name: str, policy: SessionPolicy, *, store: Store) -> Arrival:
    """What a new run finds there, and does about it. Raises `SessionBusy`, naming a run."""
    session = await find_session(tenant, name, store=store)
    if policy is SessionPolicy.ENQUEUE or not session.seats:
        return Arrival(session, ())
    untold = [seat for seat in session.seats if not seat.stopping]
    found = await store.find_records(Kind.RUN, tenant, [seat.run for seat in untold])
    live = tuple(seat for seat, one in zip(untold, found, strict=True) if one is not None and one.state in _BUSY)
    if policy is SessionPolicy.REJECT:
        if live:
            raise SessionBusy(name, run_id=live[0].run)
        return Arrival(session, ())
    return Arrival(session.stopped(live), live)


async def may_begin(run: Run, *, store: Store) -> bool:
    """Whether all that were ahead of it have ended, or are gone. Nobody comes to be ahead of it any more."""
    session = await find_session(run.tenant, run.session, store=store)
    ahead = [seat.run for seat in session.ahead_of(run)]
    found = await store.find_records(Kind.RUN, run.tenant, ahead) if ahead else []
    return all(one is None or run_of(one).is_terminal for one in found)
