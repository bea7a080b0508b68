"""A walk through a store by chance: commands by a seed, what is answered, and all that can be read afterwards.

For those who need a store with a bit of everything in it. Whether stores agree is told by `store_machine`, which also
finds the shortest history in which they do not.
"""

from __future__ import annotations

import random
from typing import Any

from holdfast.core.job import PARKED_UNTIL, Job, JobId, Tenant, may, step
from holdfast.core.record import Kind, Record
from holdfast.core.states import EffectState, Event, State
from holdfast.ports import (
    Change,
    Delivery,
    JobFilter,
    Note,
    RecordChange,
    Submission,
    Transaction,
)
from holdfast.stores import StoreWithBus
from plane.agreeing import EPOCH, WORKERS, Question
from plane.jobs import ACME, OTHER, a_job, a_record, recoverable, removing, replacing


class Chance:
    """Commands that may make sense, or not quite: a version that has passed, a fence of before, a key used twice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.jobs: dict[JobId, Job] = {}
        self.past: list[Job] = []
        self.records: dict[tuple[Kind, Tenant, str], Record] = {}
        self.now = EPOCH

    def command(self) -> Question:
        make = self._random.choices(
            [self._submit, self._change, self._renew, self._note, self._transact, self._effect, self._replay],
            [3, 9, 1, 1, 4, 5, 1],
        )[0]
        return make()

    def _pick(self, *options: Any) -> Any:
        return self._random.choice(options)

    def _job(self) -> Job:
        if self.past and self._random.random() < 0.1:
            return self._random.choice(self.past)
        going = [job for job in self.jobs.values() if job.state in {State.SCHEDULED, State.DISPATCHED, State.RUNNING}]
        if going and self._random.random() < 0.8:
            return self._random.choice(going)
        return self._random.choice(list(self.jobs.values())) if self.jobs else a_job()

    def _submission(self) -> Submission:
        tenant = self._pick(ACME, ACME, OTHER)
        job = a_job(
            tenant=tenant,
            topic=self._pick("quick", "mail.send"),
            session=self._pick("", "s", "s", "t"),
            run=self._pick("", "", "r1"),
            priority=self._pick(0, 0, 5),
            state=self._pick(*[State.SCHEDULED] * 6, State.APPROVAL_REQUIRED, State.PENDING, State.DENIED),
            payload=b"x" * self._pick(2, 5000),
            decision=self._pick(None, {"action": "allow", "concurrency": {"limit": 1, "key": "k"}}),
            created_at=self.now,
            since=self.now,
            not_before=self.now + self._pick(0, 0, 0, 30),
            replay_of=self._pick(None, None, None, self._job().origin),
        )
        if self.past and self._random.random() < 0.1:
            job = self._random.choice(self.past)  # the very same, again
        key = self._pick(None, None, "a", "b")
        card = a_record(kind=Kind.APPROVAL, tenant=tenant, parent=job.id, created_at=self.now)
        records = [RecordChange(after=card, replaces=0)] if self._random.random() < 0.2 else []
        notes = [Note(tenant, job.id, "approval.requested", {})] if records else []
        return Submission(job=job, key=key, digest=self._pick("d", "d", "e"), records=records, notes=notes)

    def _changes(self) -> list[Change]:
        """Of one job, the second after the first."""
        changes = []
        job = self._job()
        for _ in range(self._pick(1, 1, 1, 2, 3)):
            events = [event for event in Event if may(job, event)]
            if not events:
                break
            likely = [4 if event in {Event.DISPATCH, Event.START} else 1 for event in events]
            event = self._random.choices(events, likely)[0]
            worker = self._pick(*WORKERS) if event is Event.DISPATCH else job.worker
            fence = job.fence + (event is Event.DISPATCH)
            others = {"priority": self._pick(job.priority, 0, 5), "labels": self._pick(job.labels, {"a": "b"})}
            if event is Event.RETRY:
                others["not_before"] = self._pick(job.not_before, self.now, self.now + 30, PARKED_UNTIL)
            attempts = job.attempts + (event is Event.START)
            after = step(job, event, now=self.now, worker=worker, fence=fence, attempts=attempts, **others)
            send = Delivery(worker, job.id, fence) if event is Event.DISPATCH and self._random.random() < 0.7 else None
            letter = "x" if after.state is State.FAILED else ""
            changes.append(Change(before=job, after=after, kind=f"job.{event}", send=send, dead_letter=letter))
            job = after
        return changes

    def _submit(self) -> Question:
        submissions = [self._submission() for _ in range(self._pick(1, 1, 3))]
        return lambda store: store.submit(submissions)

    def _change(self) -> Question:
        changes = self._changes()[:1]  # one that follows another belongs into a transaction with it
        return lambda store: store.apply(changes)

    def _renew(self) -> Question:
        job = self._job()
        leases = [(job.id, job.fence - self._pick(0, 0, 1))]
        return lambda store: store.renew_leases(leases)

    def _note(self) -> Question:
        job = self._job()
        notes = [Note(self._pick(job.tenant, OTHER), job.id, "attempt.refused", {"n": 1})]
        return lambda store: store.add_notes(notes)

    def _record_changes(self) -> list[RecordChange]:
        if not self.records or self._random.random() < 0.4:
            kind = self._pick(Kind.RUN, Kind.STEP, Kind.POST)
            state = self._pick("running", "succeeded", "delivered")
            record = a_record(kind=kind, state=state, id=self._pick("r1", f"x{len(self.records)}"), created_at=self.now)
            return [RecordChange(after=record, replaces=0)]
        record = self._random.choice(list(self.records.values()))
        first = replacing(record, state=self._pick("running", "succeeded"), due=self._pick(None, self.now + 5))
        changes: list[RecordChange] = self._pick(
            [first], [first, replacing(first.after, state="failed")], [removing(record)]
        )
        return changes

    def _transact(self) -> Question:
        transactions = [
            Transaction(
                submissions=self._pick([], [self._submission()]),
                changes=self._pick([], self._changes()),
                records=self._pick([], self._record_changes()),
                notes=self._pick([], [Note(ACME, JobId(""), "run.paused", {}, run="r1")]),
            )
            for _ in range(self._pick(1, 2))
        ]
        return lambda store: store.transact(transactions)

    def _effect(self) -> Question:
        running = [job for job in self.jobs.values() if job.state is State.RUNNING]
        job = self._pick(*running) if running and self._random.random() < 0.9 else self._job()
        fence, key = job.fence - self._pick(0, 0, 0, 1), self._pick("charge", "mail")
        state = self._pick(EffectState.COMMITTED, EffectState.ABSENT)
        return self._pick(  # type: ignore[no-any-return]
            lambda store: store.prepare_effect(job.id, fence, key, idempotent=False),
            lambda store: store.prepare_effect(job.id, fence, key, idempotent=False),
            lambda store: store.commit_effect(job.id, fence, key, b"1"),
            lambda store: store.withdraw_effect(job.id, fence, key),
            lambda store: store.resolve_effect(job.tenant, job.id, key, state=state, result=None, note="n"),
        )

    def _replay(self) -> Question:
        number, submission = self._random.randint(1, 5), self._submission()
        return lambda store: store.replay_dead_letter(ACME, number, submission)


async def everything(store: StoreWithBus) -> dict[str, Any]:
    """Whatever can be read, by what it is called."""
    jobs = [
        job for tenant in (ACME, OTHER) for job in await store.list_jobs(tenant, JobFilter(), before=None, limit=9999)
    ]
    return {
        "jobs": jobs,
        "events": await store.list_events(after=0, limit=99_999),
        "dispatchable": [await store.list_dispatchable(limit=limit) for limit in (2, 3, 100)],
        "without": await store.list_dispatchable(limit=5, except_topics=["quick"], except_keys=["k"]),
        "recoverable": await recoverable(store),
        "in hand": [await store.list_in_hand(worker) for worker in WORKERS],
        "deliveries": [await store.list_deliveries(worker, limit=100) for worker in WORKERS],
        "sessions": [await store.list_session(tenant, session) for tenant in (ACME, OTHER) for session in "st"],
        "counts": [await store.count_jobs(), await store.count_topics(), await store.count_active()],
        "records": [await store.list_records(kind, tenant, limit=999) for kind in Kind for tenant in (ACME, OTHER)],
        "due": [await store.list_due(kind, limit=100) for kind in Kind],
        "effects": [await store.list_effects(tenant, limit=999) for tenant in (ACME, OTHER)],
        "letters": [await store.list_dead_letters(tenant, before=None, limit=99) for tenant in (ACME, OTHER)],
        "pruned": await store.pruned_until(),
    }
