"""A worker says that it is ready while it takes work, and not merely while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest
from worker_plane import plane, way

from holdfast.locks.runtime import SystemRuntime
from holdfast.worker import Job, Worker
from holdfast.worker.errors import BrokenWorker
from holdfast.worker.supervisor import Supervisor


class LaterRuntime(SystemRuntime):
    """The clock of this machine, which a test can put forward."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


def a_worker(url: str) -> Worker:
    worker = Worker(url, health="127.0.0.1:0")

    @worker.task("wait", isolation="async")
    async def wait(job: Job) -> None:
        await asyncio.Event().wait()

    return worker


async def asked(supervisor: Supervisor, path: str) -> tuple[int, str]:
    async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=20) as http:
        reply = await http.get(f"http://{supervisor.health}{path}")
    return reply.status_code, reply.text


async def said(supervisor: Supervisor, words: bytes) -> bytes:
    """The first line of what it makes of words that need not be HTTP."""
    reader, writer = await asyncio.open_connection(*supervisor.health.split(":"))
    writer.write(words)
    line = await reader.readline()
    writer.close()
    return line.strip()


async def test_worker_that_takes_work_is_ready_and_one_that_drains_is_not(tmp_path: Path) -> None:
    async with plane(tmp_path) as url, a_worker(url).running() as supervisor:
        assert await asked(supervisor, "/livez") == (200, "alive\n")
        assert await asked(supervisor, "/readyz") == (200, "ready\n")
        assert (await asked(supervisor, "/metrics"))[0] == 404
        assert await said(supervisor, b"hello\r\n\r\n") == b"HTTP/1.1 404 Not Found"
        supervisor.drain()

        assert await asked(supervisor, "/readyz") == (503, "draining: it takes nothing more\n")


async def test_worker_whose_claims_go_nowhere_is_alive_and_not_ready(tmp_path: Path) -> None:
    """As with a plane that hangs: the process is well, and would be of no use to anybody."""
    runtime = LaterRuntime()
    async with plane(tmp_path) as url, way(url) as (address, to_plane):
        worker = a_worker(address)
        supervisor = Supervisor(worker.options, worker.isolations(), worker=worker, target="", runtime=runtime)
        running = asyncio.create_task(supervisor.run())
        await supervisor.wait_ready()
        to_plane.blocked = True
        runtime.ahead_s = 60.0
        status, why = await asked(supervisor, "/readyz")
        alive = await asked(supervisor, "/livez")
        to_plane.reopen()
        async with asyncio.timeout(30):
            while (await asked(supervisor, "/readyz"))[0] != 200:
                await asyncio.sleep(0.02)
        supervisor.drain()
        await running

    assert (status, alive) == (503, (200, "alive\n"))
    assert "no claim of its was answered" in why


async def test_address_that_cannot_be_had_is_named() -> None:
    worker = Worker("http://127.0.0.1:1", health="127.0.0.1:nothing")
    worker.task("t", isolation="async")(_nothing)

    with pytest.raises(BrokenWorker, match="nothing"):
        async with worker.running():
            pass


async def _nothing(_: Job) -> None: ...
