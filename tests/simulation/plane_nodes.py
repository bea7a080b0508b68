"""Who there is in a story of the plane: planes, workers and people, and what may befall each of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.app import running
from holdfast.core.job import JobId
from holdfast.core.states import EffectState
from holdfast.errors import StoreUnavailable
from holdfast.gateway.app import build
from holdfast.http1.answer import BrokenExchange, Reply
from holdfast.worker import Job, Worker
from holdfast.worker.supervisor import Supervisor
from simulation.plane_link import BusLink, PlaneAddress
from simulation.world import Process

if TYPE_CHECKING:
    from simulation.plane_story import PlaneStory

LEASE_S = 3.0


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
        await story.take_time(chance.choice((0.0, 0.2, 2.0, LEASE_S)))
        if chance.random() < 0.1 and story.is_raging:
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
                await asyncio.sleep(chance.uniform(0.0, story.rage_s / story.wanted))
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
