"""`Store` and `Bus`: the contracts between what happens (flow) and where it is kept.

Each sentence has a test in `tests/conformance/test_store*.py` or `test_bus.py`, which every
backend passes. The store is the truth; a bus is a wake-up and may lose, repeat or reorder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.core.effect import Effect, Ruling
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.retention import Limits
from holdfast.core.states import EffectState, State


class Delivery(NamedTuple):
    """A message: this worker may start this attempt. `(job_id, fence)` is its identity."""

    worker: str
    job_id: JobId
    fence: int


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of history, mostly of a job. `number` grows over the whole store; only `Store.prune` leaves gaps."""

    number: int
    tenant: Tenant
    job_id: JobId
    """Empty: it is not about one job, but about its run, or about something else altogether."""
    run: str = ""
    """The run it belongs to; that of the job, where it is about a job. Empty if none."""
    kind: str
    """noun.past_verb: job.submitted, job.dispatched, attempt.refused, …"""
    state: State | None
    """The job's state after it; None without a job."""
    attempt: int
    fence: int
    at: float
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A new job, decided or not, and the key under which repeating it changes nothing."""

    job: Job
    key: str | None
    digest: str
    """Of everything the caller sent that makes the job what it is; empty without a key."""
    alone: bool = False
    """Only in `transact`: not to be stored while its `session` has another live job that nobody has asked to stop."""
    records: Sequence[RecordChange] = ()
    """New ones, written with the job if it is new; a submission that repeats one leaves them alone."""
    notes: Sequence[Note] = ()
    """Likewise."""


class Accepted(NamedTuple):
    job: Job
    repeated: bool
    """True: the key was used before, for the same submission; `job` is the one it made then."""


class KeyReused(NamedTuple):
    """The key was used before for something else."""

    job_id: JobId


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """From one version of a job to the next, with everything that must happen together with it.

    What a job is called and belongs to never changes. Its payload may, for as long as nobody has run it.
    """

    before: Job
    after: Job
    kind: str
    detail: dict[str, Any] = {}
    send: Delivery | None = None
    """Published in the same transaction. Only for the store's own bus."""
    dead_letter: str = ""
    """A reason to keep a dead letter of `after`, with its events as evidence."""


class Note(NamedTuple):
    """Something that happened and changed no job, such as a refused result, or a step of a run that began."""

    tenant: Tenant
    job_id: JobId
    """Empty: it is not about one job."""
    kind: str
    detail: dict[str, Any]
    run: str = ""
    """Where it is not about a job: the run it is about, if it is about one."""


class RecordChange(msgspec.Struct, frozen=True, kw_only=True):
    """From one version of a record to the next. `after` has the kind, tenant and id of what it replaces."""

    after: Record
    replaces: int
    """The version that must be there; 0: there must be none."""
    remove: bool = False
    """Take the record away instead; `after` only names it."""

    def __post_init__(self) -> None:
        if not self.remove and self.after.version != self.replaces + 1:
            raise ValueError(f"version {self.after.version} of a record cannot replace version {self.replaces}")


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """Writes that happen together or not at all."""

    submissions: Sequence[Submission] = ()
    changes: Sequence[Change] = ()
    records: Sequence[RecordChange] = ()
    notes: Sequence[Note] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    state: State | None = None
    topic: str = ""
    """Exact, or a family ending in `*`."""
    labels: dict[str, str] = field(default_factory=dict)
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    number: int
    tenant: Tenant
    job_id: JobId
    topic: str
    reason: str
    at: float
    job: Job
    replayed_as: JobId | None


class Snapshot(NamedTuple):
    """The worker registry as its writer last saw it."""

    fence: int
    seq: int
    at: float
    workers: bytes


class Pruned(NamedTuple):
    """What one call of `prune` did."""

    jobs: int
    after: int | None
    """Where the next batch begins; None: there is no more to look at."""


