"""Gateway, scheduler and reconciler as processes of their own, on Redis, on Postgres, and with NATS: each dies once.

What they used to tell each other within one process goes through the store. Jobs and a run with an
approval are done meanwhile; nothing is lost, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx2
import pytest
import servers
from click.testing import CliRunner
from plane.nats_buses import nats_running
from plane.over_http import say, submit, wait_ended, working
from plane.store_fixtures import FRESH
from servers import free_port

from crash.test_plane_kills import NURSERY, Load
from holdfast.cli import cli
from holdfast.core.topic import Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.stores import open_store

CONFIG = '[topics."*"]\nlease_s = 3\ndispatch_timeout_s = 3\n'
JOBS = 5
"""Submitted before each death, and as many after it."""
REVIEWED = {
    "name": "reviewed",
    "steps": [
        {"id": "draft", "kind": "job", "topic": "mail.send"},
        {"id": "yes", "kind": "approval", "approvers": ["ann"], "message": "Send it?", "depends_on": ["draft"]},
        {"id": "send", "kind": "job", "topic": "mail.send", "depends_on": ["yes"]},
    ],
}


class Processes:
    """`holdfast gateway`, `holdfast scheduler`, `holdfast reconciler`, each on a port of its own."""

    def __init__(self, folder: Path, store: str, bus: str) -> None:
        config = folder / "plane.toml"
        # A scheduler that is killed while it publishes by itself keeps the job's lock for a minute.
        config.write_text(('[plane]\ndispatch = "outbox"\n' if bus else "") + CONFIG)
        self._options = ["--config", str(config), "--store", store, *(["--bus", bus] if bus else [])]
        self._log = folder / "plane.err"
        self._alive: dict[str, int] = {}
        self.ports = {role: free_port() for role in ("gateway", "scheduler", "reconciler")}

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        with self._log.open("ab") as errors:
            self._nursery = await asyncio.create_subprocess_exec(
                sys.executable, NURSERY, stdin=pipe, stdout=pipe, stderr=errors
            )
        for role in self.ports:
            await self.start(role)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*(self.end(role, signal.SIGTERM) for role in tuple(self._alive)))
        finally:
            self._nursery.kill()
            await self._nursery.wait()

    async def start(self, role: str) -> None:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        command = [role, "--port", str(self.ports[role]), *self._options]
        self._nursery.stdin.write(json.dumps(command).encode() + b"\n")
        self._alive[role] = int(await self._nursery.stdout.readline())
        async with httpx2.AsyncClient(base_url=self.url(role), timeout=5) as http, asyncio.timeout(30):
            while True:
                assert _runs(self._alive[role]), self._log.read_text()[-2000:]
                with suppress(httpx2.TransportError):
                    if (await http.get("/readyz")).status_code == 200:
                        return
                await asyncio.sleep(0.02)

    async def end(self, role: str, how: signal.Signals) -> None:
        process = self._alive.pop(role)
        os.kill(process, how)
        async with asyncio.timeout(30):
            while _runs(process):
                await asyncio.sleep(0.02)

    def url(self, role: str) -> str:
        return f"http://127.0.0.1:{self.ports[role]}"

    def said(self) -> str:
        return self._log.read_text()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Place(NamedTuple):
    store: str
    bus: str


@pytest.fixture(params=["postgres", "redis", "postgres and nats"])
def place(request: pytest.FixtureRequest, running: dict[str, servers.Server | None]) -> Iterator[Place]:
    store, _, bus = request.param.partition(" and ")
    with ExitStack() as stack:
        url = stack.enter_context(FRESH[store](running))
        yield Place(url, f"{stack.enter_context(nats_running()).url}?sync=always" if bus else "")


async def test_roles_as_processes_of_their_own_do_what_one_process_does(tmp_path: Path, place: Place) -> None:
    async with Processes(tmp_path, *place) as processes, asking(processes.url("gateway")) as http:
        people = People(processes.url("gateway"))
        worker = asyncio.create_task(people.work())
        run = await begun_review(http)
        for role in processes.ports:
            await people.submit_some()
            submitting = asyncio.create_task(people.submit_some())
            await processes.end(role, signal.SIGKILL)
            await processes.start(role)
            await submitting
        await decide(http, run)
        await wait_run(http, run)
        await wait_ended(http, list(people.acknowledged.values()))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        people.close()
        health = [(await get(processes.url(role), path)).status_code for role in processes.ports for path in HEALTH]
        refused = await get(processes.url("scheduler"), "/v1/jobs")

    assert health == [200] * 9
    assert refused.status_code == 404, "who is no gateway only says how it is"
    ends = await outcomes(place.store)
    submitted = set(people.acknowledged.values())
    assert (len(submitted), len(set(ends) - submitted)) == (6 * JOBS, 2), "and the two jobs of the run"
    assert set(ends.values()) == {1}
    assert max(Counter(people.accepted).values()) == 1, "no outcome was taken twice"
    assert "Traceback" not in processes.said()


class People(Load):
    async def submit_some(self) -> None:
        """Until they are acknowledged, whoever is being started anew meanwhile."""
        wanted = len(self.acknowledged) + JOBS
        async with asyncio.timeout(60):
            while len(self.acknowledged) < wanted:
                key = f"key-{len(self.acknowledged)}"
                job = await self._say("/v1/jobs", {"topic": "load", "idempotency_key": key})
                if job is not None:
                    self.acknowledged[key] = job["id"]


@pytest.mark.parametrize("place", ["postgres", "redis"], indirect=True)
async def test_job_passes_through_three_processes_without_waiting_for_anybody_s_poll(
    tmp_path: Path, place: Place
) -> None:
    """The scheduler and the gateway's long poll are woken by the store: far sooner than by their own looks."""
    async with Processes(tmp_path, *place) as processes, asking(processes.url("gateway")) as http:
        async with working(http, "w1", wait_s=20):
            await wait_ended(http, [await submit(http, 0)])  # the worker is known, and its next claim waits
            began = time.monotonic()
            for number in range(1, 6):
                job_id = await submit(http, number)
                await http.get(f"/v1/jobs/{job_id}", params={"wait": 20})
            took_s = time.monotonic() - began
        kinds = [event.kind for event in await history(place.store) if event.job_id == job_id]

    assert kinds == ["job.submitted", "job.dispatched", "job.started", "job.succeeded"]
    # A scheduler that is not woken finds a job after an eighth of a second on average, a claim after twenty seconds.
    assert took_s < 20.0


