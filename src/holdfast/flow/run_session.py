"""Run session: what a new run does about those of its session that have not ended.

The live runs of a session are listed in one record, which every start in it compares and sets: of two at
the same moment one comes first, and the other sees it. The record goes with the newest of its runs.
"""

from __future__ import annotations

import msgspec

from holdfast.core.record import Kind, Record
from holdfast.core.run import Run, RunState
from holdfast.errors import SessionBusy
from holdfast.flow.run_draft import RunDraft
from holdfast.flow.session import SessionPolicy
from holdfast.ports import RecordChange, Store

_BUSY = (RunState.RUNNING, RunState.PAUSED)
"""One that was told to stop, and has not stopped yet, does not make its session busy."""


async def join_session(draft: RunDraft, run: Run, policy: SessionPolicy, *, store: Store) -> None:
    """Make the run one of its session's, in the transaction that starts it. Raises `SessionBusy`, naming a run."""
    [record] = await store.find_records(Kind.SESSION, run.tenant, [run.session])
    known = () if record is None else msgspec.json.decode(record.body, type=tuple[str, ...])
    found = await store.find_records(Kind.RUN, run.tenant, known)
    live = [one.id for one in found if one is not None and one.state in _BUSY]
    match policy:
        case SessionPolicy.REJECT if live:
            raise SessionBusy(run.session, run_id=live[0])
        case SessionPolicy.INTERRUPT | SessionPolicy.ROLLBACK:
            for one in live:
                draft.stop(one, by=f"run {run.id}", compensate=policy is SessionPolicy.ROLLBACK)
            live = []
        case _:
            pass
    version = 0 if record is None else record.version
    listed = Record(
        kind=Kind.SESSION,
        tenant=run.tenant,
        id=run.session,
        version=version + 1,
        parent=run.id,
        created_at=run.created_at,
        body=msgspec.json.encode([*live, run.id]),
    )
    draft.change(RecordChange(after=listed, replaces=version))
