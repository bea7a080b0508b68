"""Give: a new job goes straight to a worker that has room for it, in the transaction that stores it.

Stored, found by the scheduler and sent, it would take two commits before anybody works on it; given, it takes
the one that its caller, or the run that orders it, waits for anyway, and its row is written once less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from holdfast.core.job import Job, JobId
from holdfast.errors import Invalid
from holdfast.flow.dispatch import Sending
from holdfast.ports import Accepted, KeyReused, Store, Submission, Transaction

MANY = 10
"""To rule on so many takes long enough that somebody may have come meanwhile."""


class Giver(Protocol):
    """Who knows which worker has room, and whether anybody else's job would have to come first."""

    def give(self, jobs: Sequence[Job]) -> dict[JobId, Sending]:
        """How jobs that are about to be stored get to workers; those it leaves out, as any other. For each that it names
        `gave` must follow."""

    def gave(self, sending: Sending, *, written: bool | None) -> None:
        """None: nobody knows whether it was written."""


async def transact(transactions: Sequence[Transaction], *, store: Store, giver: Giver | None) -> list[bool]:
    """As `Store.transact`; of the jobs that are submitted, those that can be are given away with it."""
    if giver is None:
        return await store.transact(transactions)
    given = giver.give([submission.job for one in transactions for submission in one.submissions])
    written: list[bool] | list[None] = [None] * len(transactions)
    try:
        written = await store.transact([_with(one, given) for one in transactions])
    except Invalid:
        written = [False] * len(transactions)  # it cannot be stored: whoever waits for it is told so for certain
        raise
    else:
        return written
    finally:
        for one, done in zip(transactions, written, strict=True):
            for submission in one.submissions:
                if submission.job.id in given:
                    giver.gave(given[submission.job.id], written=done)


async def submit(submissions: Sequence[Submission], *, store: Store, giver: Giver) -> list[Accepted | KeyReused]:
    """As `Store.submit`; those that can be are given away with it."""
    if len(submissions) >= MANY:
        await _let_in()
    given = giver.give([submission.job for submission in submissions])
    replies: list[Accepted | KeyReused] | list[None] = [None] * len(submissions)
    try:
        replies = await store.submit([_at_once(submission, given) for submission in submissions])
        return replies
    finally:
        for submission, reply in zip(submissions, replies, strict=True):
            if submission.job.id in given:
                done = None if reply is None else isinstance(reply, Accepted) and not reply.repeated
                giver.gave(given[submission.job.id], written=done)


async def _let_in() -> None:
    """Workers whose claims have arrived while so many were ruled on: what they wait for is handed to them, while whoever is
    not known to wait is sent a message. In one turn of the loop it is read what has arrived, in the next it is begun with."""
    for _ in range(3):
        await asyncio.sleep(0)


def _at_once(submission: Submission, given: Mapping[JobId, Sending]) -> Submission:
    sending = given.get(submission.job.id)
    return submission if sending is None else replace(submission, changes=sending.changes)


def _with(transaction: Transaction, given: Mapping[JobId, Sending]) -> Transaction:
    changes = [
        change
        for submission in transaction.submissions
        if submission.job.id in given
        for change in given[submission.job.id].changes
    ]
    return replace(transaction, changes=[*transaction.changes, *changes]) if changes else transaction
