"""Explain: gather what bears on one job, lock, approval or worker, and say why it is as it is.

Reads only, and a bounded number of times. What it reads may change meanwhile: an explanation is of a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.approval import Approval
from holdfast.core.attempts import REFUSED, Attempt, attempts_of
from holdfast.core.effect import Effect
from holdfast.core.freeze import frozen_by
from holdfast.core.job import PARKED_UNTIL, Job, JobId, Tenant
from holdfast.core.placement import WorkerView, condition
from holdfast.core.share import Quotas, limit_of
from holdfast.core.states import EffectState, State
from holdfast.core.topic import Topics
from holdfast.core.why import Finding
from holdfast.core.why_approval import why_approval
from holdfast.core.why_facts import Ahead, ApprovalFacts, JobFacts, LockFacts, WorkerFacts
from holdfast.core.why_job import why_job
from holdfast.core.why_lock import why_lock
from holdfast.core.why_worker import why_worker
from holdfast.errors import NotFound
from holdfast.flow.dispatch import JOB
from holdfast.flow.freeze import list_freezes
from holdfast.flow.gate import find_approvals
from holdfast.locks import Locks, UndeclaredClass
from holdfast.ports import DeadLetter, JobEvent, Store

LINE_MAX = 200
"""So much of the line of waiting jobs is looked at."""
EVENTS_PAGE = 1000
EVENTS_MAX = 10_000
LETTERS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    subject: str
    """job, run, lock, approval, worker."""
    id: str
    state: str
    at: float
    findings: Sequence[Finding]
    """The cause first."""
    attempts: Sequence[Attempt] = ()
    """Of a job."""


class Explainer:
    def __init__(
        self,
        *,
        store: Store,
        locks: Locks,
        topics: Topics,
        quotas: Quotas,
        workers: Callable[[], Sequence[WorkerView]],
        is_claiming: Callable[[str], bool],
        is_gone: Callable[[str], bool],
        silent_s: float,
    ) -> None:
        """`is_claiming` says of a worker whether it waits for deliveries at this moment, `is_gone` of a holder
        of locks whether its process is known to run no more."""
        self._store = store
        self._locks = locks
        self._topics = topics
        self._quotas = quotas
        self._workers = workers
        self._is_claiming = is_claiming
        self._is_gone = is_gone
        self._silent_s = silent_s

    async def job(self, tenant: Tenant, job_id: JobId) -> Explanation:
        """Raises `NotFound`."""
        job = await self._store.get_job(tenant, job_id)
        facts = await self._job_facts(job)
        return Explanation(
            subject="job",
            id=job.id,
            state=job.state,
            at=facts.now,
            findings=why_job(facts),
            attempts=facts.attempts,
        )

    async def approval(self, tenant: Tenant, approval: Approval) -> Explanation:
        [job] = await self._store.find_jobs([approval.job_id]) if approval.job_id else [None]
        waits = job is not None and job.tenant == tenant and not job.is_terminal
        cause = why_job(await self._job_facts(job))[0] if job is not None and waits else None
        facts = ApprovalFacts(approval=approval, now=self._store.now(), job=job, cause=cause)
        return Explanation(
            subject="approval", id=approval.id, state=approval.state, at=facts.now, findings=why_approval(facts)
        )

    async def lock(self, key: str) -> Explanation:
        """Raises `NotFound` for a key that no class declares: such a lock is nobody's business here."""
        try:
            lock_class, item = self._locks.named(key)
        except UndeclaredClass:
            raise NotFound(f"no lock class of this plane declares {key!r}") from None
        holder = await self._locks.inspect(lock_class.name, item)
        facts = LockFacts(
            key=key,
            lock_class=lock_class,
            now=self._store.now(),
            holder=holder,
            history=await self._locks.history(lock_class.name, item),
            is_holder_gone=holder is not None and self._is_gone(holder.holder),
        )
        state = "free" if holder is None else "held"
        return Explanation(subject="lock", id=key, state=state, at=facts.now, findings=why_lock(facts))

    async def worker(self, tenant: Tenant, worker_id: str) -> Explanation:
        """As the tenant may see it. Raises `NotFound`."""
        view = next((view for view in self._workers() if view.id == worker_id), None)
        if view is None:
            raise NotFound(f"worker {worker_id!r} is not known")
        now = self._store.now()
        facts = WorkerFacts(
            worker=view,
            tenant=tenant,
            now=now,
            alive_since=now - self._silent_s,
            in_hand=await self._store.list_in_hand(worker_id, bare=True),
            waiting=await self._store.list_dispatchable(limit=LINE_MAX),
            is_claiming=self._is_claiming(worker_id),
        )
        state = condition(view, alive_since=facts.alive_since)
        return Explanation(subject="worker", id=worker_id, state=state, at=now, findings=why_worker(facts))

    async def cause_of(self, tenant: Tenant, job_id: JobId) -> Finding | None:
        """The first finding about a job; None if it is not there."""
        [job] = await self._store.find_jobs([job_id])
        if job is None or job.tenant != tenant:
            return None
        return why_job(await self._job_facts(job))[0]

    # -- gathering ---------------------------------------------------------------------------------

    async def _job_facts(self, job: Job) -> JobFacts:
        now, topic = self._store.now(), self._topics.get(job.topic)
        events = await self._events(job)
        moved = [event for event in events if event.kind not in REFUSED and event.state is job.state]
        approvals = await find_approvals([job], store=self._store)
        letter = await self._dead_letter(job)
        return JobFacts(
            job=job,
            topic=topic,
            now=now,
            alive_since=now - self._silent_s,
            workers=self._workers(),
            attempts=attempts_of(events),
            last_kind=next((event.kind for event in reversed(moved) if event.kind in _MOVES), ""),
            last_code=next((_code(event.detail) for event in reversed(moved) if event.kind in _MOVES), ""),
            approval=approvals.get(job.approval),
            is_claiming=self._is_claiming(job.worker),
            in_hand=await self._store.list_in_hand(job.worker, bare=True) if job.state is State.DISPATCHED else (),
            dead_letter=None if letter is None else letter.number,
            replayed_as=None if letter is None else letter.replayed_as,
            effects=await self._effects(job),
            **(await self._scheduled(job) if job.state is State.SCHEDULED else {}),
        )

    async def _scheduled(self, job: Job) -> dict[str, Any]:
        """What stands between a scheduled job and a worker."""
        store, quota = self._store, self._quotas.of(job.tenant)
        counts = quota.running_max or self._topics.get(job.topic).running_max or limit_of(job)
        return {
            "quota": quota,
            "freeze": frozen_by(await list_freezes(store=store), now=store.now()).find(job.tenant, job.topic),
            "session": await store.list_session(job.tenant, job.session) if job.session else (),
            "active": await store.count_active() if counts else {},
            "ahead": _ahead(job, await store.list_dispatchable(limit=LINE_MAX)),
            "lock": await self._locks.inspect(JOB.name, job.id),
        }

    async def _effects(self, job: Job) -> list[Effect]:
        """Those that await a person, where they keep the job or are what it has left behind."""
        if not job.is_terminal and job.not_before < PARKED_UNTIL:
            return []
        return await self._store.list_effects(job.tenant, state=EffectState.UNKNOWN, job_id=job.origin)

    async def _events(self, job: Job) -> list[JobEvent]:
        events: list[JobEvent] = []
        while len(events) < EVENTS_MAX:
            after = events[-1].number if events else 0
            page = await self._store.list_events(after=after, limit=EVENTS_PAGE, job_id=job.id)
            events += page
            if len(page) < EVENTS_PAGE:
                break
        return events

    async def _dead_letter(self, job: Job) -> DeadLetter | None:
        """Of the newest ones, the job's."""
        if job.state not in (State.FAILED, State.TIMEOUT):
            return None
        newest = await self._store.list_dead_letters(job.tenant, before=None, limit=LETTERS_MAX)
        return next((letter for letter in newest if letter.job_id == job.id), None)


_MOVES = frozenset({"dispatch.rolled_back", "job.retried", "job.lost", "job.requeued", "job.handed_back"})
"""Events that bring a job back to SCHEDULED."""


def _code(detail: dict[str, Any]) -> str:
    error = detail.get("error")
    return str(error.get("code", "")) if isinstance(error, dict) else str(error or detail.get("reason", ""))


def _ahead(job: Job, line: Sequence[Job]) -> Ahead:
    """Those of the line that come before the job and want workers of the same pool."""
    ids = [other.id for other in line]
    place = ids.index(job.id) if job.id in ids else len(ids)
    before = [other for other in line[:place] if other.pool == job.pool]
    return Ahead(
        jobs=len(before),
        own=sum(other.tenant == job.tenant for other in before),
        urgent=sum(other.priority > job.priority for other in before),
        more=place == LINE_MAX,
    )