class Store(Protocol):
    """Keeps jobs. Every write is one durable transaction; concurrent writes may share one.

    Time is the store's: `now()` grows, and does not step when the host's clock is set. Calls that
    end without an answer raise `StoreUnavailable`, whose `applied` says what is known; then the
    job is read again by its version, never written again blindly. Another tenant's job does
    not exist: reads raise `NotFound`.
    """

    def now(self) -> float: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def submit(self, submissions: Sequence[Submission]) -> list[Accepted | KeyReused]:
        """Store new jobs with the event `job.submitted`. All answers are durable when it returns.

        A key is per tenant. The same key and digest again gives the first job, whatever became of
        it; the same key with another digest stores nothing. Submissions are independent.
        """

    async def get_job(self, tenant: Tenant, job_id: JobId) -> Job:
        """Raises `NotFound`."""

    async def find_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        """For the plane itself: whatever tenant. In the order asked for."""

    async def list_jobs(self, tenant: Tenant, wanted: JobFilter, *, before: JobId | None, limit: int) -> list[Job]:
        """Newest first; `before` is the last id of the page before. Ids sort by creation."""

    async def list_dispatchable(
        self,
        *,
        limit: int,
        except_topics: Collection[str] = (),
        except_tenants: Collection[Tenant] = (),
        except_keys: Collection[str] = (),
    ) -> list[Job]:
        """SCHEDULED jobs whose `not_before` has come: by priority, then in turn between tenants,
        then oldest first. No tenant with few jobs waits behind a tenant with many. Jobs of
        `except_topics`, of `except_tenants` and under `except_keys` (the keys of limits that their
        `decision` names) are left out, and so are those of a `session` that is at work: of a session's
        jobs only the first is listed. That is one which was begun and waits to be tried again; else the
        oldest, whatever its priority."""

    async def list_session(self, tenant: Tenant, session: str) -> list[Job]:
        """The live jobs of a session, in order of id."""

    async def list_in_hand(self, worker: str) -> list[Job]:
        """The jobs that are DISPATCHED to the worker or RUNNING on it."""

    async def list_recoverable(self, *, limit: int, after: JobId | None = None) -> list[Job]:
        """Live jobs that may need recovery: their `recovery.next_look` has come. In order of id;
        `after` is the last id of the page before."""

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        """Replace each job if the store still has `before`'s version. One answer per change: False,
        and nothing of that change happened, if the job has moved on. Independent of each other.

        The event, the delivery and the dead letter of a change are written in its transaction.
        A change to a terminal state ends the job's prepared effects as unknown; of a job that belongs
        to a run it leaves a `Kind.RESULT` record. A change to DISPATCHED is refused (False) while another
        job of the same tenant's `session` is DISPATCHED or RUNNING. A change that parks
        a job (`PARKED_UNTIL`) leaves it dispatchable if none of its effects awaits a person any more.
        """

    async def renew_leases(self, leases: Sequence[tuple[JobId, int, float]]) -> list[Job | None]:
        """(job, fence, lease seconds): extend where RUNNING under that fence; else None. Goes first in its batch."""

    async def add_notes(self, notes: Sequence[Note]) -> None: ...

    async def transact(self, transactions: Sequence[Transaction]) -> list[bool]:
        """Each transaction wholly or not at all; they are independent of each other. False, and nothing
        of it happened, if a job or a record is not at the version it names, or a submission's key was
        used for something else, or one that is to be `alone` would not be, after the transaction's changes.
        A submission that repeats one which is there already changes nothing; where it was to be `alone`,
        nothing of its transaction happens, and the answer is True.

        Changes obey the rules of `apply`: where one is refused, so is its transaction. They may follow one
        another: the `before` of one is then the `after` of an earlier one, of the same job or record.
        Notes come last, and tell of a job as it is after the changes."""

    async def list_events(
        self,
        *,
        after: int,
        limit: int,
        tenant: Tenant | None = None,
        job_id: JobId | None = None,
        run: str | None = None,
    ) -> list[JobEvent]:
        """Oldest first. `after` is the last number seen. By `run`: the run's own and those of its jobs."""

    def subscribe(self, listener: Callable[[Sequence[JobEvent]], None]) -> Callable[[], None]:
        """Call `listener`, in the store's loop, with the events of each commit, in order. Returns
        what ends it. A hint for the same process: whoever must not miss one reads `list_events`."""

    async def count_jobs(self) -> dict[tuple[Tenant, State], int]:
        """Live jobs by tenant and state; terminal states are not counted."""

    async def count_topics(self) -> dict[tuple[Tenant, str], int]:
        """Live jobs by tenant and topic. Reads all of them: once a second, and only where somebody has set a limit."""

    async def count_active(self) -> dict[tuple[Tenant, str, str], int]:
        """Jobs that are DISPATCHED or RUNNING, by tenant, topic and the key of the limit that their
        `decision` names (`decision["concurrency"]["key"]`; empty if none)."""

    # -- records -----------------------------------------------------------------------------------

    async def get_record(self, kind: Kind, tenant: Tenant, record_id: str) -> Record:
        """Raises `NotFound`."""

    async def find_records(self, kind: Kind, tenant: Tenant, ids: Sequence[str]) -> list[Record | None]:
        """In the order asked for."""

    async def list_records(
        self,
        kind: Kind,
        tenant: Tenant,
        *,
        state: str | None = None,
        parent: str | None = None,
        after: str | None = None,
        before: str | None = None,
        limit: int,
    ) -> list[Record]:
        """In the order of ids after `after`; or, if `before` is given, backwards from it ("" is the end)."""

    async def count_records(self, kind: Kind, tenant: Tenant, *, states: Collection[str]) -> dict[str, int]:
        """How many there are in each of these states; those without any are left out."""

    async def list_due(self, kind: Kind, *, limit: int) -> list[Record]:
        """Of all tenants: whose `due` has come, longest overdue first."""

    # -- effects -----------------------------------------------------------------------------------

    async def prepare_effect(self, job_id: JobId, fence: int, key: str, *, idempotent: bool) -> tuple[Effect, Ruling]:
        """Enter an effect before it happens, or rule on one that is there (`effect.rule_on_repeat`).

        Raises `StaleFence` unless the job is RUNNING under this fence. A ruling RUN has made the
        effect PREPARED under this fence.
        """

    async def commit_effect(self, job_id: JobId, fence: int, key: str, result: bytes | None) -> Effect:
        """PREPARED under this fence → COMMITTED; the same again is answered the same. Raises
        `StaleFence` if a newer attempt has prepared it; then it is noted as evidence and not lost.

        It may also come late, when the effect is UNKNOWN: jobs that were parked for it become
        dispatchable in the same transaction.
        """

    async def withdraw_effect(self, job_id: JobId, fence: int, key: str) -> Effect:
        """As `commit_effect`, but → ABSENT: whoever prepared it knows that it did not happen. Raises
        `Conflict` if it is COMMITTED."""

    async def resolve_effect(
        self, tenant: Tenant, job_id: JobId, key: str, *, state: EffectState, result: bytes | None, note: str
    ) -> Effect:
        """A person's word on an UNKNOWN effect: COMMITTED or ABSENT. Raises `Conflict` for any other state.

        Jobs that were parked for it (the job itself, or a replay of it) become dispatchable in the
        same transaction.
        """

    async def list_effects(
        self, tenant: Tenant, *, state: EffectState | None = None, job_id: JobId | None = None, limit: int = 100
    ) -> list[Effect]: ...

    # -- dead letters, workers ---------------------------------------------------------------------

    async def list_dead_letters(self, tenant: Tenant, *, before: int | None, limit: int) -> list[DeadLetter]: ...

    async def get_dead_letter(self, tenant: Tenant, number: int) -> DeadLetter: ...

    async def replay_dead_letter(self, tenant: Tenant, number: int, submission: Submission) -> Accepted:
        """Submit a dead letter's job anew, once: the same letter again gives the job of the first replay."""

    async def write_snapshot(self, snapshot: Snapshot) -> bool:
        """False, and nothing changes, unless (fence, seq) is higher than the stored one."""

    async def read_snapshot(self) -> Snapshot | None: ...

    # -- retention ---------------------------------------------------------------------------------

    async def prune(self, limits: Limits, *, after: int = 0) -> Pruned:
        """Remove a batch of jobs that ended before `limits`: with their events, payloads, keys, effects
        and dead letters. Small enough to hold nobody up; `after` is where the batch before ended.

        A job and its replays go together, when all of them may. None goes that is live, that has an
        effect which is not settled, or a later dead letter which nobody has replayed. The newest event
        and the newest dead letter stay: numbers never begin anew.

        A job of a run that is there goes only with its run: when the run has ended and all of its jobs may
        go, all go, with every record whose parent the run is. Approvals go with their job or run, posts
        that have ended by themselves (`core.record.ENDED`).
        """

    async def pruned_until(self, tenant: Tenant | None = None) -> int:
        """The highest number of the events that `prune` has removed, of one tenant or of all; 0 if none."""


class Bus(Protocol):
    """Carries deliveries to workers."""

    @property
    def atomic(self) -> bool:
        """True: deliveries are published by `Change.send`, together with the state; `publish` is not used."""

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Raises `BusUnavailable`; `applied` is None where the bus may have taken them. The same
        delivery again is one delivery."""

    async def take(self, worker: str, *, limit: int) -> list[Delivery]:
        """Deliveries for a worker that it has not settled. What was taken and not settled comes
        again after a while: the answer may have been lost."""

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """They were started, or are stale: do not deliver them again. Only after the store has committed."""

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        """Call `callback(worker)` when there may be something to take. A hint."""
