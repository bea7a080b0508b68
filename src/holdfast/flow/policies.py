"""Policies: publish a version, go back to an older one, look at them, and try a draft on jobs that were decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.core.decision import Decision
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.policy import Rulebook
from holdfast.core.policy_version import (
    ACTIVE,
    PLANE,
    VERSION,
    Active,
    PolicyVersion,
    active_from_record,
    active_to_record,
    new_version,
    rolled_back,
    version_from_record,
    version_id,
    version_to_record,
)
from holdfast.core.record import Kind
from holdfast.core.rules import read_rules
from holdfast.core.schema import digest
from holdfast.core.states import State
from holdfast.errors import Conflict, NotFound, VersionMismatch
from holdfast.flow.audit import Entry, transact
from holdfast.ports import JobFilter, Note, RecordChange, Store, Transaction

TRIES = 5
PAGE = 200
NO_JOB = JobId("")


class Standing(NamedTuple):
    """What is active, and the version of the record that says so; 0 where there is none."""

    active: Active | None
    record: int

    @property
    def number(self) -> int:
        return 0 if self.active is None else self.active.number


async def find_active(store: Store) -> Standing:
    [record] = await store.find_records(Kind.POLICY, PLANE, [ACTIVE])
    return Standing(None, 0) if record is None else Standing(active_from_record(record), record.version)


async def get_version(store: Store, number: int) -> PolicyVersion:
    """Raises `NotFound`."""
    [record] = await store.find_records(Kind.POLICY, PLANE, [version_id(number)])
    if record is None:
        raise NotFound(f"there is no version {number} of the policy; `holdfast policy history` lists them")
    return version_from_record(record)


async def list_versions(store: Store, *, before: int | None, limit: int) -> list[PolicyVersion]:
    """Newest first; `before` is the last number of the page before."""
    start = ACTIVE if before is None else version_id(before)  # digits sort before letters
    records = await store.list_records(Kind.POLICY, PLANE, parent=VERSION, before=start, limit=limit)
    return [version_from_record(record) for record in records]


async def publish(
    document: Any,
    *,
    store: Store,
    expected: int | None = None,
    by: str = "",
    reason: str = "",
    file: str = "",
    entry: Entry | None = None,
) -> PolicyVersion:
    """Store the document as the next version, and make it the active one, in one transaction.

    Raises `Invalid` before anything is stored, and `VersionMismatch` if `expected` is not the active
    version. From a `file`: nothing happens if that very document was the last one published from it.
    """
    read_rules(document)

    def next_step(standing: Standing) -> _Step | None:
        if file and standing.active is not None and standing.active.files.get(file) == digest(document):
            return None
        version, after = new_version(document, standing.active, now=store.now(), by=by, reason=reason, file=file)
        detail = {
            "version": version.number,
            "hash": version.hash,
            "before": standing.number,
            "by": by,
            "reason": reason,
        }
        stored = RecordChange(after=version_to_record(version), replaces=0)
        return _Step(version, after, (stored,), Note(PLANE, NO_JOB, "policy.published", detail))

    return await _move(store, expected, next_step, entry)


async def roll_back(
    number: int,
    *,
    store: Store,
    expected: int | None = None,
    by: str = "",
    reason: str = "",
    entry: Entry | None = None,
) -> PolicyVersion:
    """Make an older version the active one again. Raises `NotFound`, `Conflict` if it is active, `VersionMismatch`."""
    version = await get_version(store, number)

    def next_step(standing: Standing) -> _Step | None:
        assert standing.active is not None, "there is a version, so one is active"
        if standing.number == number:
            raise Conflict(f"version {number} of the policy is the active one already")
        after = rolled_back(standing.active, version, now=store.now(), by=by, reason=reason)
        detail = {"version": number, "hash": version.hash, "before": standing.number, "by": by, "reason": reason}
        return _Step(version, after, (), Note(PLANE, NO_JOB, "policy.rolled_back", detail))

    return await _move(store, expected, next_step, entry)


class _Step(NamedTuple):
    version: PolicyVersion
    after: Active
    records: tuple[RecordChange, ...]
    note: Note


async def _move(
    store: Store, expected: int | None, next_step: Callable[[Standing], _Step | None], entry: Entry | None
) -> PolicyVersion:
    for _ in range(TRIES):
        standing = await find_active(store)
        if expected is not None and standing.number != expected:
            raise VersionMismatch(f"version {standing.number} of the policy is active, not {expected}")
        step = next_step(standing)
        if step is None:
            return await get_version(store, standing.number)
        pointer = RecordChange(
            after=active_to_record(step.after, version=standing.record + 1), replaces=standing.record
        )
        transaction = Transaction(records=(*step.records, pointer), notes=(step.note,))
        detail = {"version": step.version.number, "hash": step.version.hash, "before": standing.number}
        if await transact(transaction, store=store, entry=entry, **detail):
            return step.version
    raise Conflict("the policy keeps changing; look at it again")


# -- simulation ---------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What one job got, and what it would get."""

    job: Job
    before: str
    """The recorded action; allow, where no policy was ever published."""
    rule_before: str
    after: str
    decision: Decision

    @property
    def changed(self) -> bool:
        return self.before != self.after


async def simulate(document: Any, tenant: Tenant, *, store: Store, limit: int) -> list[Verdict]:
    """Ask a draft about the newest jobs of a tenant, as they are kept. Changes nothing. Raises `Invalid`."""
    draft = Rulebook(0, document)
    verdicts: list[Verdict] = []
    before: JobId | None = None
    while len(verdicts) < limit:
        page = await store.list_jobs(tenant, JobFilter(), before=before, limit=min(PAGE, limit - len(verdicts)))
        for job in page:
            verdicts.append(_verdict(draft, job))
            # An expression may take tens of milliseconds, and everybody else waits for as long.
            await asyncio.sleep(0)
        if len(page) < PAGE:
            break
        before = page[-1].id
    return verdicts


def _verdict(draft: Rulebook, job: Job) -> Verdict:
    decision = draft.decide(job)
    kept = job.decision or {}
    before = kept.get("action", "deny" if job.state is State.DENIED else "allow")
    return Verdict(job, before, kept.get("rule", ""), decision.event or "wait", decision)
