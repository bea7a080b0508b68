"""What the plane's tests are told with: a clock moved by hand, and jobs that differ from the usual in one thing."""

from __future__ import annotations

import itertools
from typing import Any

from msgspec.structs import replace

from holdfast.core.effect import Effect
from holdfast.core.job import Job, JobId, Tenant, step
from holdfast.core.record import Kind, Record
from holdfast.core.retention import Limits
from holdfast.core.states import TERMINAL, EffectState, Event, Risk, State
from holdfast.locks.runtime import SystemRuntime
from holdfast.ports import Change, RecordChange, Store, Submission, Transaction

ACME = Tenant("acme")
OTHER = Tenant("other")
LIVE = tuple(state for state in State if state not in TERMINAL)

_numbers = itertools.count(1)


class ManualRuntime(SystemRuntime):
    """A runtime whose clocks stand still until a test moves them. Threads, randomness and so on are real.

    `inline=True` runs the writer's work in place.
    """

    def __init__(self, *, inline: bool = False) -> None:
        super().__init__()
        self.clock_s = 1000.0
        self.wall_s = 1_800_000_000.0
        self.boot = "boot-1"
        self.now = lambda: self.clock_s
        self._inline = inline

    def wall_us(self) -> int:
        return round(self.wall_s * 1e6)

    def boot_id(self) -> str:
        return self.boot

    def inline(self) -> bool:
        return self._inline

    def advance(self, seconds: float) -> None:
        self.clock_s += seconds
        self.wall_s += seconds


def a_job(**changes: Any) -> Job:
    """A scheduled job that nobody has touched yet. Ids grow from call to call."""
    usual = Job(
        id=JobId(f"{next(_numbers):032x}"),
        tenant=ACME,
        topic="mail.send",
        payload=b'{"to":"x"}',
        labels={},
        priority=0,
        risk=Risk.MEDIUM,
        max_attempts=3,
        created_at=1000.0,
        deadline=None,
        state=State.SCHEDULED,
        version=1,
        since=1000.0,
        not_before=0.0,
        attempts=0,
        schedulings=0,
        retries={},
        pool="default",
        worker="",
        fence=0,
        lease_until=0.0,
        cancel_requested=False,
        progress=None,
        result=None,
        error=None,
        replay_of=None,
        trace="",
    )
    return replace(usual, **changes)


def bare(job: Job) -> Job:
    """As it is listed where nobody asks for its payload."""
    return replace(job, payload=b"")


def an_effect(**changes: Any) -> Effect:
    usual = Effect(
        tenant=ACME,
        job_id=JobId("j"),
        key="charge",
        state=EffectState.PREPARED,
        fence=7,
        attempt=1,
        idempotency_key="k",
        result=None,
        prepared_at=1000.0,
        settled_at=None,
    )
    return replace(usual, **changes)


async def submitted(store: Store, **changes: Any) -> Job:
    job = a_job(**{"created_at": store.now(), "since": store.now(), "not_before": store.now(), **changes})
    await store.submit([Submission(job=job, key=None, digest="")])
    return job


async def stepped(store: Store, job: Job, event: Event, **changes: Any) -> Job:
    """The job after an event that the store has taken."""
    dead_letter = changes.pop("dead_letter", "")
    after = step(job, event, now=store.now(), **changes)
    change = Change(before=job, after=after, kind=f"job.{event}", detail={}, dead_letter=dead_letter)
    assert await store.apply([change]) == [True]
    return after


def sending(store: Store, job: Job) -> Change:
    """The job's dispatch, not yet written."""
    sent = step(job, Event.DISPATCH, now=store.now(), worker="w1", fence=job.fence + 1)
    return Change(before=job, after=sent, kind="job.dispatched")


def cancelling(store: Store, job: Job) -> Change:
    return Change(before=job, after=step(job, Event.CANCEL, now=store.now()), kind="job.cancelled")


async def dispatched(store: Store, worker: str = "w1", fence: int = 7, **changes: Any) -> Job:
    return await stepped(store, await submitted(store, **changes), Event.DISPATCH, worker=worker, fence=fence)


async def running(store: Store, worker: str = "w1", fence: int = 7, **changes: Any) -> Job:
    waiting = await dispatched(store, worker, fence, **changes)
    return await stepped(store, waiting, Event.START, attempts=waiting.attempts + 1, lease_until=store.now() + 30)


async def recoverable(store: Store, *states: State, limit: int = 100) -> list[Job]:
    """All pages, by id."""
    found, after = await store.list_recoverable(states=states or LIVE, limit=limit)
    while after:
        jobs, after = await store.list_recoverable(states=states or LIVE, limit=limit, after=after)
        found += jobs
    return sorted(found, key=lambda job: job.id)


def a_record(**changes: Any) -> Record:
    """A run that has just begun. Ids grow from call to call."""
    usual = Record(
        kind=Kind.RUN,
        tenant=ACME,
        id=f"{next(_numbers):032x}",
        state="running",
        parent="triage",
        created_at=1000.0,
        body=b'{"input":1}',
    )
    return replace(usual, **changes)


def new(*records: Record) -> Transaction:
    return Transaction(records=[RecordChange(after=record, replaces=0) for record in records])


def replacing(record: Record, **changes: Any) -> RecordChange:
    """To the record's next version."""
    return RecordChange(after=replace(record, version=record.version + 1, **changes), replaces=record.version)


def removing(record: Record) -> RecordChange:
    return RecordChange(after=record, replaces=record.version, remove=True)


async def stored(store: Store, **changes: Any) -> Record:
    record = a_record(**{"created_at": store.now(), **changes})
    assert await store.transact([new(record)]) == [True]
    return record


async def prune(store: Store, limits: Limits) -> int:
    """Batch after batch, to the end: how many jobs went."""
    jobs, place = 0, 0
    while True:
        batch = await store.prune(limits, after=place)
        jobs += batch.jobs
        if batch.after is None:
            return jobs
        assert batch.after >= place
        place = batch.after
