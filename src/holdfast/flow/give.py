"""Give: a new job goes straight to a worker that waits for one, in the transaction that stores it.

Stored, found by the scheduler and sent, it would take two commits before anybody works on it; given, it takes
the one that its caller, or the run that orders it, waits for anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from holdfast.core.job import Job, Tenant
from holdfast.flow.dispatch import Sending
from holdfast.ports import Accepted, Store, Submission, Transaction

_Alike = tuple[Tenant, str, frozenset[tuple[str, str]]]


class Giver(Protocol):
    """Who knows which worker waits, and whether anybody else's job would have to come first."""

    def give(self, job: Job) -> Sending | None:
        """How a job that is about to be stored gets to a worker; None: as any other. `gave` must follow."""

    def gave(self, sending: Sending, *, written: bool | None) -> None:
        """None: nobody knows whether it was written."""


async def transact(transactions: Sequence[Transaction], *, store: Store, giver: Giver | None) -> list[bool]:
    """As `Store.transact`; of the jobs that are submitted, those that can be are given away with it."""
    if giver is None:
        return await store.transact(transactions)
    given: list[list[Sending]] = [[] for _ in transactions]
    written: list[bool] | list[None] = [None] * len(transactions)
    nobody_for: set[_Alike] = set()
    try:
        for one, sendings in zip(transactions, given, strict=True):
            for job in (submission.job for submission in one.submissions):
                # Where nobody takes one, nobody takes another like it: of a wide step only as many are asked for.
                if (alike := _alike(job)) not in nobody_for:
                    sending = giver.give(job)
                    if sending is None:
                        nobody_for.add(alike)
                    else:
                        sendings.append(sending)
        written = await store.transact(
            [_with(one, sendings) for one, sendings in zip(transactions, given, strict=True)]
        )
        return written
    finally:
        for sendings, done in zip(given, written, strict=True):
            for sending in sendings:
                giver.gave(sending, written=done)


async def submit(submission: Submission, *, store: Store, giver: Giver) -> Accepted | None:
    """Store a job and give it away. None, and nothing happened, if no worker waits for it, or it was submitted before."""
    sending = giver.give(submission.job)
    if sending is None:
        return None
    written: bool | None = None
    try:
        [written] = await store.transact([Transaction(submissions=[submission], changes=sending.changes)])
    finally:
        giver.gave(sending, written=written)
    return Accepted(sending.changes[-1].after, repeated=False) if written else None


def _alike(job: Job) -> _Alike:
    return job.tenant, job.topic, frozenset(job.labels.items())


def _with(transaction: Transaction, sendings: Sequence[Sending]) -> Transaction:
    if not sendings:
        return transaction
    changes = [change for sending in sendings for change in sending.changes]
    return replace(transaction, changes=[*transaction.changes, *changes])
