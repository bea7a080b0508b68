"""A whole plane for the worker's tests, and a client that submits and watches."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from holdfast.app import serving
from holdfast.config import Settings
from holdfast.core.retry import Backoff
from holdfast.core.topic import Topic, Topics
from holdfast.worker.identity import find_start

TASKS = f"{Path(__file__).parent / 'worker/tasks.py'}:worker"
LEASE_S = 1.5
AT_ONCE = Backoff(first_s=0.01)
ENDED = {"SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "DENIED"}
TOPICS = Topics(
    (
        Topic(name="*", backoff=AT_ONCE, lease_s=LEASE_S),
        Topic(name="sleep.brief", backoff=AT_ONCE, lease_s=LEASE_S, running_timeout_s=1.0),
        Topic(name="long-lease.*", backoff=AT_ONCE, lease_s=60.0),
    )
)


class Client:
    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def submit(self, topic: str, payload: Any = None, **options: Any) -> str:
        reply = await self._http.post("/v1/jobs", json={"topic": topic, "payload": payload, **options})
        assert reply.status_code in {200, 201, 202}, reply.text
        job_id: str = reply.json()["id"]
        return job_id

    async def get(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = (await self._http.get(f"/v1/jobs/{job_id}")).json()
        return job

    async def wait_ended(self, job_id: str, *, within_s: float = 20) -> dict[str, Any]:
        async with asyncio.timeout(within_s):
            while (job := await self.get(job_id))["state"] not in ENDED:
                await asyncio.sleep(0.01)
            return job

    async def run(self, topic: str, payload: Any = None, **options: Any) -> dict[str, Any]:
        return await self.wait_ended(await self.submit(topic, payload, **options))

    async def effects(self, job_id: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self._http.get("/v1/effects", params={"job": job_id})).json()["items"]
        return items

    async def events(self, job_id: str) -> list[tuple[str, float]]:
        reply = (await self._http.get(f"/v1/jobs/{job_id}/events")).json()
        return [(event["kind"], event["at"]) for event in reply["items"]]

    async def wait_event(self, job_id: str, kind: str) -> None:
        async with asyncio.timeout(20):
            while kind not in [known for known, _ in await self.events(job_id)]:
                await asyncio.sleep(0.01)

    async def resolve(self, job_id: str, key: str, **word: Any) -> None:
        reply = await self._http.post(f"/v1/effects/{job_id}/{key}:resolve", json={"reason": "looked it up", **word})
        assert reply.status_code < 300, reply.text

    async def cancel(self, job_id: str) -> None:
        reply = await self._http.post(f"/v1/jobs/{job_id}:cancel", json={"reason": "changed our mind"})
        assert reply.status_code < 300, reply.text

    async def workers(self) -> list[str]:
        return [worker["id"] for worker in (await self._http.get("/v1/workers")).json()["items"]]

    async def wait_workers(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(await self.workers()) < count:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(base_url=url) as http:
        yield Client(http)


@asynccontextmanager
async def plane(folder: Path, *, port: int = 0) -> AsyncIterator[str]:
    async with serving(Settings(store=f"sqlite:///{folder}/plane.db", port=port, topics=TOPICS)) as url:
        yield url


@asynccontextmanager
async def worker_process(url: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker of its own process, as `holdfast worker` starts it."""
    script = f"from holdfast.worker import serve; serve({TASKS!r}, url={url!r}, **{options!r})"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def wait_marked(file: Path, what: str, *, times: int = 1, within_s: float = 15) -> list[list[str]]:
    """The marks of a handler, once there are so many of this kind: what, process, attempt."""
    async with asyncio.timeout(within_s):
        while not file.exists() or file.read_text().count(what) < times:
            await asyncio.sleep(0.005)
    return marks(file)


def marks(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()]


def runs(pid: int) -> bool:
    """A zombie that nobody has reaped does not run."""
    return find_start(pid) is not None


def stop_process(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
