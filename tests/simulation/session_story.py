"""Sessions of runs in a hostile world: runs that wait for each other, turn each other away and stop each other.

As a governed story, with nothing in it but that: two planes over one store, and customers whose runs collide while
engines are paused and killed. Each session is looked at after every commit. Judged at the end, besides what
holds for every job and every run: S3 and S4.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flow import plane_invariants as invariants

from holdfast.core.job import Tenant
from holdfast.core.record import Kind
from holdfast.core.run import RUN_TERMINAL, Run, run_of
from holdfast.core.run_result import About
from holdfast.core.workflow import Definition
from holdfast.core.workflow_check import parse
from holdfast.errors import SessionBusy
from holdfast.flow.kept_locks import ADMISSION
from holdfast.flow.runs import Runs
from holdfast.flow.workflows import Workflows
from holdfast.locks import LockClass
from holdfast.ports import JobEvent, Transaction
from simulation import governed_checks, session_checks
from simulation import governed_rules as rules
from simulation.governed_checks import Facts
from simulation.governed_people import Customers, Order, Speaker
from simulation.governed_rules import ACME
from simulation.governed_story import GovernedLink, GovernedStory
from simulation.network import MIXES
from simulation.world import here

SELDOM = 0.2
"""As often as elsewhere messages go wrong: a run needs many of them, and few would come to their turn before it is calm."""
LOCKLESS_STORIES = 0.4
"""In so many of them no lock keeps two planes from starting runs of a tenant at once, or an engine from a run."""
SOON_S = 4.0
"""In half of them runs of which nothing was heard for so long are looked at; in life that is minutes, and would mend too late
here what was forgotten."""
SESSIONS = ("chat", "chat", "chat", "desk")
POLICIES = ("enqueue", "enqueue", "enqueue", "reject", "interrupt", "rollback")
ERRANDS = ("errand", "errand", "errand", "outing", "blink")
SHORT_ADMISSION = LockClass(ADMISSION.name, ttl=1.5, renew_every=0, wait=2, key_prefix=ADMISSION.key_prefix)
"""Free again within a story when its plane was killed."""
RUNS = 7
COME_WITHIN_S = 3.0
KILLS = 0.15
"""Of the starts and ends of runs that are written while it rages, so many are the last that their plane did."""
DOWN_S = 1.0


class SessionStory(GovernedStory):
    sizes = ((0, 8.0),)
    mixes = tuple(mix.thinned(SELDOM) for mix in MIXES)

    def __init__(self, seed: int, *, without: frozenset[int] = frozenset()) -> None:
        super().__init__(seed, without=without)
        self.lockless = self.world.chance.random() < LOCKLESS_STORIES
        self.looks_soon = self.world.chance.random() < 0.5
        self.customers = SessionCustomers(self, "customers")
        self.nodes = [*self.planes, *self.workers, self.customers]
        self.accepted: dict[str, int] = {}
        """When each run with a seat came, or came again: the number of that event."""
        self.turned_away: list[str] = []
        """Runs that were to be started, and found their session busy."""

    def _set_up(self) -> None:
        for definition in _definitions():
            self.ask(Workflows(self.jobs).apply, ACME, definition)
        self.jobs.subscribe(self._committed)

    def _stand_ins(self) -> dict[str, Any]:
        soon = ("holdfast.core.run_turn.LOOK_S", "holdfast.core.run_recovery.LOOK_S") if self.looks_soon else ()
        inherited = super()._stand_ins()
        classes = tuple(SHORT_ADMISSION if one is ADMISSION else one for one in inherited["holdfast.app.CLASSES"])
        return (
            inherited
            | dict.fromkeys(soon, SOON_S)
            | {
                "holdfast.app.open_store": lambda *_, **__: SessionLink(self, here()),
                "holdfast.flow.runs.Runs._draft": self._seeing_away(Runs._draft),
                "holdfast.wiring.ADMISSION": SHORT_ADMISSION,
                "holdfast.app.CLASSES": classes,
            }
        )

    def _seeing_away(self, draft: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(runs: Runs, applicant: Any) -> Any:
            try:
                return await draft(runs, applicant)
            except SessionBusy:
                self.turned_away.append(applicant.new.id)
                raise

        return wrapped

    # -- what is seen on the way -----------------------------------------------------------------------

    def _committed(self, events: Sequence[JobEvent]) -> None:
        super()._committed(events)
        came = []
        for event in events:
            if event.kind in ("run.started", "run.rerun") and not self._run(event.run).parent_run:
                self.accepted[event.run] = event.number
                came.append(event.run)
        if any(event.run for event in events):
            live = self._find_live()
            for wrong in session_checks.find_side_by_side(live.values()):
                self.broke(wrong)
            for run in came:
                self._check_told(run, live)

    def _check_told(self, newcomer: str, live: dict[str, Run]) -> None:
        """S4: where one comes that does not wait for others to end as they like, they were told to stop, or turn it away."""
        run = self._run(newcomer)
        if run.generation or run.labels["policy"] == "enqueue":
            return
        ahead = [
            one
            for one in live.values()
            if one.session == run.session and self.accepted[one.id] < self.accepted[newcomer] and not one.ending
        ]
        told = [record.parent for record in self._list(Kind.RESULT) if record.state == About.CANCEL]
        untold = [one.id for one in ahead if one.id not in told]
        if untold:
            self.broke(f"S4: {newcomer} came to {run.labels['policy']} others, and {untold} were not told")

    def _run(self, name: str) -> Run:
        return run_of(self._last[Kind.RUN, name])

    def _find_live(self) -> dict[str, Run]:
        """All at one moment: what was told of one commit may be older than another."""
        records = self.ask(self.jobs.find_records, Kind.RUN, ACME, list(self.accepted))
        runs = [run_of(record) for record in records if record.state not in RUN_TERMINAL]
        return {run.id: run for run in runs}

    # -- the end ---------------------------------------------------------------------------------------

    def judge(self) -> None:
        seen, jobs = self.look_back()
        facts = self._facts(jobs)
        for name in sorted(session_checks.reached(facts)):
            self.reached[name] += 1
        session_checks.check_turns(facts)
        session_checks.check_stopped(facts)
        session_checks.check_undone(facts)
        session_checks.check_turned_away(facts, self.turned_away)
        session_checks.check_ended(facts, self._list(Kind.SESSION))
        governed_checks.check_runs(_never_run_again(facts))
        governed_checks.check_sessions(facts)
        left = [record.id for record in self._list(Kind.RESULT)]
        assert not left, f"W1: results that nobody took: {left}"
        invariants.check_no_loss(seen, jobs)
        self._check_orders(facts)

    def _check_orders(self, facts: Facts) -> None:
        """J4, J8: each order is answered, and what was acknowledged is there, once."""
        assert self.customers.answered_all, "J8: customers are still waiting for an answer"
        orders = [run.labels["order"] for run in facts.runs.values() if not run.parent_run]
        assert len(set(orders)) == len(orders), f"J4: an order became two runs: {sorted(orders)}"
        missing = set(self.started) - set(facts.runs)
        assert not missing, f"J8: acknowledged, and not there: {missing}"


class SessionLink(GovernedLink):
    """Where a plane may end between the commit that starts or ends a run and whatever it would do next."""

    _story: SessionStory

    async def _carry(self, name: str, verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
        answer = await super()._carry(name, verb, *args, **options)
        story = self._story
        if name == "transact" and story.is_raging and _moves_a_session(args[0]):
            node = next(node for node in story.planes if node.name == self._process.name)
            if story.world.chance.random() < KILLS and story.network.inject(f"kill {node.name} behind its commit"):
                story.reached["a plane ended behind its commit"] += 1
                story.world.after(0.0, lambda: node.kill(DOWN_S))
                await asyncio.Event().wait()
        return answer


def _moves_a_session(transactions: Sequence[Transaction]) -> bool:
    return any(change.after.kind is Kind.SESSION for one in transactions for change in one.records)


@dataclass
class SessionCustomers(Customers):
    """They start runs of a few sessions with every policy, and stop some, hold some up and run some again."""

    async def live(self) -> None:
        chance = self.story.world.chance
        orders = self._orders()
        self.wanted = len(orders)
        async with asyncio.TaskGroup() as group:
            for order in orders:
                group.create_task(self._order(order, chance.uniform(0.0, COME_WITHIN_S)))

    def _orders(self) -> list[Order]:
        chance = self.story.world.chance
        orders = []
        for n in range(RUNS):
            how = chance.choice(POLICIES)
            run = {
                "workflow": chance.choice(ERRANDS),
                "input": {"fails": chance.random() < 0.2},
                "session": chance.choice(SESSIONS),
                "session_policy": how,
                "labels": {"order": f"run-{n}", "policy": how},
            }
            orders.append(Order(ACME, "/v1/runs", run, f"run-{n}"))
        # Jobs of a session wait for those of its runs, which wait for them.
        orders.append(Order(ACME, "/v1/jobs", {"topic": "turn", "session": "chat"}, "turn"))
        return orders

    async def _meddle(self, speaker: Speaker, tenant: Tenant, run: str) -> None:
        """Stop some and hold some up; run some again when they have ended, and some as soon as they could be stopped."""
        chance = self.story.world.chance
        fate = chance.random()
        if fate < 0.5:
            await super()._meddle(speaker, tenant, run)
            return
        if fate < 0.8:
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            await speaker.insist(tenant, f"/v1/runs/{run}:cancel", {"compensate": False})
        while self.story.state_of(tenant, run) not in RUN_TERMINAL:
            await asyncio.sleep(chance.uniform(0.05, 0.5))
        step = rules.SESSION_WORKFLOWS[self.story.get_run(tenant, run).workflow]["steps"][0]["id"]
        await speaker.insist(tenant, f"/v1/runs/{run}:rerun", {"step": step})


def _never_run_again(facts: Facts) -> Facts:
    """Of the others a step may begin once more."""
    roots = session_checks.roots(facts.runs)
    once = {run.id for run in facts.runs.values() if not facts.runs[roots[run.id]].generation}
    return replace(
        facts,
        events=[event for event in facts.events if event.run in once],
        jobs={job.id: job for job in facts.jobs.values() if job.run in once},
        runs={name: run for name, run in facts.runs.items() if name in once},
    )


@functools.cache
def _definitions() -> list[Definition]:
    return [parse(json.dumps(definition)) for definition in rules.SESSION_WORKFLOWS.values()]
