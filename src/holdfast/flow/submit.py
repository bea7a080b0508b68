"""Submit: from an order to a durable job. Acknowledged means: it will reach a terminal state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.states import Risk, State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import HoldfastError, Invalid, KeyInFlight, KeyReused, TooMany
from holdfast.flow.decide import Policy, decided
from holdfast.locks.runtime import Runtime
from holdfast.ports import Accepted, Store, Submission
from holdfast.ports import KeyReused as Reused

COUNT_FRESH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a caller wants done. Limits that are None are the topic's."""

    tenant: Tenant
    topic: str
    payload: bytes
    labels: dict[str, str]
    priority: int = 0
    risk: Risk | None = None
    max_attempts: int | None = None
    delay_s: float = 0.0
    timeout_s: float | None = None
    key: str | None = None
    trace: str = ""
    replay_of: JobId | None = None

    def digest(self) -> str:
        """Of what makes the job what it is: the same key with another digest is another request."""
        parts = [
            self.topic,
            repr(sorted(self.labels.items())),
            str(self.priority),
            str(self.risk),
            str(self.max_attempts),
        ]
        hashed = hashlib.sha256("\0".join([*parts, str(self.delay_s), str(self.timeout_s), ""]).encode())
        hashed.update(self.payload)
        return hashed.hexdigest()


class Submitter:
    """Submits for all callers of one process, so that it knows which keys are in flight."""

    def __init__(self, store: Store, topics: Topics, policy: Policy, runtime: Runtime, *, live_jobs_max: int) -> None:
        self._store = store
        self._topics = topics
        self._policy = policy
        self._runtime = runtime
        self._live_jobs_max = live_jobs_max
        self._in_flight: set[tuple[Tenant, str]] = set()
        self._live: dict[Tenant, int] = {}
        self._counted_at = float("-inf")

    async def submit(self, orders: Sequence[Order]) -> list[Accepted | HoldfastError]:
        """One answer per order; a bad one does not fail the others. Durable when it returns."""
        await self._count()
        answers: list[Accepted | HoldfastError | None] = [None] * len(orders)
        submissions: dict[int, Submission] = {}
        for n, order in enumerate(orders):
            try:
                submissions[n] = self._admit(order)
            except HoldfastError as error:
                answers[n] = error
        try:
            stored = await self._store.submit(list(submissions.values())) if submissions else []
        finally:
            for n in submissions:
                self._in_flight.discard((orders[n].tenant, orders[n].key or ""))
        for (n, submission), reply in zip(submissions.items(), stored, strict=True):
            if isinstance(reply, Reused):
                answers[n] = KeyReused(f"this key was used for another request; it made job {reply.job_id}")
            else:
                answers[n] = reply
                self._live[submission.job.tenant] = self._live.get(submission.job.tenant, 0) + (not reply.repeated)
        return [answer for answer in answers if answer is not None]

    async def submit_one(self, order: Order) -> Accepted:
        [answer] = await self.submit([order])
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    def prepare(self, order: Order) -> Submission:
        """The order as a job to store, decided. Raises `Invalid` for a topic that is not declared."""
        topic = self._topics.find(order.topic)
        if topic is None:
            raise Invalid(f"no topic {order.topic!r} is declared; declare it in the configuration")
        now = self._store.now()
        job = decided(new_job(order, topic, job_id=self._new_id(), now=now), self._policy, now=now)
        # Only ever compared under a key.
        return Submission(job=job, key=order.key, digest=order.digest() if order.key is not None else "")

    def _admit(self, order: Order) -> Submission:
        submission = self.prepare(order)
        if self._live.get(order.tenant, 0) >= self._live_jobs_max:
            raise TooMany(f"the tenant has {self._live_jobs_max} unfinished jobs", retry_after_s=COUNT_FRESH_S)
        if order.key is not None:
            if (order.tenant, order.key) in self._in_flight:
                raise KeyInFlight("the first request with this key is still being stored; repeat this one")
            self._in_flight.add((order.tenant, order.key))
        return submission

    def _new_id(self) -> JobId:
        # Sorts by time of submission: cheap pages, and B-trees that grow at one end.
        return JobId(f"{self._runtime.wall_us():014x}{self._runtime.token()[:18]}")

    async def _count(self) -> None:
        now = self._store.now()
        if now - self._counted_at >= COUNT_FRESH_S:
            self._counted_at = now
            live: dict[Tenant, int] = {}
            for (tenant, _), count in (await self._store.count_jobs()).items():
                live[tenant] = live.get(tenant, 0) + count
            self._live = live


def new_job(order: Order, topic: Topic, *, job_id: JobId, now: float) -> Job:
    return Job(
        id=job_id,
        tenant=order.tenant,
        topic=order.topic,
        payload=order.payload,
        labels=order.labels,
        priority=order.priority,
        risk=order.risk or topic.risk,
        max_attempts=order.max_attempts or topic.max_attempts,
        created_at=now,
        deadline=None if order.timeout_s is None else now + order.timeout_s,
        state=State.PENDING,
        version=1,
        since=now,
        not_before=now + order.delay_s,
        attempts=0,
        schedulings=0,
        retries={},
        pool=topic.pool,
        worker="",
        fence=0,
        lease_until=0.0,
        cancel_requested=False,
        progress=None,
        result=None,
        error=None,
        replay_of=order.replay_of,
        trace=order.trace,
    )
