"""Session: what a new job does about those of its session that have not ended.

Two submitters at once must not both believe that they were first. So the question "is anybody there?"
is asked by the very write that stores the job (`Submission.alone`): one look into an index. A record per
session, to be compared and set, would cost every plain job of a session a read and a write, would make
them fail one another, and would have to be removed by somebody.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from holdfast.core.job import Job
from holdfast.errors import Conflict, KeyReused, SessionBusy
from holdfast.flow.cancel import cancelling
from holdfast.flow.gate import followed
from holdfast.ports import Accepted, Change, Store, Submission, Transaction

TRIES = 5
"""Each fails only because another job of the session came, went or moved in between."""
ROLLED_BACK = "rolled_back"


class SessionPolicy(StrEnum):
    ENQUEUE = "enqueue"
    """Run after them."""
    REJECT = "reject"
    """Do not submit it while there is one that nobody has asked to stop."""
    INTERRUPT = "interrupt"
    """Stop them, and run when the last has stopped."""
    ROLLBACK = "rollback"
    """As `interrupt`; and what they did is not to count: their error says so."""


async def submit_in_session(submission: Submission, policy: SessionPolicy, *, store: Store) -> Accepted:
    """Store the job under a policy other than `ENQUEUE`. Durable when it returns, and decided once: of two
    at the same moment one comes first, and the other is told, or stops it.

    A repeated key gives the first job and stops nobody. Raises `SessionBusy`, naming the job; `KeyReused`;
    `Conflict` if the session never holds still.
    """
    alone = replace(submission, alone=True)
    session = (submission.job.tenant, submission.job.session)
    # A job that is to be rejected need not look first: it stops nobody.
    live = [] if policy is SessionPolicy.REJECT else await store.list_session(*session)
    looked = policy is not SessionPolicy.REJECT
    was_hindered = False
    for _ in range(TRIES):
        stopped = () if policy is SessionPolicy.REJECT else live
        changes = [_stopping(job, policy, now=store.now()) for job in stopped if job.makes_busy]
        [written] = await store.transact([_together(await followed(changes, store=store), alone)])
        if written:
            return await _accepted(submission, store)
        if policy is SessionPolicy.REJECT:
            busy = await store.find_busy(*session)
            if busy is not None:
                raise SessionBusy(busy.session, job_id=busy.id)
            found = []
        else:
            found = await store.list_session(*session)
        was_hindered |= looked and _versions(found) != _versions(live)
        live, looked = found, True
    if submission.key is not None and not was_hindered:
        # Not what came and went between two looks, so often: it was the key.
        raise KeyReused("this key was used for another request; take a new one")
    raise Conflict(f"session {submission.job.session!r} keeps changing; try again, with a new key if there is one")


def _together(stopping: Sequence[Transaction], submission: Submission) -> Transaction:
    return Transaction(
        submissions=[submission],
        changes=[change for one in stopping for change in one.changes],
        records=[record for one in stopping for record in one.records],
        notes=[note for one in stopping for note in one.notes],
    )


async def _accepted(submission: Submission, store: Store) -> Accepted:
    if submission.key is None:
        return Accepted(submission.job, repeated=False)
    # The key is there by now, and tells whose it is.
    [reply] = await store.submit([submission])
    assert isinstance(reply, Accepted), "a key that was just found to be ours is not"
    return Accepted(reply.job, repeated=reply.job.id != submission.job.id)


def why_stopped(job: Job) -> dict[str, Any] | None:
    """The error that a rollback has left on a running job, for its end; None if there was none."""
    return job.error if job.cancel_requested and job.error and job.error["code"] == ROLLED_BACK else None


def _versions(jobs: Sequence[Job]) -> list[tuple[str, int]]:
    return [(job.id, job.version) for job in jobs]


def _stopping(job: Job, policy: SessionPolicy, *, now: float) -> Change:
    if policy is SessionPolicy.INTERRUPT:
        return cancelling(job, "interrupted by a newer job of its session", now=now)
    change = cancelling(job, "a newer job of its session took its place", now=now)
    error = {"code": ROLLED_BACK, "message": change.detail["message"]}
    # Kept on a running job as well: whoever records how it stopped finds it there.
    return replace(change, after=replace(change.after, error=error), detail={**change.detail, **error})
