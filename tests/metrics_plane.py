"""A whole plane on virtual time, spoken to over its own routes: what happens to it is read from `/metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
import pytest
from flow.faulty_store import FaultyStore
from locks.virtual import VirtualRuntime
from prometheus_client.parser import text_string_to_metric_families

from holdfast import app
from holdfast.buses.detached import DetachedBus
from holdfast.buses.detached import Fault as BusFault
from holdfast.config import Settings, WebhookSettings
from holdfast.core.retention import Retention
from holdfast.core.topic import Topic, Topics
from holdfast.gateway.app import build
from holdfast.gateway.plane import Plane
from holdfast.ports import Bus
from holdfast.stores import StoreWithBus, open_store

TOPICS = Topics((Topic(name="t", lease_s=10.0), Topic(name="pay"), Topic(name="once", max_attempts=1, lease_s=10.0)))
ANN = {"Holdfast-Actor": "ann"}


@dataclass
class Stand:
    plane: Plane
    http: httpx2.AsyncClient
    store: FaultyStore
    publishing: list[BusFault] = field(default_factory=list)
    """Faults that the next publishes meet, where the bus is apart from the store."""

    async def post(self, path: str, body: Any = None, **headers: str) -> Any:
        reply = await self.http.post(path, json=body, headers={**ANN, **headers})
        assert reply.status_code < 300, f"{path}: {reply.text}"
        return reply.json()

    async def read(self, *series: str) -> dict[str, float]:
        """The values of series that are written as in an expression; 0 for one that is not there."""
        lines = (line.rpartition(" ") for line in (await self.http.get("/metrics")).text.splitlines())
        found = {start: float(value) for start, _, value in lines if start in series}
        return {one: found.get(one, 0) for one in series}

    async def moved(self, since: dict[str, float]) -> set[str]:
        """The series that are seen above the value that they had then, within two minutes of virtual time."""
        moved: set[str] = set()
        for _ in range(240):
            moved |= {series for series, value in (await self.read(*since)).items() if value > since[series]}
            if moved == since.keys():
                break
            await asyncio.sleep(0.5)
        return moved

    async def names(self) -> dict[str, set[str]]:
        """Every metric that is served, as documented, with the labels of its series."""
        text = (await self.http.get("/metrics")).text
        return {
            f"{family.name}_total" if family.type == "counter" else family.name: {
                label for sample in family.samples for label in sample.labels
            }
            - {"le"}
            for family in text_string_to_metric_families(text)
        }

    async def submit(self, topic: str = "t", **options: Any) -> str:
        job_id: str = (await self.post("/v1/jobs", {"topic": topic, **options}))["id"]
        return job_id

    async def hello(self, worker: str = "w") -> None:
        await self.post("/v1/work/hello", {"worker": worker, "name": worker, "topics": ["*"], "slots": 4})

    async def take(self, worker: str = "w") -> dict[str, Any]:
        """The next job there is, begun: its reference."""
        await self.hello(worker)
        while True:
            claimed = await self.post("/v1/work/claim", {"worker": worker, "wait_s": 5, "start": True})
            for delivery in claimed["deliveries"]:
                return {"job_id": delivery["job_id"], "fence": delivery["fence"]}

    async def end(self, attempt: dict[str, Any], outcome: str = "succeeded") -> None:
        await self.post("/v1/work/complete", {"worker": "w", "outcomes": [{**attempt, "outcome": outcome}]})

    async def effect(self, verb: str, attempt: dict[str, Any], key: str = "pay") -> Any:
        return await self.post(f"/v1/work/effect/{verb}", {"worker": "w", **attempt, "key": key})

    async def publish(self, *rules: dict[str, Any], **document: Any) -> None:
        """New rules, and wait until this plane goes by them."""
        whole = {"format": 1, "default": {"action": "allow"}, "rules": rules, **document}
        version = (await self.post("/v1/policy:publish", {"document": whole, "reason": "a test"}))["version"]
        while self.plane.policy.version != version:
            await asyncio.sleep(0.1)


Mover = Callable[[Stand], Awaitable[object]]
ROWS: dict[Mover, tuple[str, ...]] = {}
APART: set[Mover] = set()
"""What only a bus apart from the store can do."""


def moves(*series: str, apart: bool = False) -> Callable[[Mover], Mover]:
    """These series grow when this is done to a plane."""

    def declare(mover: Mover) -> Mover:
        ROWS[mover] = series
        if apart:
            APART.add(mover)
        return mover

    return declare


@asynccontextmanager
async def standing(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch, *, detached: bool = False
) -> AsyncIterator[Stand]:
    """`detached`: with a bus of its own, whose publishes can fail."""
    opened: list[FaultyStore] = []

    def open_faulty(*args: Any, **options: Any) -> StoreWithBus:
        opened.append(FaultyStore(open_store(*args, **options)))
        return cast(StoreWithBus, opened[0])

    monkeypatch.setattr(app, "open_store", open_faulty)
    publishing: list[BusFault] = []
    bus = DetachedBus(runtime.now, fail=lambda _: publishing.pop(0) if publishing else None) if detached else None
    settings = Settings(
        store="sqlite:///:memory:",
        topics=TOPICS,
        webhooks=WebhookSettings(allow_private=True),
        retention=Retention(finished_jobs_s=5),
    )
    async with app.running(settings, runtime=runtime, bus=cast("Bus | None", bus)) as plane:
        transport = httpx2.ASGITransport(build(plane))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", verify=False) as http:
            yield Stand(plane, http, opened[0], publishing)
