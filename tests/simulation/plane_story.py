"""The control plane in a hostile world: two planes, workers, people, one store; in half of the stories a
bus of its own.

Everything is the product's: the wiring of `holdfast.app`, the gateway with its routes, the workers'
supervisor and keeper. Judged at the end: J1 to J11, P9 (nothing is paid twice), U1, H1.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import patch

from flow import plane_invariants as invariants
from flow.stage import Seen

from holdfast.app import running
from holdfast.buses.detached import DetachedBus
from holdfast.config import Settings
from holdfast.core.job import Job as StoredJob
from holdfast.core.job import JobId, Tenant
from holdfast.core.retry import Backoff
from holdfast.core.states import TERMINAL, EffectState, Risk, State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import StoreUnavailable
from holdfast.gateway.app import build
from holdfast.gateway.routes import ROUTES
from holdfast.locks.stores import open_store as open_lock_store
from holdfast.loops import Loop
from holdfast.ports import Delivery, JobEvent
from holdfast.stores import open_store
from holdfast.telemetry import Telemetry
from holdfast.wiring import Wiring
from holdfast.worker import Job, Worker
from holdfast.worker.http1 import BrokenExchange, Reply
from holdfast.worker.identity import Identity
from holdfast.worker.supervisor import Supervisor
from simulation.full_disk import Disk
from simulation.job_history import Log
from simulation.lock_link import LinkedStore, Markers, Witness, let_go_of
from simulation.nemesis import Nemesis
from simulation.plane_link import BusLink, DeadManSwitch, PlaneAddress, StoreLink
from simulation.world import Process, here

LEASE_S = 4.0
RAGE_S = 6.0
CALM_S = 100.0
"""At most; a story ends as soon as every job has."""
TOPICS = Topics(
    (
        Topic(
            name="*",
            lease_s=LEASE_S,
            dispatch_timeout_s=5.0,
            running_timeout_s=30.0,
            max_attempts=50,
            backoff=Backoff(first_s=0.5, cap_s=2.0),
            risk=Risk.HIGH,
        ),
    )
)

SERVED = tuple(route for route in ROUTES if route.method == "POST" and route.path.startswith(("/v1/jobs", "/v1/work")))
"""What is asked for in a story. A gateway is built anew with each start of a plane, which takes time for each route."""


@functools.cache
def _telemetry(topics: Topics) -> Telemetry:
    """Nobody looks at the figures of a story, and declaring them takes longer than all that is counted in it."""
    return Telemetry(topics)


def _services_of_jobs(wiring: Wiring) -> tuple[Loop, ...]:
    """The others find nothing to do in a story without rules and runs; looking for it would take half of its time."""
    return wiring.roll_call, wiring.scheduler, wiring.reconciler, wiring.replayer, wiring.snapshot_writer


@dataclass
class Node:
    """One process of the story, and what may befall it."""

    story: PlaneStory
    name: str
    process: Process = field(init=False)
    starts: int = 0

    def start(self) -> None:
        self.starts += 1
        self.process = self.story.world.process(self.name)
        self.process.start(self.live())

    async def live(self) -> None:
        raise NotImplementedError

    def pause(self, seconds: float) -> None:
        self.process.pause(seconds)

    def stall(self, seconds: float) -> None:
        self.process.stall(seconds)

    def cut(self, seconds: float) -> None:
        there = self.story.world.chance.choice(self.neighbours())
        self.story.network.cut(self.process, there, seconds)

    def neighbours(self) -> Sequence[Process]:
        """Whom it talks to."""
        raise NotImplementedError

    def step_clock(self, seconds: float) -> None:
        self.process.wall_step_us += round(seconds * 1_000_000)

    def kill(self, down_s: float) -> None:
        if not self.process.dead:
            self.process.crash()
            self.story.world.after(down_s, self.start)


class PlaneNode(Node):
    gateway: Any = None

    def neighbours(self) -> Sequence[Process]:
        story = self.story
        return (story.server, story.bus_process, story.bus_process) if story.detached else (story.server,)

    async def live(self) -> None:
        story = self.story
        self.gateway = None
        bus = BusLink(story, self.process) if story.detached else None
        while True:
            with contextlib.suppress(Exception):  # the store is away: a service manager starts it again
                async with running(story.settings, runtime=self.process.runtime, bus=bus) as plane:
                    self.gateway = build(plane, routes=story.served)
                    await asyncio.Event().wait()
            await asyncio.sleep(0.5)

    async def serve(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """One request, as the socket would hand it to the gateway."""
        if self.gateway is None:
            raise BrokenExchange("nobody listens")
        sent_along = {"host": "127.0.0.1", "content-type": "application/json", **headers}
        raw = [(name.encode(), value.encode()) for name, value in sent_along.items()]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": raw}
        coming = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not coming:
                await asyncio.Event().wait()  # nobody hangs up
            return coming.pop()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.gateway(scope, receive, send)
        return Reply(sent[0]["status"], sent[1]["body"])


class WorkerNode(Node):
    def neighbours(self) -> Sequence[Process]:
        return [plane.process for plane in self.story.planes]

    async def live(self) -> None:
        worker = Worker("http://plane", name=self.name, slots=3, backlog=1)
        worker.task("*", isolation="async")(self.handle)
        supervisor = Supervisor(
            worker.options, worker.isolations(), worker=worker, target="", runtime=self.process.runtime
        )
        await supervisor.run()

    async def handle(self, job: Job) -> Any:
        story, chance = self.story, self.story.world.chance
        story.entered.append((JobId(job.id), job.fence))
        await asyncio.sleep(chance.choice((0.0, 0.2, 2.0, LEASE_S)) * chance.random())
        if chance.random() < 0.1 and not story.calm:
            raise ConnectionError("the model is overloaded")
        if job.payload == "pay":
            await job.once("pay", story.pay, job.id, job.fence)
        return {"by": self.name}


class People(Node):
    """They submit until they are answered, cancel now and then, and look into the books when asked."""

    async def live(self) -> None:
        story, chance = self.story, self.story.world.chance
        address = PlaneAddress(story)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.resolve())
            for n in range(story.wanted):
                await asyncio.sleep(chance.uniform(0.0, 2 * RAGE_S / story.wanted))
                group.create_task(self.submit(address, f"order-{n}", chance.choice(("pay", "pay", "read"))))

    async def submit(self, address: PlaneAddress, key: str, payload: str) -> None:
        story = self.story
        order = json.dumps({"topic": "work", "payload": payload}).encode()
        while True:
            try:
                reply = await address.post("/v1/jobs", order, within_s=5.0, key=key)
                if reply.status in (200, 202):
                    break
            except BrokenExchange:
                pass  # nobody was there, or nobody answered
            await asyncio.sleep(0.5)
        job_id = JobId(json.loads(reply.body)["id"])
        story.world.tell(self.name, f"{key} is acknowledged as {job_id}")
        story.acknowledged.append((job_id, story.commits()))
        if story.world.chance.random() < 0.1 and not story.calm:
            await asyncio.sleep(story.world.chance.uniform(0.0, 5.0))
            with contextlib.suppress(BrokenExchange):
                await address.post(f"/v1/jobs/{job_id}:cancel", b"{}", within_s=5.0)
                story.reached["cancel"] += 1

    async def resolve(self) -> None:
        """A person goes through the worklist and says what the bank's book says."""
        story = self.story
        while True:
            await asyncio.sleep(2.0)
            for effect in story.ask(story.jobs.list_effects, story.tenant, state=EffectState.UNKNOWN):
                state = EffectState.COMMITTED if story.paid[effect.job_id] else EffectState.ABSENT
                with contextlib.suppress(StoreUnavailable):  # the disk is full: they look again
                    story.ask(
                        story.jobs.resolve_effect,
                        story.tenant,
                        effect.job_id,
                        effect.key,
                        state=state,
                        result=b"null",
                        note="seen in the book",
                    )
                    story.reached[f"resolved as {state}"] += 1


