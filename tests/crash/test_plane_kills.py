"""kill -9 of a real plane at random moments under load: nothing acknowledged is lost, nothing is done twice.

A client submits with idempotency keys and keeps what was acknowledged; a worker works; `holdfast up`
dies a hundred times. Afterwards every acknowledged job has ended exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest
from servers import free_port

from holdfast.http1.answer import BrokenExchange
from holdfast.worker.http1 import Address

NURSERY = Path(__file__).with_name("nursery.py")
KILLS = 100
ALIVE_S_MAX = 0.25
AWAY_S = 0.05
"""Until somebody whom nobody answers asks again. Asking more often takes more of the machine than a plane's start."""
TERMINAL = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "DENIED")


class Load:
    """The people and the worker: they outlive every plane, and repeat what got no answer."""

    def __init__(self, url: str) -> None:
        # The workers' own client, which takes a tenth of what others do: the machine is for the planes.
        self._plane = Address("127.0.0.1", int(url.rpartition(":")[2]), tls=None)
        self.acknowledged: dict[str, str] = {}
        """Idempotency key → job."""
        self.accepted: list[tuple[str, int]] = []
        """Outcomes that the plane said it took."""
        self.answered = 0
        self.stopping = False

    async def _say(self, path: str, body: dict[str, Any]) -> Any:
        try:
            reply = await self._plane.post(path, json.dumps(body).encode(), login="", within_s=5)
        except (OSError, BrokenExchange):
            await asyncio.sleep(AWAY_S)
            return None
        self.answered += 1
        if reply.status == 404 and path.startswith("/v1/work"):
            await self._hello()
        return json.loads(reply.body) if reply.status < 300 else None

    async def _hello(self) -> None:
        await self._say("/v1/work/hello", {"worker": "w1", "name": "w1", "topics": ["*"], "slots": 20})

    async def submit(self, who: int) -> None:
        number = 0
        while not self.stopping:
            key = f"{who}-{number}"
            job = await self._say("/v1/jobs", {"topic": "load", "payload": key, "idempotency_key": key})
            if job is not None:
                self.acknowledged[key] = job["id"]
                number += 1
            await asyncio.sleep(0.01)

    async def work(self) -> None:
        while True:
            claim = {"worker": "w1", "limit": 20, "wait_s": 0.2, "start": True}
            taken = await self._say("/v1/work/claim", claim)
            for delivery in taken["deliveries"] if taken else []:
                await self._complete(delivery)

    def close(self) -> None:
        self._plane.close()

    async def _complete(self, delivery: dict[str, Any]) -> None:
        outcome = {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": "succeeded"}
        for _ in range(500):
            before = self.answered
            if await self._say("/v1/work/complete", {"worker": "w1", "outcomes": [outcome]}):
                self.accepted.append((delivery["job_id"], delivery["fence"]))
                return
            if self.answered > before:
                return  # refused: the attempt is over


class Planes:
    """`holdfast up`, again and again, on the same port and file."""

    def __init__(self, store: Path, port: int) -> None:
        self._up = ["up", "--port", str(port), "--store", f"sqlite:///{store}"]
        self._up += ["--config", str(store.with_name("plane.toml"))]
        self._log = store.with_name("plane.err")
        self.url = f"http://127.0.0.1:{port}"
        self._alive: int | None = None

    async def __aenter__(self) -> Self:
        with self._log.open("ab") as errors:
            self._nursery = await asyncio.create_subprocess_exec(
                sys.executable,
                NURSERY,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        self._nursery.kill()
        await self._nursery.wait()

    async def start(self) -> None:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(json.dumps(self._up).encode() + b"\n")
        self._alive = int(await self._nursery.stdout.readline())
        # Without TLS: reading certificates that nobody asks for takes as long as a plane needs to start.
        async with httpx2.AsyncClient(base_url=self.url, timeout=5, verify=False) as http, asyncio.timeout(20):
            while True:
                assert self._runs(), f"the plane ended by itself: {self._log.read_text()[-2000:]}"
                with contextlib.suppress(httpx2.TransportError):
                    if (await http.get("/readyz")).status_code == 200:
                        return
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        if self._alive is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._alive, signal.SIGKILL)
            while self._runs():
                await asyncio.sleep(0.002)
            self._alive = None

    def _runs(self) -> bool:
        assert self._alive is not None
        return Path(f"/proc/{self._alive}").exists()


def unfinished(store: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        marks = ", ".join("?" * len(TERMINAL))
        sql = f"SELECT count(*) FROM holdfast_jobs WHERE state NOT IN ({marks})"
        count: int = connection.execute(sql, TERMINAL).fetchone()[0]
        return count


def judge(store: Path, load: Load) -> None:
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        jobs = dict(connection.execute("SELECT id, state FROM holdfast_jobs").fetchall())
        events = connection.execute(
            "SELECT number, job_id, kind, fence FROM holdfast_events ORDER BY number"
        ).fetchall()
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert [number for number, *_ in events] == list(range(1, len(events) + 1)), "events have gaps"
    lost = {job_id: jobs.get(job_id) for job_id in load.acknowledged.values() if jobs.get(job_id) != "SUCCEEDED"}
    assert not lost, f"acknowledged and not ended: {lost}"
    assert len(set(load.acknowledged.values())) == len(load.acknowledged), "two keys share a job"
    submitted = Counter(job_id for _, job_id, kind, _ in events if kind == "job.submitted")
    ended = Counter(job_id for _, job_id, kind, _ in events if kind == "job.succeeded")
    assert set(submitted.values()) == {1}
    assert set(ended.values()) == {1}, "an outcome was accepted twice"
    succeeded = {(job_id, fence) for _, job_id, kind, fence in events if kind == "job.succeeded"}
    assert set(load.accepted) <= succeeded, "an outcome was acknowledged and is not there"


@pytest.mark.timeout(300)
async def test_plane_killed_a_hundred_times_loses_nothing_acknowledged(tmp_path: Path) -> None:
    store, chance = tmp_path / "plane.db", random.Random()
    port = free_port()
    store.with_name("plane.toml").write_text('[topics."*"]\nlease_s = 2\ndispatch_timeout_s = 2\nmax_attempts = 1000\n')
    async with Planes(store, port) as planes:
        load = Load(planes.url)
        people = [asyncio.create_task(load.submit(who)) for who in range(4)]
        worker = asyncio.create_task(load.work())
        try:
            for _ in range(KILLS):
                await planes.start()
                await asyncio.sleep(chance.uniform(0, ALIVE_S_MAX))
                await planes.kill()
            await planes.start()
            load.stopping = True
            async with asyncio.timeout(60):
                await asyncio.gather(*people)
                while unfinished(store):
                    await asyncio.sleep(0.05)
        finally:
            for task in (*people, worker):
                task.cancel()
            ends = await asyncio.gather(*people, worker, return_exceptions=True)
            load.close()

    assert not [end for end in ends if isinstance(end, Exception)], "the load itself went on to the end"
    judge(store, load)
    assert len(load.acknowledged) >= KILLS, "there was load"
