"""A real plane on a SQLite file, served on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from holdfast.app import _Server, running
from holdfast.client import AsyncClient
from holdfast.config import Settings
from holdfast.core.people import People
from holdfast.core.states import Risk, State
from holdfast.core.topic import Topic, Topics
from holdfast.gateway.app import Gateway, build
from holdfast.gateway.keys import Keys
from holdfast.gateway.plane import Plane
from holdfast.gateway.wire import Protocol

TOPICS = Topics(
    (
        Topic(name="quick", max_attempts=1),
        Topic(name="risky", risk=Risk.HIGH),
    )
)


@dataclass(frozen=True, slots=True)
class Served:
    plane: Plane
    gateway: Gateway
    url: str
    http: httpx2.AsyncClient
    client: AsyncClient

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(path, json=body, headers=named)

    async def work(self, verb: str, **body: Any) -> Any:
        """What a worker says; the decoded answer."""
        response = await self.http.post(f"/v1/work/{verb}", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def introduce(self, worker: str = "w1", **more: Any) -> Any:
        return await self.work("hello", worker=worker, name=worker, topics=["*"], slots=10, **more)

    async def started(self, topic: str = "t", worker: str = "w1", **limits: Any) -> dict[str, Any]:
        """A job that a worker has begun: its delivery."""
        await self.client.submit(topic, **limits)
        return await self.start(worker)

    async def dispatched(self) -> str:
        """A job that waits for the worker, whose claim has not come yet."""
        job = await self.client.submit("t")
        while (await self.client.get(job.id)).state != State.DISPATCHED:
            await asyncio.sleep(0)
        return job.id

    async def wait_claimed(self, worker: str = "w1") -> None:
        """Until a claim of the worker has arrived."""
        while not self.plane.claims.waits(worker):
            await asyncio.sleep(0)

    async def start(self, worker: str = "w1") -> dict[str, Any]:
        """The first job there is, begun by a worker: its delivery."""
        await self.introduce(worker)
        taken = await self.work("claim", worker=worker, wait_s=5, start=True)
        delivery: dict[str, Any] = taken["deliveries"][0]
        return delivery

    async def succeed(self, delivery: dict[str, Any], result: Any = None) -> None:
        outcome = {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": "succeeded", "result": result}
        await self.work("complete", worker="w1", outcomes=[outcome])


@contextlib.asynccontextmanager
async def serving(
    directory: Path, *, api_key: str = "", people: People | None = None, **settings: Any
) -> AsyncIterator[Served]:
    chosen = Settings(store=f"sqlite:///{directory}/plane.db", topics=TOPICS, **settings)
    async with running(chosen) as plane:
        gateway = build(plane, keys=Keys(api_key, people))
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        config = uvicorn.Config(gateway, loop="none", http=Protocol, log_config=None, lifespan="off")
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # Without TLS: reading certificates that nobody asks for would take longer than most tests.
        async with httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=20) as http:
            async with AsyncClient(url, api_key=api_key) as client:
                yield Served(plane, gateway, url, http, client)
        gateway.drain()
        # Cut short: uvicorn's own farewell waits twice for a tenth of a second, whatever there is to wait for.
        unanswered = server.server_state.tasks
        for ending in (task, *unanswered):
            ending.cancel()
        await asyncio.gather(task, *unanswered, return_exceptions=True)
        for accepting in server.servers:
            accepting.close()
        for connection in tuple(server.server_state.connections):
            connection.transport.close()
        listener.close()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as one:
        yield one
