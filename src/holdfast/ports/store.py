"""The contract of a store, which is the truth about every job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from holdfast.core.effect import Effect, EffectPlace, Ruling
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.placement import Labels
from holdfast.core.record import Kind, Record
from holdfast.core.retention import Limits
from holdfast.core.states import EffectState, State
from holdfast.ports.words import (
    Accepted,
    Change,
    DeadLetter,
    JobEvent,
    JobFilter,
    KeyReused,
    Note,
    Overdue,
    Pruned,
    RecordChange,
    Snapshot,
    Submission,
    Transaction,
)


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
        it; the same key with another digest stores nothing. Submissions are independent. A new job is answered as
        its `changes` have left it.
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
        met_by: Mapping[str, Collection[Labels]] | None = None,
    ) -> list[Job]:
        """SCHEDULED jobs whose `not_before` has come: by priority, then in turn between tenants,
        then oldest first. No tenant with few jobs waits behind a tenant with many. Jobs of
        `except_topics`, of `except_tenants` and under `except_keys` (the keys of limits that their
        `decision` names) are left out, and so are those of a `session` that is at
        work: of a session's jobs only the first is listed. That is one which was begun and waits to be tried
        again; else the oldest, whatever its priority. Of a topic in `met_by` those are left out whose demand
        (`placement.demand_of`) is not within one of the sets of labels there; who wants none never is. A list costs
        one walk past what is left out, whatever the number of different demands. A payload of more than
        `LISTED_PAYLOAD_MAX` is empty, and is not even read."""

    async def list_session(self, tenant: Tenant, session: str) -> list[Job]:
        """All live jobs of a session, however many, in order of id: who interrupts it stops every one. With empty payloads,
        which are not even read."""

    async def find_busy(self, tenant: Tenant, session: str) -> Job | None:
        """A job that makes the session busy (`Job.makes_busy`), whichever it is; None: there is none. Does not read the
        others that do."""

    async def list_in_hand(self, *workers: str, bare: bool = False) -> list[Job]:
        """The jobs that are DISPATCHED to one of these workers or RUNNING there, in order of id. `bare`: with empty
        payloads, which are not even read."""

    async def list_recoverable(self, *, states: Collection[State], limit: int, after: str = "") -> Overdue:
        """Live jobs in these states that may need recovery: their `recovery.next_look` has come. Page by page, in an
        order of the store's own; `after` is where the page before ended. What a page costs does not grow with the
        jobs before it, nor with those in other states. Who changes meanwhile may be missed until pages begin anew.
        Payloads as in `list_dispatchable`."""

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        """Replace each job if the store still has `before`'s version; its payload stays, where both have the same. One
        answer per change: False, and nothing of that change happened, if the job has moved on. Independent of each
        other.

        The event, the delivery and the dead letter of a change are written in its transaction.
        A change to a terminal state ends the job's prepared effects as unknown, told of in the order of their
        keys; of a job that belongs to a run it leaves a `Kind.RESULT` record. A change to DISPATCHED is refused
        (False) while another job of the same tenant's `session` is DISPATCHED or RUNNING. A change that parks
        a job (`PARKED_UNTIL`) leaves it dispatchable if none of its effects awaits a person any more.
        """

    async def renew_leases(self, leases: Sequence[tuple[JobId, int]]) -> list[Job | None]:
        """(job, fence): extend by the lease of the job's topic, where RUNNING under that fence; else None. Goes first in its
        batch."""

    async def add_notes(self, notes: Sequence[Note]) -> None: ...

    async def transact(self, transactions: Sequence[Transaction]) -> list[bool]:
        """Each transaction wholly or not at all; they are independent of each other. False, and nothing
        of it happened, if a job or a record is not at the version it names, or a submission's key was
        used for something else, or one that is to be `alone` would not be, after the transaction's changes.
        A submission that repeats one which is there already changes nothing; where it was to be `alone`,
        nothing of its transaction happens, and the answer is True.

        Changes obey the rules of `apply`: where one is refused, so is its transaction. They may follow one
        another: the `before` of one is then the `after` of an earlier one, of the same job or record. They may
        also follow a submission, if that is new; what follows none comes before it.
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
        """Live jobs by tenant and topic. May read all of them: ask `flow.topic_counts`, which does so seldom."""

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
        self, tenant: Tenant, job_id: JobId, key: str, *, state: EffectState, result: bytes | None, note: str,
        records: Sequence[RecordChange] = (),
    ) -> Effect:  # fmt: skip
        """A person's word on an UNKNOWN effect: COMMITTED or ABSENT. Raises `Conflict` for any other state.

        Jobs that were parked for it (the job itself, or a replay of it) become dispatchable in the
        same transaction, and `records` are written in it. Raises `VersionMismatch`, and nothing
        happened, if one of those is not at the version it names.
        """

    async def list_effects(
        self,
        tenant: Tenant,
        *,
        state: EffectState | None = None,
        job_id: JobId | None = None,
        after: EffectPlace | None = None,
        limit: int = 100,
    ) -> list[Effect]:
        """By `EffectPlace`, those behind `after`."""

    # -- dead letters, workers ---------------------------------------------------------------------

    async def list_dead_letters(self, tenant: Tenant, *, before: int | None, limit: int) -> list[DeadLetter]: ...

    async def get_dead_letter(self, tenant: Tenant, number: int) -> DeadLetter: ...

    async def replay_dead_letter(self, tenant: Tenant, number: int, submission: Submission) -> Accepted:
        """Submit a dead letter's job anew, once: the same letter again gives the job of the first replay.

        Raises `VersionMismatch`, and nothing happened, if a record of the submission is not at the
        version it names.
        """

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
        that have ended by themselves (`core.record.ENDED`), and so do events that are neither of a job nor
        of a run, when they are as old.
        """

    async def pruned_until(self, tenant: Tenant | None = None) -> int:
        """The highest number of the events that `prune` has removed, of one tenant or of all; 0 if none."""
