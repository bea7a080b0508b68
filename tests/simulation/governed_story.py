"""Policy, approvals, workflows, schedules, sessions and tenants in a hostile world: two planes over one store.

People approve and reject at once through both gateways, some of them late and some who may not; the
policy changes while approvals wait; runs are stopped and held up; schedules tick; engines are paused
and killed. Judged at the end, besides what holds for every job: W1 to W3, A1 to A3, R1, S2, T1, T2.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from flow import plane_invariants as invariants

from holdfast.config import Settings
from holdfast.core.advance import advance
from holdfast.core.approval import ApprovalState, bind, from_record
from holdfast.core.job import JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.run import Run, run_of, step_of
from holdfast.core.run_words import Advance, Draw, Needed
from holdfast.core.schedule import schedule_record
from holdfast.core.states import State
from holdfast.core.workflow import Definition
from holdfast.core.workflow_check import parse
from holdfast.flow.admission import LIVE
from holdfast.flow.advance import Advancer, TurnEnd
from holdfast.flow.decide import LivePolicy
from holdfast.flow.kept_locks import RUN
from holdfast.flow.policies import list_versions, publish
from holdfast.flow.workflows import Workflows
from holdfast.gateway.routes import ROUTES
from holdfast.locks import LockClass
from holdfast.ports import Change, JobEvent, RecordChange, Transaction
from holdfast.wiring import Wiring
from holdfast.worker import Job
from simulation import governed_checks as checks
from simulation import governed_rules as rules
from simulation.governed_checks import Facts
from simulation.governed_people import Customers, Deciders, GovernedWorker, Order, Word
from simulation.plane_link import StoreLink
from simulation.plane_story import TOPICS, PlaneStory
from simulation.world import here

CALM_STORIES = 0.2
"""In so many of them nothing goes wrong: there the share of each tenant is judged."""
LOCKLESS_STORIES = 0.15
"""In so many of them the lock of a run excludes nobody: versions must."""
ALL = 10_000
SERVED = tuple(
    route
    for route in ROUTES
    if route.method == "POST"
    and route.path.startswith(("/v1/jobs", "/v1/work/", "/v1/runs", "/v1/approvals", "/v1/policy:publish"))
)
SHORT_RUN = LockClass(
    RUN.name, ttl=3, renew_every=1, wait=2, local_mutex=True, risk=RUN.risk, key_prefix=RUN.key_prefix
)
"""The lock of a run, which an engine that is paused loses within a story."""


class GovernedStory(PlaneStory):
    served = SERVED
    sizes = ((0, 6.0),)
    """Its customers say what they want."""

    def __init__(self, seed: int, *, without: frozenset[int] = frozenset()) -> None:
        super().__init__(seed, without=without)
        self.calm = self.world.chance.random() < CALM_STORIES
        self.settings = Settings(
            store="sqlite:///:memory:",
            topics=TOPICS,
            tenants=rules.QUOTAS,
            # An engine that goes on without its lock must be stopped by what is in the store alone.
            run_renewal_failure=self.world.chance.choice(("fence", "continue")),
        )
        self.lockless = self.world.chance.random() < LOCKLESS_STORIES
        self.customers = Customers(self, "customers")
        self.workers = [GovernedWorker(self, f"worker{n}") for n in range(2)]
        self.nodes = [*self.planes, *self.workers, self.customers, Deciders(self, "deciders")]
        self.words: list[Word] = []
        self.started: list[str] = []
        """Runs that were acknowledged."""
        self.effects: Counter[tuple[str, str]] = Counter()
        """Payments by run and step."""
        self.in_use: dict[str, int] = {}
        """The version of the policy that each plane decides by."""
        self.sent_under: dict[tuple[JobId, int], int] = {}
        """The version of the policy that the plane used which sent a dispatch, by job and fence."""
        self.in_doubt = 0
        """Dispatches for a tenant with a quota that a plane sent and was not told of."""
        self._last: dict[tuple[Kind, str], Record] = {}
        self._set_up()

    def _set_up(self) -> None:
        self.ask(publish, rules.policy(quorum=1), store=self.jobs)
        for tenant in rules.TENANTS:
            for definition in _definitions():
                self.ask(Workflows(self.jobs).apply, tenant, definition)
        made = [RecordChange(after=schedule_record(one), replaces=0) for one in rules.schedules(self.jobs.now())]
        self.ask(self.jobs.transact, [Transaction(records=made)])
        self.jobs.subscribe(self._committed)
        self.world.after(self.rage_s + 0.1, self._end_schedules)

    def _end_schedules(self) -> None:
        for record in self._list(Kind.SCHEDULE):
            change = RecordChange(after=record, replaces=record.version, remove=True)
            self.ask(self.jobs.transact, [Transaction(records=[change])])

    def _stand_ins(self) -> dict[str, Any]:
        useless = {"holdfast.flow.kept_locks.KeptLocks._lease": no_lock} if self.lockless else {}
        inherited = super()._stand_ins()
        return (
            inherited
            | useless
            | {
                "holdfast.app.open_store": lambda *_, **__: GovernedLink(self, here()),
                "holdfast.wiring.Wiring.services": Wiring.services,
                "holdfast.wiring.RUN": SHORT_RUN,
                "holdfast.app.CLASSES": tuple(
                    SHORT_RUN if one is RUN else one for one in inherited["holdfast.app.CLASSES"]
                ),
                "holdfast.flow.decide.LivePolicy.use": self._using(LivePolicy.use),
                "holdfast.flow.advance.Advancer.advance": self._counting(Advancer.advance),
                "holdfast.flow.run_draft.advance": self._advance_twice,
                "holdfast.telemetry.Telemetry.run_write_refused": lambda _, __, *, reason: self.reached.update(
                    [reason]
                ),
                # Here it is they that matter: as often as in life, or nearly.
                "holdfast.approvals.POLL_S": 1.0,
                "holdfast.timetable.POLL_S": 1.0,
                "holdfast.workflow_engine.POLL_S": 1.0,
                "holdfast.workflow_engine.BUSY_S": 0.4,
                "holdfast.workflow_engine.RECONCILE_S": 2.0,
                "holdfast.flow.kept_locks.IDLE_S": 0.2,
            }
        )

    # -- what is seen on the way -----------------------------------------------------------------------

    def acknowledge(self, order: Order | None, made: str) -> None:
        self.world.tell("customers", f"{order.key if order else 'one of many'} is acknowledged as {made}")
        if order is not None and order.path == "/v1/runs":
            self.started.append(made)
        else:
            self.acknowledged.append((JobId(made), self.commits()))

    def check_allowed(self, job: Job) -> None:
        """A2: what begins has the approval that it needs, for these very arguments. Asked as the handler is entered."""
        [stored] = self.ask(self.jobs.find_jobs, [JobId(job.id)])
        if job.topic != "pay" or (stored.state, stored.fence) != (State.RUNNING, job.fence):
            return
        approval = None
        if stored.approval:
            approval = from_record(self.ask(self.jobs.get_record, Kind.APPROVAL, stored.tenant, stored.approval))
        if approval is None:
            if job.payload["amount"] > rules.LARGE:
                self.broke(f"A2: {job.id} runs without an approval")
            return
        if (approval.state, approval.consumed_by_fence) != (ApprovalState.CONSUMED, job.fence):
            self.broke(f"A2: {job.id} runs under fence {job.fence} on {approval.id}, which is {approval.state}")
        shown = bind(tenant=stored.tenant, tool=job.topic, arguments=job.payload, policy=approval.policy)
        if approval.digest != shown:
            self.broke(f"A2: {job.id} runs with other arguments than those approved")

    async def pay(self, job_id: str, fence: int) -> bool:
        [job] = self.ask(self.jobs.find_jobs, [JobId(job_id)])
        if job.run:
            self.effects[job.run, job.step] += 1
            if self.effects[job.run, job.step] > 1:
                self.broke(f"W1: step {job.step} of run {job.run} has paid twice")
        return await super().pay(job_id, fence)

    def _committed(self, events: Sequence[JobEvent]) -> None:
        """Look at each run and approval that something was written about."""
        for event in events:
            if event.run:
                self._look(Kind.RUN, event.tenant, event.run)
            if isinstance(approval := event.detail.get("approval"), str):
                self._look(Kind.APPROVAL, event.tenant, approval)

    def _look(self, kind: Kind, tenant: Tenant, name: str) -> None:
        [record] = self.ask(self.jobs.find_records, kind, tenant, [name])
        if record is None:
            return
        before = self._last.get((kind, name))
        wrong = "" if before is None else checks.why_not_after(before, record)
        if wrong:
            self.broke(wrong)
        self._last[kind, name] = record

    def _using(self, use: Callable[..., None]) -> Callable[..., None]:
        def wrapped(policy: LivePolicy, book: Any, *, now: float) -> None:
            self.in_use[here().name] = book.version
            use(policy, book, now=now)

        return wrapped

    def _counting(self, take_turns: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(advancer: Advancer, turns: Any) -> Any:
            ends = await take_turns(advancer, turns)
            self.reached["a result met a busy run"] += ends.count(TurnEnd.LEFT)
            return ends

        return wrapped

    def _advance_twice(self, *args: Any, draw: Draw, **options: Any) -> Advance | Needed:
        """W3: from the same history follow the same commands."""
        drawn: list[Any] = []

        def keep(value: Any) -> Any:
            drawn.append(value)
            return value

        first = advance(*args, draw=Draw(lambda: keep(draw.chance()), lambda: keep(draw.new_id())), **options)
        again = iter(drawn)
        if advance(*args, draw=Draw(lambda: next(again), lambda: next(again)), **options) != first:
            self.broke("W3: told the same, a run wants something else the second time")
        return first

    def state_of(self, tenant: Tenant, run: str) -> str:
        return self.get_run(tenant, run).state

    def get_run(self, tenant: Tenant, run: str) -> Run:
        return run_of(self.ask(self.jobs.get_record, Kind.RUN, tenant, run))

    # -- the end ---------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        if not self.customers.answered_all or self.ask(self.jobs.count_jobs):
            return False
        live = [
            self.ask(self.jobs.count_records, kind, tenant, states=states)
            for kind, states in ((Kind.RUN, LIVE), (Kind.APPROVAL, ["pending"]))
            for tenant in rules.TENANTS
        ]
        return not any(live) and not self._list(Kind.RESULT)

    def judge(self) -> None:
        seen, jobs = self.look_back()
        facts = self._facts(jobs)
        for name in sorted(checks.reached(facts, self.words)):
            self.reached[name] += 1
        for check in (
            checks.check_runs,
            checks.check_undone,
            checks.check_in_time,
            checks.check_ticks,
            checks.check_sessions,
        ):
            check(facts)
        checks.check_answers(facts, self.words)
        checks.check_read(facts, self.words)
        checks.check_used(facts, self.sent_under)
        checks.check_quota(facts, in_doubt=self.in_doubt)
        if self.calm:
            checks.check_share(facts)
        waiting = [run.id for run in facts.runs.values() if not run.is_terminal]
        assert not waiting, f"J8: runs that have not ended: {waiting}"
        left = [record.id for record in self._list(Kind.RESULT)]
        assert not left, f"W1: results that nobody took: {left}"
        checks.check_gone(facts)
        invariants.check_no_loss(seen, jobs)
        self._check_orders(facts)

    def _check_orders(self, facts: Facts) -> None:
        """J4, J8: each order is answered, and has become one job or one run."""
        assert self.customers.answered_all, "J8: customers are still waiting for an answer"
        made = {job.id for job in facts.jobs.values() if not job.run and "schedule" not in job.labels}
        known = [job_id for job_id, _ in self.acknowledged]
        assert len(set(known)) == len(known), "J4: two orders became one job"
        # Whoever was told that the session is busy did not wait for an earlier request that was still on its way.
        assert set(known) <= made, f"J4: acknowledged, and not there: {set(known) - made}"
        assert len(made) <= self.customers.jobs_wanted, (
            f"J4: {self.customers.jobs_wanted} orders became {len(made)} jobs"
        )
        runs = [run.id for run in facts.runs.values() if not run.parent_run and "schedule" not in run.labels]
        assert sorted(runs) == sorted(self.started), f"J4: acknowledged were {self.started}, and there are {runs}"
        for job in facts.jobs.values():
            if job.topic in ("pay", "refund") and job.state is State.SUCCEEDED:
                assert self.paid[job.id] == 1, f"P9: {job.id} has succeeded and was paid {self.paid[job.id]} times"

    def _facts(self, jobs: Iterable[Any]) -> Facts:
        versions = self.ask(list_versions, self.jobs, before=None, limit=100)
        return Facts(
            events=self.events,
            jobs={job.id: job for job in jobs},
            runs={record.id: run_of(record) for record in self._list(Kind.RUN)},
            steps=[step_of(record) for record in self._list(Kind.STEP)],
            approvals={record.id: from_record(record) for record in self._list(Kind.APPROVAL)},
            keys=self._list(Kind.KEY),
            quorums={version.number: rules.quorum_of(version.document) for version in versions},
        )

    def _list(self, kind: Kind) -> list[Record]:
        return [
            record for tenant in rules.TENANTS for record in self.ask(self.jobs.list_records, kind, tenant, limit=ALL)
        ]


class GovernedLink(StoreLink):
    """Sees under which policy a plane sends its dispatches, and of which ones it never hears again."""

    _story: GovernedStory

    async def _carry(self, name: str, verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
        story, sent = self._story, _dispatches(name, args)
        for change in sent:
            story.sent_under[change.after.id, change.after.fence] = story.in_use.get(self._process.name, 0)
        doubtful = sum(change.after.tenant == rules.GLOBEX for change in sent)
        story.in_doubt += doubtful
        answer = await super()._carry(name, verb, *args, **options)
        story.in_doubt -= doubtful
        return answer


def _dispatches(verb: str, args: Sequence[Any]) -> list[Change]:
    changes: Iterable[Change] = ()
    if verb == "apply":
        changes = args[0]
    elif verb == "transact":
        changes = (change for transaction in args[0] for change in transaction.changes)
    return [change for change in changes if change.after.state is State.DISPATCHED]


async def no_lock(*_: Any) -> Any:
    """Everybody gets it, whoever has it."""
    return SimpleNamespace(fence=1)


@functools.cache
def _definitions() -> list[Definition]:
    return [parse(json.dumps(definition)) for definition in rules.WORKFLOWS.values()]