class PlaneStory(Witness):
    """One seed's story. `run` raises `AssertionError` for a broken promise."""

    tenant = Tenant("default")
    settings = Settings(store="sqlite:///:memory:", topics=TOPICS)
    served = SERVED

    def __init__(
        self, seed: int, *, tells: bool = False, without: frozenset[int] = frozenset(), calm: bool = False
    ) -> None:
        super().__init__(seed, tells=tells, without=without)
        chance = self.world.chance
        self.calm = calm
        self.detached = chance.random() < 0.5
        self.wanted = chance.choice((2, 3, 6))
        url = f"sqlite:///:memory:{chance.getrandbits(64)}"
        self.jobs = cast(Any, open_store(url, topics=TOPICS, runtime=self.server.runtime))
        self.open(self.jobs)
        # Reads share the only connection of a database in memory: no write is ever under way beside them.
        self.jobs._reader = self.jobs._scanner = self.jobs._part.writer._connection
        self.store = open_lock_store(
            url, holder="store", prefix="holdfast:", runtime=self.server.runtime, timeout_s=LEASE_S
        )
        self.open(self.store)
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
        self.workers = [WorkerNode(self, f"worker{n}") for n in range(2)]
        self.nodes: list[Node] = [*self.planes, *self.workers, People(self, "people")]

    def run(self) -> None:
        with ExitStack() as stack:
            for target, stand_in in self._stand_ins().items():
                stack.enter_context(patch(target, stand_in))
            for node in self.nodes:
                node.start()
            disk = Disk(self, self.jobs._part.writer._connection, rage_s=RAGE_S)
            if not self.calm:
                nemesis = Nemesis(self.network, [*self.planes, *self.workers], ttl_s=LEASE_S)
                nemesis.extra = [disk.fill]
                nemesis.rage(until=RAGE_S)
            try:
                self.world.run(until=RAGE_S)
                for more in range(1, int(CALM_S)):
                    self.world.run(until=RAGE_S + more)
                    if self.is_over():
                        break
                self.judge()
            finally:
                disk.free()
                self.world.end()
                let_go_of(self.store)

    def _stand_ins(self) -> dict[str, Any]:
        dead_man = DeadManSwitch(self)
        return {
            "holdfast.app.open_store": lambda *_, **__: StoreLink(self, here()),
            "holdfast.locks.locks.open_store": lambda *_, **__: LinkedStore(self, here(), here().name),
            "holdfast.worker.link.Address": lambda *_, **__: PlaneAddress(self),
            "holdfast.worker.supervisor.own_identity": self._identity,
            "holdfast.worker.introduction.is_dead": self._is_dead,
            "holdfast.worker.loop_guard.DEAD_MAN": dead_man,
            "holdfast.locks.keeper.DEAD_MAN": dead_man,
            # The floor under the wake-ups, further down: else most steps of a story would be idle looks.
            "holdfast.scheduler.POLL_S": 2.0,
            "holdfast.reconciler.POLL_S": 2.0,
            "holdfast.wiring.Wiring.services": property(_services_of_jobs),
            "holdfast.app.Telemetry": _telemetry,
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
        await asyncio.sleep(LEASE_S * self.world.chance.random())
        return True

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
        invariants.check_audit(self.events)
        invariants.check_legal_edges(self.events)
        invariants.check_terminal_stable(self.events, jobs)
        invariants.check_state_before_publish(seen)
        invariants.check_attempts(self.events, jobs)
        invariants.check_one_result(self.events, seen)
        invariants.check_entered_once(self.events, seen)
        invariants.check_rollback_safe(self.events)
        invariants.check_ack_after_commit(seen)
        return seen, jobs
