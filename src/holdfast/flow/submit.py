"""Submit: from an order to a durable job. Acknowledged means: it will reach a terminal state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.decision import Decision
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.schema import request_digest
from holdfast.core.share import Quotas
from holdfast.core.states import Risk, State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import Conflict, HoldfastError, Invalid, KeyInFlight, KeyReused, TooMany
from holdfast.flow import give
from holdfast.flow.admission import Admission
from holdfast.flow.decide import Policy, rule_on
from holdfast.flow.gate import Asked, ask_approval
from holdfast.flow.give import Giver
from holdfast.flow.session import SessionPolicy, submit_in_session
from holdfast.flow.throttle import Throttles, rated
from holdfast.locks.runtime import Runtime
from holdfast.ports import Accepted, RecordChange, Store, Submission, Transaction
from holdfast.ports import KeyReused as Reused

NO_KEY = "\x1fnone"
"""No caller's key begins with a control character: there is no such record."""


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
    actor: str = ""
    session: str = ""
    session_policy: SessionPolicy = SessionPolicy.ENQUEUE
    run: str = ""
    step: str = ""
    """Of a run: which of its steps this is."""
    job_id: JobId | None = None
    """The id the job is to have, where somebody has to know it before; else it is given one."""

    def digest(self) -> str:
        """Of what makes the job what it is, however it was written: the same key with another digest is another
        request. It reads the whole payload: only for an order with a key."""
        limits = (self.max_attempts, self.delay_s, self.timeout_s)
        parts: list[Any] = [self.topic, self.labels, self.priority, self.risk, *limits]
        if self.session:
            parts += [self.session, self.session_policy]
        return request_digest([*parts, msgspec.json.decode(self.payload)])


class Ruled(NamedTuple):
    """A job, and the policy's word on it."""

    job: Job
    decision: Decision


class Admitted(NamedTuple):
    """A job that there is room for, as it is to be stored, and the policy's word on it."""

    submission: Submission
    decision: Decision


