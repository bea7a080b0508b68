"""A whole plane for the worker's tests, and a client that submits and watches."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
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
IN_TIME_S = LEASE_S + 8.0
"""A busy machine lets us notice late what has ended in time. Left to themselves, these handlers take a minute. To the
millisecond it is shown where time is virtual."""
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

    async def details(self, job_id: str, kind: str) -> list[dict[str, Any]]:
        reply = (await self._http.get(f"/v1/jobs/{job_id}/events")).json()
        return [event["detail"] for event in reply["items"] if event["kind"] == kind]

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

    async def list_workers(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self._http.get("/v1/workers")).json()["items"]
        return items

    async def workers(self) -> list[str]:
        return [worker["id"] for worker in await self.list_workers()]

    async def wait_workers(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(await self.workers()) < count:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    # Without TLS: reading certificates that nobody asks for takes its time.
    async with httpx2.AsyncClient(base_url=url, verify=False) as http:
        yield Client(http)


@asynccontextmanager
async def plane(folder: Path, *, port: int = 0) -> AsyncIterator[str]:
    async with serving(Settings(store=f"sqlite:///{folder}/plane.db", port=port, topics=TOPICS)) as url:
        yield url


class Way:
    """A way to the plane that something may happen to: it can be `blocked`, and it may lose one reply."""

    def __init__(self, url: str, *, lose: tuple[bytes, bytes] | None = None) -> None:
        self._plane = url.removeprefix("http://").split(":")
        self.lose = lose
        """The first reply that contains the one, to a request that contains the other, is lost with its connection."""
        self.blocked = False
        """From now on nothing arrives, at either end."""
        self.connections: set[asyncio.Task[None]] = set()

    def reopen(self) -> None:
        """What was under way is cut off: whoever waits for an answer that was swallowed need not wait till its time is up."""
        self.blocked = False
        for connection in self.connections:
            connection.cancel()

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(asyncio.create_task(self.carry(reader, writer)))

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replies, requests = await asyncio.open_connection(*self._plane)
        asked = b""

        async def there() -> None:
            nonlocal asked
            with suppress(ConnectionError):
                while (asked := await reader.read(65536)) and not self.blocked:
                    requests.write(asked)

        going = asyncio.create_task(there())
        try:
            while (piece := await replies.read(65536)) and not self.blocked:
                if self.lose is not None and self.lose[0] in piece and self.lose[1] in asked:
                    self.lose = None
                    return
                writer.write(piece)
            while self.blocked:
                await asyncio.sleep(0.01)
        except ConnectionError:
            return
        finally:
            going.cancel()
            writer.close()
            requests.close()


@asynccontextmanager
async def way(url: str, *, lose: tuple[bytes, bytes] | None = None) -> AsyncIterator[tuple[str, Way]]:
    to_plane = Way(url, lose=lose)
    server = await asyncio.start_server(to_plane.connect, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", to_plane
    server.close()
    for connection in to_plane.connections:
        connection.cancel()
    await asyncio.gather(*to_plane.connections, return_exceptions=True)


@asynccontextmanager
async def worker_process(
    url: str, *, stderr: int | None = None, **options: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker of its own process, as `holdfast worker` starts it."""
    script = f"from holdfast.worker import serve; serve({TASKS!r}, url={url!r}, **{options!r})"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stderr=stderr)
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
