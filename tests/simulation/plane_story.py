"""The control plane in a hostile world: two planes, workers, people, one store; in half of the stories a
bus of its own.

Everything is the product's: the wiring of `holdfast.app`, the gateway with its routes, the workers'
supervisor and keeper. Judged at the end: J1 to J11, P9 (nothing is paid twice), U1, H1.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any, cast

from flow import plane_invariants as invariants
from flow.watched_bus import Seen
from starlette.routing import compile_path

from holdfast.buses.detached import DetachedBus
from holdfast.config import Settings
from holdfast.core.job import Job as StoredJob
from holdfast.core.job import JobId, Tenant
from holdfast.core.retry import Backoff
from holdfast.core.states import TERMINAL, Risk, State
from holdfast.core.topic import Topic, Topics
from holdfast.flow.dispatch import JOB
from holdfast.gateway.routes import ROUTES
from holdfast.locks import LockClass
from holdfast.locks.stores import open_store as open_lock_store
from holdfast.loops import Loop
from holdfast.ports import Delivery, JobEvent
from holdfast.stores import open_store
from holdfast.telemetry import Telemetry
from holdfast.wiring import CLASSES, Wiring
from holdfast.worker.identity import Identity
from simulation.full_disk import Disk
from simulation.job_history import Log
from simulation.lock_link import LinkedStore, Markers, Witness, let_go_of
from simulation.nemesis import Nemesis
from simulation.network import MIXES, Mix
from simulation.plane_link import DeadManSwitch, PlaneAddress, StoreLink
from simulation.plane_nodes import LEASE_S, Node, People, PlaneNode, WorkerNode
from simulation.stand_ins import standing_in
from simulation.world import here

SIZES = (*12 * [(1, 4.0)], *7 * [(2, 4.0)], *4 * [(3, 4.0)], (6, 7.0))
"""How many jobs there are, and for how long it rages. Small stories find no less in the same time, and are soon
understood; some are large, for what only a crowd can do."""
CALM_S = 100.0
"""At most; a story ends as soon as every job has."""
TOPICS = Topics(
    (
        Topic(
            name="*",
            lease_s=LEASE_S,
            dispatch_timeout_s=3.0,
            running_timeout_s=30.0,
            max_attempts=50,
            backoff=Backoff(first_s=0.5, cap_s=2.0),
            risk=Risk.HIGH,
        ),
    )
)

SHORT_JOB = LockClass(JOB.name, ttl=3, renew_every=1, wait=2, risk=JOB.risk)
"""The lock of a job, which is free again within a story if its holder could not let go of it."""

SERVED = tuple(route for route in ROUTES if route.method == "POST" and route.path.startswith(("/v1/jobs", "/v1/work/")))
"""What is asked for in a story. A gateway is built anew with each start of a plane, which takes time for each route."""


_compile_path = functools.cache(compile_path)
"""The routes are the same whenever a plane is started."""


@functools.cache
def _telemetry(topics: Topics) -> Telemetry:
    """Nobody looks at the figures of a story, and declaring them takes longer than all that is counted in it."""
    return Telemetry(topics)


def _services_of_jobs(wiring: Wiring) -> tuple[Loop, ...]:
    """The others find nothing to do in a story without rules and runs; looking for it would take half of its time."""
    return wiring.roll_call, wiring.scheduler, wiring.reconciler, wiring.replayer, wiring.snapshot_writer


class PlaneStory(Witness):
    """One seed's story. `run` raises `AssertionError` for a broken promise."""

    tenant = Tenant("default")
    settings = Settings(store="sqlite:///:memory:", topics=TOPICS)
    served = SERVED
    sizes: Sequence[tuple[int, float]] = SIZES
    mixes: Sequence[Mix] = MIXES

    def __init__(self, seed: int, *, without: frozenset[int] = frozenset(), calm: bool = False) -> None:
        super().__init__(seed, without=without)
        chance = self.world.chance
        self.calm = calm
        self.detached = chance.random() < 0.5
        self.wanted, self.rage_s = chance.choice(self.sizes)
        self.calms_down_at = self.world.clock_s + self.rage_s
        """From then on nothing goes wrong any more."""
        self._set_up_store()
        self.bus_process = self.world.process("bus")
        self.bus = DetachedBus(lambda: self.world.clock_s, fail=lambda _: None)
        self.acknowledged: list[tuple[JobId, int]] = []
        self.published: list[tuple[Delivery, int]] = []
        self.settled: list[tuple[Delivery, int]] = []
        self.entered: list[tuple[JobId, int]] = []
        self.paid: Counter[str] = Counter()
        self.events: list[JobEvent] = []
        self.log = Log()
        self.planes = [PlaneNode(self, f"plane{n}") for n in range(2)]
        self.workers = [WorkerNode(self, f"worker{n}") for n in range(chance.choice((1, 2, 2)))]
        self.nodes: list[Node] = [*self.planes, *self.workers, People(self, "people")]

    def run(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(standing_in(self._stand_ins()))
            for node in self.nodes:
                node.start()
            if not self.calm:
                nemesis = Nemesis(self.network, [*self.planes, *self.workers], ttl_s=LEASE_S)
                nemesis.extra = self._strikes()
                nemesis.mixes = self.mixes
                nemesis.rage(until=self.rage_s)
            try:
                self.world.run(until=self.rage_s)
                self.world.run(until=self.rage_s + CALM_S, unless=self.is_over)
                self.judge()
            finally:
                self.world.end()
                self._let_go()

    def _set_up_store(self) -> None:
        url = f"sqlite:///:memory:{self.world.chance.getrandbits(64)}"
        self.jobs = cast(Any, open_store(url, topics=TOPICS, runtime=self.server.runtime))
        self.open(self.jobs)
        # Reads share the only connection of a database in memory: no write is ever under way beside them.
        file = self.jobs._file
        file._reader = file._scanner = file._part.writer._connection
        self.store = open_lock_store(
            url, holder="store", prefix="holdfast:", runtime=self.server.runtime, timeout_s=LEASE_S
        )
        self.open(self.store)
        self._disk = Disk(self, self.jobs._file._part.writer._connection, rage_s=self.rage_s)

    def _strikes(self) -> list[Callable[[], None]]:
        """What can befall this kind of store."""
        return [self._disk.fill]

    def _let_go(self) -> None:
        self._disk.free()
        let_go_of(self.store)

    def _stand_ins(self) -> dict[str, Any]:
        dead_man = DeadManSwitch(self)
        return {
            "holdfast.app.open_store": lambda *_, **__: StoreLink(self, here()),
            "holdfast.locks.locks.open_store": lambda *_, **__: LinkedStore(self, here(), here().name),
            "holdfast.locks.locks.default_holder": lambda: here().name,
            "holdfast.flow.dispatch.JOB": SHORT_JOB,
            "holdfast.app.CLASSES": tuple(SHORT_JOB if one is JOB else one for one in CLASSES),
            "holdfast.worker.link.Address": lambda *_, **__: PlaneAddress(self),
            "holdfast.worker.supervisor.own_identity": self._identity,
            "holdfast.worker.introduction.is_dead": self._is_dead,
            "holdfast.worker.loop_guard.DEAD_MAN": dead_man,
            "holdfast.locks.keeper.DEAD_MAN": dead_man,
            # The floor under the wake-ups, further down: else most steps of a story would be idle looks.
            "holdfast.scheduler.POLL_S": 2.0,
            "holdfast.reconciler.POLL_S": 2.0,
            "holdfast.roll_call.LOOK_S": 4.0,
            "holdfast.wiring.Wiring.services": property(_services_of_jobs),
            "holdfast.app.Telemetry": _telemetry,
            "starlette.routing.compile_path": _compile_path,
            "holdfast.app.PrometheusObserver": lambda *_, **__: Markers(self.reached),
        }

    def _identity(self) -> Identity:
        node = next(node for node in self.nodes if node.name == here().name)
        return Identity("host", "boot-1", node.starts, "0")

    def _is_dead(self, worker: str, me: Identity) -> bool:
        self.reached["predecessor proved dead"] += 1
        return int(worker.rsplit(".", 2)[1]) < me.pid

    # -- what is seen on the way -----------------------------------------------------------------------

    def ask(self, verb: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        """What the store says to an onlooker, to whom nothing happens on the way."""
        answer = self.network.happen(self.server, functools.partial(verb, *args, **options))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def commits(self) -> int:
        last = self.events[-1].number if self.events else 0
        self.events += self.ask(self.jobs.list_events, after=last, limit=1_000_000)
        return len(self.events)

    async def pay(self, job_id: str, fence: int) -> bool:
        """The bank pays whoever asks, and takes its time to say so. Nobody may ask whose lease is over."""
        [job] = self.ask(self.jobs.find_jobs, [JobId(job_id)])
        if job.state is not State.RUNNING or job.fence != fence or job.lease_until <= self.jobs.now():
            self.broke(f"P2: {job_id} is paid under fence {fence}, whose lease is over")
        self.paid[job_id] += 1
        if self.paid[job_id] > 1:
            self.broke(f"P9: {job_id} was paid {self.paid[job_id]} times")
        await self.take_time(LEASE_S)
        return True

    async def take_time(self, seconds_max: float) -> None:
        """As work does; but nobody learns anything from work that goes on when nothing can befall it any more."""
        left_s = max(self.calms_down_at - self.world.clock_s, 0.0)
        await asyncio.sleep(min(seconds_max * self.world.chance.random(), left_s))

    @property
    def is_raging(self) -> bool:
        return not self.calm and self.world.clock_s < self.calms_down_at

    def is_over(self) -> bool:
        if len(self.acknowledged) < self.wanted:
            return False
        jobs = self.ask(self.jobs.find_jobs, [job_id for job_id, _ in self.acknowledged])
        return all(job is not None and job.state in TERMINAL for job in jobs)

    def judge(self) -> None:
        seen, jobs = self.look_back()
        assert len(self.acknowledged) == self.wanted, "J8: people are still waiting for an answer"
        assert len({job_id for job_id, _ in self.acknowledged}) == self.wanted, "J4: two orders became one job"
        assert len(jobs) == self.wanted, f"J4: {self.wanted} orders became {len(jobs)} jobs"
        invariants.check_no_loss(seen, jobs)
        self.log.check()
        for job in jobs:
            if job.state is State.SUCCEEDED and job.payload == b'"pay"':
                assert self.paid[job.id] == 1, f"P9: {job.id} has succeeded and was paid {self.paid[job.id]} times"
        if self.calm:
            invariants.check_calm(seen, jobs)

    def look_back(self) -> tuple[Seen, list[StoredJob]]:
        """What was seen and what there is, after what must hold of any history, whoever is still waiting."""
        self.commits()
        self.check_watched()
        jobs = self.ask(self.jobs.find_jobs, list(invariants.histories(self.events)))
        seen = Seen(
            self.jobs,
            events=self.events,
            acknowledged=self.acknowledged,
            published=self.published,
            settled=self.settled,
            entered=self.entered,
        )
        for kind in {event.kind for event in self.events}:
            self.reached[kind] += 1
        self.check_numbers()
        invariants.check_legal_edges(self.events)
        invariants.check_terminal_stable(self.events, jobs)
        invariants.check_state_before_publish(seen)
        invariants.check_attempts(self.events, jobs)
        invariants.check_one_result(self.events, seen)
        invariants.check_entered_once(self.events, seen)
        invariants.check_rollback_safe(self.events)
        invariants.check_ack_after_commit(seen)
        return seen, jobs

    def check_numbers(self) -> None:
        invariants.check_audit(self.events)