class Submitter:
    """Submits for all callers of one process, so that it knows which keys are in flight."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        policy: Policy,
        runtime: Runtime,
        *,
        live_jobs_max: int,
        quotas: Quotas | None = None,
        giver: Giver | None = None,
    ) -> None:
        self._store = store
        self._giver = giver
        self._topics = topics
        self._policy = policy
        self._runtime = runtime
        self.admission = Admission(store, topics, quotas or Quotas(), live_jobs_max=live_jobs_max)
        self._throttles = Throttles(store, runtime)
        self._in_flight: set[tuple[Tenant, str]] = set()

    async def submit(self, orders: Sequence[Order]) -> list[Accepted | HoldfastError]:
        """One answer per order; a bad one does not fail the others. Durable when it returns."""
        await self.admission.count()
        answers: list[Accepted | HoldfastError | None] = [None] * len(orders)
        admitted: dict[int, Admitted] = {}
        try:
            for n, ruled in (await self._rule_on_all(orders, answers)).items():
                try:
                    submission = _submission(orders[n], ruled.job)
                    self._admit(orders[n], ruled.job)
                except HoldfastError as error:
                    answers[n] = error
                else:
                    admitted[n] = Admitted(submission, ruled.decision)
            submissions = await self._keep_to_rates(admitted, answers)
            stored = await self._store_all([(orders[n], submission) for n, submission in submissions.items()])
        finally:
            for n in admitted:
                self._in_flight.discard((orders[n].tenant, orders[n].key or ""))
        for n, reply in zip(submissions, stored, strict=True):
            if isinstance(reply, Reused):
                answers[n] = KeyReused(f"this key was used for another request; it made job {reply.job_id}")
            else:
                answers[n] = reply
        await self.withdraw(
            submission.job
            for submission, reply in zip(submissions.values(), stored, strict=True)
            if not isinstance(reply, Accepted) or reply.repeated
        )
        too_many = {n for n, answer in enumerate(answers) if isinstance(answer, TooMany) and orders[n].key is not None}
        for n, repeated in (await self._find_repeated({n: orders[n] for n in sorted(too_many)})).items():
            answers[n] = repeated
        return [answer for answer in answers if answer is not None]

    async def _rule_on_all(
        self, orders: Sequence[Order], answers: list[Accepted | HoldfastError | None]
    ) -> dict[int, Ruled]:
        """What the policy says of those that are not answered by it, nor were before."""
        ruled: dict[int, Ruled] = {}
        for n, order in enumerate(orders):
            try:
                ruled[n] = self._rule_on(order)
            except HoldfastError as error:
                answers[n] = error
        # A repetition takes nothing from the rate that others keep to, so it is looked for before that is asked.
        counted = {n: orders[n] for n, (_, decision) in ruled.items() if rated(decision) and orders[n].key is not None}
        for n, repeated in (await self._find_repeated(counted)).items():
            answers[n] = repeated
            del ruled[n]
        return ruled

    async def _keep_to_rates(
        self, admitted: Mapping[int, Admitted], answers: list[Accepted | HoldfastError | None]
    ) -> dict[int, Submission]:
        """Those of them that do not come too early. Asked last: who is refused for something else takes nothing from a rate."""
        early = await self._throttles.admit([(one.submission.job.id, one.decision) for one in admitted.values()])
        submissions: dict[int, Submission] = {}
        for (n, (submission, _)), too_early in zip(admitted.items(), early, strict=True):
            if too_early is None:
                submissions[n] = submission
            else:
                answers[n] = too_early
                self.admission.withdrawn(submission.job)
        return submissions

    async def find_repeated(self, order: Order) -> Accepted | None:
        """What this order was answered with, if it was taken before under its key."""
        return (await self._find_repeated({0: order})).get(0)

    async def _find_repeated(self, orders: Mapping[int, Order]) -> dict[int, Accepted]:
        """Whoever repeats a request that was taken is given its answer again, also where another would be too many."""
        known = {n: self._again(order) for n, order in orders.items()}
        # Nothing is written of it. What repeats a submission is answered with True before anything else is asked.
        probes = [Transaction(submissions=[again], records=[_impossible(again.job)]) for again in known.values()]
        are_repeated = await self._store.transact(probes) if probes else []
        repeated = [n for n, yes in zip(known, are_repeated, strict=True) if yes]
        replies = await self._store.submit([known[n] for n in repeated]) if repeated else []
        return {n: reply for n, reply in zip(repeated, replies, strict=True) if isinstance(reply, Accepted)}

    def _again(self, order: Order) -> Submission:
        job = new_job(order, self._topics.get(order.topic), job_id=self._new_id(), now=self._store.now())
        return Submission(job=job, key=order.key, digest=order.digest(), alone=True)

    async def _store_all(self, wanted: Sequence[tuple[Order, Submission]]) -> list[Accepted | Reused | HoldfastError]:
        """Most of them in one go. Those that do something about their session come after it, one by one."""
        is_plain = [not order.session or order.session_policy is SessionPolicy.ENQUEUE for order, _ in wanted]
        plain = [submission for (_, submission), yes in zip(wanted, is_plain, strict=True) if yes]
        replies = iter(await self._store_plain(plain))
        stored: list[Accepted | Reused | HoldfastError] = []
        for (order, submission), yes in zip(wanted, is_plain, strict=True):
            if yes:
                stored.append(next(replies))
                continue
            try:
                stored.append(await submit_in_session(submission, order.session_policy, store=self._store))
            except (Conflict, KeyReused) as error:
                stored.append(error)
        return stored

    async def _store_plain(self, submissions: Sequence[Submission]) -> Sequence[Accepted | Reused]:
        if not submissions:
            return ()
        if self._giver is None:
            return await self._store.submit(submissions)
        return await give.submit(submissions, store=self._store, giver=self._giver)

    async def submit_one(self, order: Order) -> Accepted:
        [answer] = await self.submit([order])
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    async def prepare(self, order: Order) -> Submission:
        """The order of a run as a job to store, decided, and counted whether or not there is room for it: for a transaction of
        the caller's, who withdraws it if it is not written. Raises `Invalid` for a topic that is not declared or a payload
        that its schema does not take. Where the policy throttles it is not refused, but waits: nobody is there to come
        again, and together a step's jobs may be more than are ever taken."""
        job, decision = self._rule_on(order)
        job = replace(job, not_before=job.not_before + await self._throttles.reserve(job.id, decision))
        submission = _submission(order, job)
        self.admission.admitted(job)
        return submission

    def _rule_on(self, order: Order) -> Ruled:
        topic = self._topics.find(order.topic)
        if topic is None:
            raise Invalid(f"no topic {order.topic!r} is declared; declare it in the configuration")
        now = self._store.now()
        new = new_job(order, topic, job_id=order.job_id or self._new_id(), now=now)
        return Ruled(*rule_on(new, self._policy, now=now))

    async def admit(self, order: Order) -> Submission:
        """As `prepare`, of what is no run's, if the tenant may have one more. Raises `TooMany` also where the policy throttles."""
        await self.admission.count()
        job, decision = self._rule_on(order)
        submission = _submission(order, job)
        self.admission.check(job)
        self.admission.admitted(job)
        [too_early] = await self._throttles.admit([(job.id, decision)])
        if too_early is not None:
            self.admission.withdrawn(job)
            raise too_early
        return submission

    async def withdraw(self, jobs: Iterable[Job]) -> None:
        """They were prepared or admitted, and are certainly not stored: what they took of limits and rates is given back.
        Where nobody knows whether they are, limits are counted anew soon, and a rate has it again in its time."""
        withdrawn = list(jobs)
        for job in withdrawn:
            self.admission.withdrawn(job)
        await self._throttles.give_back(job.id for job in withdrawn)

    def _admit(self, order: Order, job: Job) -> None:
        self.admission.check(job)
        if order.key is not None:
            if (order.tenant, order.key) in self._in_flight:
                raise KeyInFlight("the first request with this key is still being stored; repeat this one")
            self._in_flight.add((order.tenant, order.key))
        self.admission.admitted(job)

    def _new_id(self) -> JobId:
        return JobId(new_id(self._runtime))


