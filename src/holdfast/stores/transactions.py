"""Transactions of jobs and records together, inside a ledger's transaction.

Each is checked as a whole before any of it is written, so that there is never anything to undo: the
writer's own transaction belongs to others too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.core.job import Job, JobId
from holdfast.core.record import Kind
from holdfast.core.states import State
from holdfast.ports import Change, RecordChange, Submission, Transaction
from holdfast.stores.ledger import Ledger, TopicOf, may_come_with


def transact(ledger: Ledger, transactions: Sequence[Transaction], topic_of: TopicOf) -> list[bool]:
    return [_transact(ledger, transaction, topic_of) for transaction in transactions]


def _transact(ledger: Ledger, transaction: Transaction, topic_of: TopicOf) -> bool:
    if not _may_submit(ledger, transaction.submissions):
        return False
    alone = [submission for submission in transaction.submissions if submission.alone]
    if any(_is_repeated(ledger, submission) for submission in alone):
        return True  # what it asks to stop may be what it submitted the first time
    new = _new_jobs(ledger, transaction)
    possible = (
        _may_change_jobs(ledger, transaction.changes, new)
        and may_change_records(ledger, [*_new_records(ledger, transaction), *transaction.records])
        and all(_may_be_alone(ledger, submission.job, transaction.changes) for submission in alone)
    )
    if not possible:
        return False
    of_new: dict[JobId, list[Change]] = {job_id: [] for job_id in new}
    of_others: list[Change] = []
    for change in transaction.changes:
        of_new.get(change.before.id, of_others).append(change)
    written = ledger.apply(of_others, topic_of)
    for submission in transaction.submissions:
        own = of_new.get(submission.job.id, [])
        if all(map(may_come_with, own)):
            ledger.submit_one(replace(submission, changes=[*submission.changes, *own]), topic_of)
        else:
            ledger.submit_one(submission, topic_of)
            written += ledger.apply(own, topic_of)
    assert all(written), "what was checked has changed within one transaction"
    for record in transaction.records:
        ledger.write_record(record)
    ledger.add_notes(transaction.notes)
    return True


def _new_jobs(ledger: Ledger, transaction: Transaction) -> dict[JobId, int]:
    """The versions of the jobs that it submits and then changes."""
    changed = {change.before.id for change in transaction.changes}
    return {
        submission.job.id: submission.job.version
        for submission in transaction.submissions
        if submission.job.id in changed and not _is_repeated(ledger, submission)
    }


def _new_records(ledger: Ledger, transaction: Transaction) -> list[RecordChange]:
    """Those that come with its submissions; a repeated one leaves its own alone."""
    with_records = (submission for submission in transaction.submissions if submission.records)
    return [
        change for submission in with_records if not _is_repeated(ledger, submission) for change in submission.records
    ]


def _may_change_jobs(ledger: Ledger, changes: Sequence[Change], new: Mapping[JobId, int]) -> bool:
    versions: dict[JobId, int | None] = dict(new)
    woken: set[tuple[str, str]] = set()
    for change in changes:
        before, after = change.before, change.after
        if before.id not in versions:
            versions[before.id] = ledger.version_of(before.id)
        if versions[before.id] != before.version:
            return False
        versions[before.id] = after.version
        if after.session and after.state is State.DISPATCHED and before.state is not State.DISPATCHED:
            session = (after.tenant, after.session)
            if session in woken or ledger.is_at_work(after):
                return False
            woken.add(session)
    return True


def may_change_records(ledger: Ledger, changes: Sequence[RecordChange]) -> bool:
    """Whether each is at the version that its change names."""
    versions: dict[tuple[Kind, str, str], int] = {}
    for change in changes:
        record = change.after
        place = (record.kind, record.tenant, record.id)
        if place not in versions:
            versions[place] = ledger.record_version(record)
        if versions[place] != change.replaces:
            return False
        versions[place] = 0 if change.remove else record.version
    return True


def _may_submit(ledger: Ledger, submissions: Sequence[Submission]) -> bool:
    digests: dict[tuple[str, str], str] = {}
    for submission in submissions:
        if submission.key is None:
            continue
        place = (submission.job.tenant, submission.key)
        if place not in digests:
            known = ledger.find_key(*place)
            digests[place] = submission.digest if known is None else known[0]
        if digests[place] != submission.digest:
            return False
    return True


def _is_repeated(ledger: Ledger, submission: Submission) -> bool:
    job, key = submission.job, submission.key
    return (key is not None and ledger.find_key(job.tenant, key) is not None) or ledger.version_of(job.id) is not None


def _may_be_alone(ledger: Ledger, job: Job, changes: Sequence[Change]) -> bool:
    if not job.session:
        return True
    session = (job.tenant, job.session)
    # Not those of the transaction's own submissions, which are not there yet.
    changed = {
        change.after.id: change.after
        for change in changes
        if (change.after.tenant, change.after.session) == session and ledger.version_of(change.after.id) is not None
    }
    is_busy = any(other.makes_busy for other in changed.values())
    return not is_busy and not ledger.is_busy(*session, but=changed)
