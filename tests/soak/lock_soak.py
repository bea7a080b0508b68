"""Locks on a real store, under load, while everything is attacked: the holders, the way to the server, the server.

Four processes make guarded writes; all but the eldest are killed now and then, everybody is stopped, the proxy
between them and the server delays and cuts, and the server itself is stopped, or killed and started again. At
the end every acknowledged write is there, each item's fences only ever grew, and the eldest has not.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness import Backend
from locks.faults import Proxy
from progress import PROGRESS

from soak.leaks import Sample, find_leaks, look_at

HOLDER = Path(__file__).with_name("holder.py")
HOLDERS = 4
ITEMS = 3
STRIKE_EVERY_S = (0.5, 2.0)


@dataclass
class Tally:
    what: str
    seconds: float = 0.0
    acknowledged: set[str] = field(default_factory=set)
    strikes: int = 0
    samples: list[Sample] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    """What else happened, by name."""

    def show(self) -> None:
        rate = len(self.acknowledged) / max(self.seconds, 0.001)
        PROGRESS.show(
            f"{self.what}: {self.seconds:.0f} s, {len(self.acknowledged)} acknowledged, {rate:.0f}/s, "
            f"{self.strikes} strikes, {len(self.violations)} violations"
        )


@dataclass
class Holder:
    name: str
    url: str
    ttl_s: float
    resource: Path
    tally: Tally
    starts: int = 0
    tasks: int = 0
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """It has been up and running."""

    async def start(self) -> None:
        self.starts += 1
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HOLDER), f"{self.name}.{self.starts}", self.url),
            *(str(self.ttl_s), str(ITEMS), str(self.resource)),
            stdout=asyncio.subprocess.PIPE,
        )
        self.listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            word, _, value = line.decode().strip().partition(" ")
            if word == "added":
                self.tally.acknowledged.add(value)
            else:
                self.tasks = int(value)
                self.heard.set()

    async def kill(self) -> None:
        """What it said before counts."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self.listening

    async def pause(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def way_to(backend: Backend) -> AsyncIterator[tuple[str, Proxy]]:
    """Through a proxy of its own. A file has no network; its proxy is never asked."""
    async with Proxy(backend.server.port if backend.server else 0) as proxy:
        yield proxy.url(backend.url) if backend.server else backend.url, proxy


async def soak_locks(backend: Backend, directory: Path, *, seconds: float, tells: bool = False) -> Tally:
    tally = Tally(f"locks on {backend.name}")
    resource, ttl_s = directory / "resource.db", max(1.0, backend.ttl_ms / 1000)
    with closing(sqlite3.connect(resource)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE writes (id INTEGER PRIMARY KEY, item TEXT, fence INTEGER, value TEXT)")
    async with way_to(backend) as (url, proxy):
        holders = [Holder(f"h{n}", url, ttl_s, resource, tally) for n in range(HOLDERS)]
        for holder in holders:
            await holder.start()
        async with asyncio.timeout(30):
            await asyncio.gather(*(holder.heard.wait() for holder in holders))
        began = time.monotonic()
        striking = asyncio.create_task(strike_for_ever(backend, holders, proxy, tally, ttl_s=ttl_s))
        try:
            while tally.seconds < seconds:
                await asyncio.sleep(0.25)
                tally.seconds = time.monotonic() - began
                assert not striking.done(), f"the nemesis ended by itself: {striking}"
                sample = look_at(holders[0].process.pid, tasks=holders[0].tasks)
                if sample is None or holders[0].process.returncode is not None:
                    tally.violations.append("the eldest holder ended by itself")
                    break
                tally.samples.append(sample)
                if tells:
                    tally.show()
        finally:
            striking.cancel()
            with suppress(asyncio.CancelledError):
                await striking
            for holder in holders:
                await holder.kill()
    tally.violations += [*find_violations(resource, tally.acknowledged), *find_leaks(tally.samples)]
    return tally


async def strike_for_ever(backend: Backend, holders: list[Holder], proxy: Proxy, tally: Tally, *, ttl_s: float) -> None:
    chance = random.Random()
    while True:
        await asyncio.sleep(chance.uniform(*STRIKE_EVERY_S))
        seconds = ttl_s * chance.choice((0.3, 1.0, 1.8))
        what = chance.choice(("pause", "kill", "delay", "cut", "mute", "stop server", "kill server"))
        tally.strikes += 1
        if what == "pause":
            await chance.choice(holders).pause(seconds)
        elif what == "kill" or backend.server is None:
            victim = chance.choice(holders[1:])
            await victim.kill()
            await victim.start()
        elif what in ("stop server", "kill server"):
            await strike_server(backend, what, seconds)
        else:
            await strike_network(proxy, what, seconds)


async def strike_server(backend: Backend, what: str, seconds: float) -> None:
    assert backend.server is not None
    if what == "stop server":
        backend.server.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            backend.server.resume()
    else:
        await asyncio.to_thread(backend.server.kill)
        await asyncio.to_thread(backend.server.start)


async def strike_network(proxy: Proxy, what: str, seconds: float) -> None:
    if what == "cut":
        proxy.cut()
        return
    proxy.delay_s, proxy.mute = (seconds / 5, False) if what == "delay" else (0.0, True)
    try:
        await asyncio.sleep(seconds)
    finally:
        proxy.delay_s, proxy.mute = 0.0, False
        proxy.cut()  # what was swallowed is gone: nobody waits for it on the same connection


def find_violations(resource: Path, acknowledged: set[str]) -> list[str]:
    """L4 and L5, over what the resource kept."""
    with closing(sqlite3.connect(resource)) as conn:
        rows = conn.execute("SELECT item, fence, value FROM writes ORDER BY id").fetchall()
    found, highest = [], dict[str, int]()
    for item, fence, value in rows:
        if fence < highest.get(item, 0):
            found.append(f"L4: {item} accepted {value} with a fence that was over")
        highest[item] = max(fence, highest.get(item, 0))
    lost = acknowledged - {value for _, _, value in rows}
    if lost:
        found.append(f"L5: {len(lost)} of {len(acknowledged)} acknowledged writes are lost")
    return found