def _submission(order: Order, job: Job) -> Submission:
    asked = ask_approval(job, now=job.created_at) if job.state is State.APPROVAL_REQUIRED else Asked(job)
    # Only ever compared under a key.
    digest = order.digest() if order.key is not None else ""
    return Submission(job=asked.job, key=order.key, digest=digest, records=asked.records, notes=asked.notes)


def _impossible(job: Job) -> RecordChange:
    never = Record(kind=Kind.KEY, tenant=job.tenant, id=NO_KEY, created_at=job.created_at, body=b"")
    return RecordChange(after=never, replaces=1, remove=True)


def bound_payload(payload: bytes, topic: Topic) -> bytes:
    """The payload with the defaults of the topic's schema, if it has one. Raises `Invalid`."""
    if topic.schema is None:
        return payload
    value = msgspec.json.decode(payload)
    try:
        bound = topic.schema.bind(value)
    except Invalid as error:
        raise Invalid(f"the payload does not fit the schema of topic {topic.name}: {error}") from None
    return payload if bound == value else msgspec.json.encode(bound)


def new_job(order: Order, topic: Topic, *, job_id: JobId, now: float) -> Job:
    """Undecided. Raises `Invalid` where the topic's schema does not take the payload."""
    return Job(
        id=job_id,
        tenant=order.tenant,
        topic=order.topic,
        payload=bound_payload(order.payload, topic),
        labels=order.labels,
        priority=order.priority,
        # Whoever submits may be more careful than the topic, and less only where nobody called it risky.
        risk=Risk.HIGH if topic.risk is Risk.HIGH else order.risk or topic.risk,
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
        actor=order.actor,
        session=order.session,
        run=order.run,
        step=order.step,
    )


def new_id(runtime: Runtime) -> str:
    """Sorts by when it was made: cheap pages, and B-trees that grow at one end."""
    return f"{runtime.wall_us():014x}{runtime.token()[:18]}"
