"""Histories of a store, drawn by Hypothesis: its verbs are the rules, and every store is told the same.

Commands may make sense, or not quite: a version that has passed, a fence of before, a key used twice. What the stores
answer is compared at once, what they keep at the end of each history. Jobs and records are looked up in the first store
only to make the next command from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, initialize, multiple, precondition, rule

from holdfast.core.job import PARKED_UNTIL, Job, JobId, Tenant, amend, may, step
from holdfast.core.record import Kind, Record
from holdfast.core.retention import Limits
from holdfast.core.states import TERMINAL, EffectState, Event, State
from holdfast.ports import Change, Delivery, Note, RecordChange, Snapshot, Store, Submission, Transaction
from plane.agreeing import WORKERS, Question, Stage
from plane.jobs import ACME, OTHER, a_job, a_record, prune, removing, replacing
from plane.store_drawn import (
    ASKED,
    DOING,
    ENDS,
    FEW,
    LABELS,
    LOOKS,
    RUN,
    TENANT,
    Asked,
    Doing,
    Look,
    one,
    take_and_settle,
)

LIMIT = {"action": "allow", "concurrency": {"limit": 1, "key": "k"}}
REOPENED = 8
"""Jobs there are before a plane is restarted: that takes as long as many commands."""
_ONWARDS = {
    State.PENDING: Event.ALLOW,
    State.APPROVAL_REQUIRED: Event.APPROVE,
    State.SCHEDULED: Event.DISPATCH,
    State.DISPATCHED: Event.START,
}
_LIVE = (*_ONWARDS, State.RUNNING)
_TURNS = [event for event in Event if event not in {*_ONWARDS.values()}]


class Histories(RuleBasedStateMachine):
    jobs = Bundle("jobs")
    records = Bundle("records")

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.stage.begin()
        self.known: dict[JobId, list[Job]] = {}
        """Every version that was seen of it, the newest last."""
        self.there: list[JobId] = []
        """Those of them that are in the store."""
        self.kept: dict[str, Record] = {}
        self.effected = False
        self.at_once = 1
        self._held: list[Question] = []
        self._ids = (f"{number:032x}" for number in range(1, 1_000_000))

    def teardown(self) -> None:
        try:
            if not self.stage.broken:
                self._send()
                self.stage.compare_all()
        finally:
            self.stage.end()

    # -- what is said ------------------------------------------------------------------------------

    def _tell(self, text: str, question: Question) -> None:
        """Perhaps at once with those that are told next."""
        note(f"    {text}")
        self._held.append(question)
        if len(self._held) >= self.at_once:
            self._send()

    def _apply(self, change: Change) -> None:
        said = f"{_name(change.before)}: {change.before.state} → {change.after.state}"
        self._tell(said, lambda store: store.apply([change]))

    def _send(self) -> None:
        held, self._held = self._held, []
        if held:
            self.stage.ask(*held)
            self._look()

    def _ask(self, question: Question) -> None:
        """Something that must not be told at once with others: what it finds would depend on who is quicker."""
        self._send()
        self.stage.ask(question)

    def _look(self) -> None:
        ids = list(self.known)
        found = [job for job in self.stage.look(lambda store: store.find_jobs(ids)) if job is not None]
        self.there = [job.id for job in found]
        for job in found:
            if self._newest(job.id) != job:
                self.known[job.id].append(job)
        for record in list(self.kept.values()):
            [now] = self.stage.look(partial(_find, record))
            self.kept[record.id] = now or record

    # -- of what it is said --------------------------------------------------------------------------

    def _newest(self, job_id: JobId) -> Job:
        return self.known[job_id][-1]

    def _job(self, job_id: JobId, *wanted: State) -> Job:
        """The one that is called so; or another that is in one of these states, if it is not."""
        job = self._newest(job_id)
        if job_id in self.there and job.state in wanted:
            return job
        return next((other for other in map(self._newest, self.there) if other.state in wanted), job)

    def _submission(self, asked: Asked, replay_of: JobId | None = None) -> Submission:
        now = self.stage.now()
        job = a_job(
            id=next(self._ids), tenant=asked.tenant, topic=asked.topic, state=asked.state, session=asked.session,
            run=asked.run, priority=asked.priority, payload=b"x" * asked.payload, replay_of=replay_of,
            decision=LIMIT if asked.limited else None, created_at=now, since=now, not_before=now + asked.delay_s,
        )  # fmt: skip
        self.known[job.id] = [job]
        card = a_record(id=next(self._ids), kind=Kind.APPROVAL, tenant=job.tenant, parent=job.id, created_at=now)
        return Submission(
            job=job,
            key=asked.key,
            digest=asked.digest,
            alone=asked.alone,
            records=[RecordChange(after=card, replaces=0)] if asked.card else [],
            notes=[Note(job.tenant, job.id, "approval.requested", {})] if asked.card else [],
        )

    def _change(self, job: Job, event: Event, *, worker: str = "w1", delay_s: float = 0, sent: bool = True) -> Change:
        now = self.stage.now()
        others: dict[str, Any] = {}
        if event is Event.DISPATCH:
            others = {"worker": worker, "fence": job.fence + 1}
        elif event is Event.START:
            others = {"attempts": job.attempts + 1, "lease_until": now + 3}
        elif event is Event.RETRY:
            others = {"not_before": min(now + delay_s, PARKED_UNTIL), "labels": LABELS, "priority": 5}
        after = step(job, event, now=now, **others)
        sending = sent and event is Event.DISPATCH
        return Change(
            before=job,
            after=after,
            kind=f"job.{event}",
            send=Delivery(worker, job.id, job.fence + 1) if sending else None,
            dead_letter="x" if after.state is State.FAILED else "",
        )

    def _onwards(self, job: Job, steps: int, *, worker: str = "w1", sent: bool = True) -> Iterator[Change]:
        """As far as RUNNING."""
        for _ in range(steps):
            if job.state not in _ONWARDS:
                return
            change = self._change(job, _ONWARDS[job.state], worker=worker, sent=sent)
            yield change
            job = change.after

    def _record(self, name: str, kind: Kind, state: str, due: float | None) -> RecordChange:
        record = a_record(
            id=name if name == RUN else f"{kind}-{name}", kind=Kind.RUN if name == RUN else kind, state=state,
            parent=RUN, due=due, created_at=self.stage.now(),
        )  # fmt: skip
        self.kept.setdefault(record.id, record)
        return RecordChange(after=record, replaces=0)

    # -- jobs ------------------------------------------------------------------------------------------

    @initialize(target=jobs, asked=st.lists(ASKED, min_size=1, max_size=4), at_once=one(1, 1, 2, 4))
    def begin(self, asked: list[Asked], at_once: int) -> MultipleResults[JobId]:
        """In this history so many commands are told at once, unless a question comes in between."""
        self.at_once = at_once
        submissions = [self._submission(each) for each in asked]
        self._tell(f"submit {_names(submissions)}", lambda store: store.submit(submissions))
        return multiple(*(submission.job.id for submission in submissions))

    @rule(job=jobs, worker=one(*WORKERS), sent=one(True, False))
    def advance(self, job: JobId, worker: str, sent: bool) -> None:
        for change in self._onwards(self._job(job, *_ONWARDS), 1, worker=worker, sent=sent):
            self._apply(change)

    @rule(target=jobs, asked=ASKED, again=one(False, False, True), job=jobs)
    def submit(self, asked: Asked, again: bool, job: JobId) -> JobId:
        submission = self._submission(asked)
        if again:  # the very same, perhaps with another key
            submission = Submission(job=self.known[job][0], key=asked.key, digest=asked.digest)
        self._tell(f"submit {_names([submission])}", lambda store: store.submit([submission]))
        return submission.job.id

    @rule(job=jobs, worker=one(*WORKERS), sent=one(True, False), does=DOING, end=ENDS)
    def attempt(self, job: JobId, worker: str, sent: bool, does: list[Doing], end: Event | None) -> None:
        """From wherever a job is, until it runs, and on to an end, if there is to be one."""
        found = self._job(job, *_LIVE)
        changes = list(self._onwards(found, 3, worker=worker, sent=sent))
        if changes:
            found = changes[-1].after
            self._tell(f"{_name(found)} → {found.state}", lambda store: store.transact([Transaction(changes=changes)]))
        for doing in does:
            self.effected = True
            self._tell(f"{_name(found)}: {doing}", partial(doing.put, job_id=found.id, fence=found.fence))
        if end is not None and may(found, end):
            self._send()
            if self._newest(found.id) == found:
                self._apply(self._change(found, end))

    @rule(job=jobs, does=DOING)
    def fail(self, job: JobId, does: list[Doing]) -> None:
        self.attempt(job, "w1", sent=True, does=does, end=Event.FAIL)

    @rule(job=jobs, event=one(*_TURNS), delay_s=one(0, 30, PARKED_UNTIL), stale=one(False, False, False, True))
    def turn(self, job: JobId, event: Event, delay_s: float, stale: bool) -> None:
        """Another way than onwards; of a state that knows no such event, the next that it knows."""
        versions = self.known[job]
        found = versions[-2] if stale and len(versions) > 1 else self._job(job, *_LIVE)
        start = _TURNS.index(event)
        possible = [event for event in _TURNS[start:] + _TURNS[:start] if may(found, event)]
        if possible:
            self._apply(self._change(found, possible[0], delay_s=delay_s))

    @rule(job=jobs, payload=one(3, 6000), stop=st.booleans())
    def edit(self, job: JobId, payload: int, stop: bool) -> None:
        found = self._job(job, State.SCHEDULED, State.PENDING, State.APPROVAL_REQUIRED)
        if found.is_terminal:
            return
        after = amend(found, payload=b"y" * payload, labels=LABELS, priority=5, cancel_requested=stop)
        self._apply(Change(before=found, after=after, kind="job.edited"))

    @rule(
        target=jobs, asked=ASKED, job=jobs, steps=one(0, 1, 3), stops=st.booleans(), keeps=one("", "x", RUN),
        follows=one(0, 0, 2),
    )  # fmt: skip
    def transact(self, asked: Asked, job: JobId, steps: int, stops: bool, keeps: str, follows: int) -> JobId:
        """A new job, and what follows of it; the end of its session's others, or another one's steps; a record; a note."""
        submission = self._submission(asked)
        session = [each for each in map(self._newest, self.there) if each.session == asked.session]
        if stops:
            changes = [self._change(each, Event.CANCEL) for each in session if may(each, Event.CANCEL)]
        else:
            changes = list(self._onwards(self._job(job, *_LIVE), steps))
        changes += self._onwards(submission.job, follows)
        whole = Transaction(
            submissions=[submission],
            changes=changes,
            records=[self._record(keeps, Kind.STEP, "running", None)] if keeps else [],
            notes=[Note(ACME, JobId(""), "run.paused", {}, run=RUN)],
        )
        told = [f"{_name(change.before)} → {change.after.state}" for change in changes]
        self._tell(f"transact {_name(submission.job)}, {told}", lambda store: store.transact([whole]))
        return submission.job.id

    # -- records ---------------------------------------------------------------------------------------

    @rule(
        target=records, name=one("x", "y", RUN), kind=one(Kind.RUN, Kind.STEP, Kind.POST),
        state=one("running", "succeeded", "delivered"), due_s=one(None, 0, 5),
    )  # fmt: skip
    def keep(self, name: str, kind: Kind, state: str, due_s: float | None) -> str:
        change = self._record(name, kind, state, None if due_s is None else self.stage.now() + due_s)
        self._tell("keep", lambda store: store.transact([Transaction(records=[change])]))
        return change.after.id

    @rule(record=records, state=one("running", "succeeded"), again=st.booleans(), remove=st.booleans())
    def replace(self, record: str, state: str, again: bool, remove: bool) -> None:
        changes = [replacing(self.kept[record], state=state, due=self.stage.now() + 5)]
        if again:
            changes += [replacing(changes[0].after, state="failed", parent="another")]
        if remove:
            changes += [removing(changes[-1].after)]
        self._tell(f"{record}: {len(changes)}", lambda store: store.transact([Transaction(records=changes)]))

    # -- effects, dead letters, and what else there is ---------------------------------------------------

    @precondition(lambda self: self.effected)
    @rule(job=jobs, key=one("charge", "mail"), state=one(EffectState.COMMITTED, EffectState.ABSENT), card=st.booleans())
    def resolve(self, job: JobId, key: str, state: EffectState, card: bool) -> None:
        found = self._job(job, State.SCHEDULED, *TERMINAL)
        records = [self._record("card", Kind.STEP, "running", None)] if card else []
        self._tell(
            f"{_name(found)}: resolve",
            lambda store: store.resolve_effect(
                found.tenant, found.id, key, state=state, result=None, note="n", records=records
            ),
        )

    @precondition(lambda self: any(self._newest(each).state is State.FAILED for each in self.there))
    @rule(target=jobs, asked=ASKED, job=jobs, number=one(1, 2), tenant=one(ACME, ACME, OTHER))
    def replay(self, asked: Asked, job: JobId, number: int, tenant: Tenant) -> JobId:
        self._send()  # nobody knows the number of a letter before it is there
        submission = self._submission(asked, replay_of=self._job(job, State.FAILED).origin)
        self._tell(f"replay letter {number}", lambda store: store.replay_dead_letter(tenant, number, submission))
        return submission.job.id

    @rule(job=jobs, late=one(0, 0, 1), limit=FEW, tenant=TENANT, what=one("renew", "note", "settle", "snapshot"))
    def aside(self, job: JobId, late: int, limit: int, tenant: Tenant, what: str) -> None:
        found = self._job(job, State.RUNNING)
        notes = [Note(tenant, job, "attempt.refused", {"n": 1}), Note(tenant, JobId(""), "run.paused", {}, run=RUN)]
        snapshot = Snapshot(2 - late, limit, self.stage.now(), b"{}")
        verbs: dict[str, Question] = {
            "renew": lambda store: store.renew_leases([(found.id, found.fence - late)]),
            "note": lambda store: store.add_notes(notes),
            "settle": lambda store: take_and_settle(store, found.worker or "w1", limit),
            "snapshot": lambda store: store.write_snapshot(snapshot),
        }
        # A renewal goes first in its batch, and which calls share one is a matter of speed.
        self._ask(verbs[what])

    @rule(seconds=one(1, 5, 40))
    def wait(self, seconds: int) -> None:
        self._send()
        self.stage.clock.advance(seconds)

    @rule(ended_s=one(0, 3), letters_s=one(0, 30))
    def prune(self, ended_s: int, letters_s: int) -> None:
        limits = Limits(self.stage.now() - ended_s, self.stage.now() - letters_s)
        self._ask(lambda store: prune(store, limits))
        self._look()

    @precondition(lambda self: len(self.known) > REOPENED)
    @rule()
    def reopen(self) -> None:
        self._send()
        self.stage.reopen()

    @rule(question=LOOKS, job=st.none() | jobs)
    def look(self, question: Look, job: JobId | None) -> None:
        self._ask(lambda store: question.put(store, job))


async def _find(record: Record, store: Store) -> list[Record | None]:
    return await store.find_records(record.kind, record.tenant, [record.id])


def _name(job: Job) -> str:
    return job.id[-2:]


def _names(submissions: Sequence[Submission]) -> str:
    return ", ".join(_name(submission.job) for submission in submissions)