@pytest.mark.parametrize("role", ["gateway", "scheduler", "reconciler"])
def test_role_apart_is_refused_on_a_store_of_one_process(role: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(cli, [role, "--store", f"sqlite:///{tmp_path}/plane.db", "--port", "0"])

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "`holdfast up`" in refused.stderr
    assert list(tmp_path.iterdir()) == [], "and nothing was made"


HEALTH = ("/livez", "/readyz", "/metrics")


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=url, timeout=30.0) as http:
        yield http


async def get(url: str, path: str) -> httpx2.Response:
    async with asking(url) as http:
        return await http.get(path)


async def begun_review(http: httpx2.AsyncClient) -> str:
    await say(http, "/v1/workflows", document=json.dumps(REVIEWED))
    run = await say(http, "/v1/runs", workflow="reviewed")
    return str(run["id"])


async def decide(http: httpx2.AsyncClient, run: str) -> None:
    async with asyncio.timeout(30):
        while not (waiting := (await http.get("/v1/approvals", params={"state": "pending"})).json()["items"]):
            await asyncio.sleep(0.05)
    [approval] = waiting
    reply = await http.post(
        f"/v1/approvals/{approval['id']}:decide", json={"decision": "approve"}, headers={"Holdfast-Actor": "ann"}
    )
    assert reply.status_code == 200, reply.text
    assert run in reply.text


async def wait_run(http: httpx2.AsyncClient, run: str) -> None:
    async with asyncio.timeout(30):
        while (view := (await http.get(f"/v1/runs/{run}")).json())["state"] != "succeeded":
            assert view["state"] == "running", view
            await asyncio.sleep(0.05)


async def history(url: str) -> list[Any]:
    store = open_store(url, topics=Topics(), runtime=SYSTEM, timeout_s=10.0)
    await store.open()
    try:
        return await store.list_events(after=0, limit=10_000)
    finally:
        await store.close()


async def outcomes(url: str) -> Counter[str]:
    return Counter(str(event.job_id) for event in await history(url) if event.kind == "job.succeeded")
