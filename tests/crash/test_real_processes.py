"""Real processes on real servers: stopped past their ttl, killed, or burning CPU. Row 47.

A Redis primary replaced by a lagging replica is in tests/locks/test_redis_places.py.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness import Backend
from locks.faults import Proxy

from holdfast.locks import Lease, LockBusy, LockClass, Locks, Unavailable

HOLDER = Path(__file__).parent / "holder.py"
VICTIMS = 10
ROUNDS_EACH = 2


class Process:
    """A holder process and its two pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def hear(self, first: str) -> list[str]:
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            line = (await self._process.stdout.readline()).decode().split()
        assert line[:1] == [first], f"expected {first!r}, heard {line}: {await self.errors()}"
        return line[1:]

    async def rest(self) -> list[str]:
        """The last line, or nothing; after that the process has ended."""
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            said = (await self._process.stdout.read()).decode().split()
            await self._process.wait()
        return said

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def errors(self) -> str:
        assert self._process.stderr is not None
        return (await self._process.stderr.read()).decode()

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


@asynccontextmanager
async def holder(*arguments: object) -> AsyncIterator[Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, HOLDER, *map(str, arguments), stdin=pipe, stdout=pipe, stderr=pipe
    )
    started = Process(process)
    try:
        yield started
    finally:
        await started.end()


@asynccontextmanager
async def link(backend: Backend) -> AsyncIterator[tuple[str, Proxy]]:
    """A proxy of its own to the store. A file has no network that could be slow: there it does nothing."""
    async with Proxy(backend.server.port if backend.server else 0) as proxy:
        yield proxy.url(backend.url) if backend.server else backend.url, proxy


def make_resource(path: Path) -> None:
    conn = sqlite3.connect(path)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("CREATE TABLE writes (id INTEGER PRIMARY KEY, item TEXT NOT NULL, fence INTEGER NOT NULL)")
    conn.close()


def stale_writes(path: Path) -> tuple[int, int]:
    """How many accepted writes carried a lower fence than an earlier one of their item, and how many there are."""
    conn = sqlite3.connect(path)
    rows = conn.execute("SELECT item, fence FROM writes ORDER BY id").fetchall()
    conn.close()
    highest: dict[str, int] = {}
    stale = 0
    for item, fence in rows:
        stale += fence < highest.get(item, 0)
        highest[item] = max(fence, highest.get(item, 0))
    return stale, len(rows)


@asynccontextmanager
async def succeeded(locks: Locks, lock_class: LockClass, item: str, victim: Process) -> AsyncIterator[Lease]:
    """Stop the victim and take over from it."""
    while True:
        victim.send(signal.SIGSTOP)
        try:
            lease = await locks.acquire(lock_class, item)
        except (Unavailable, LockBusy):
            # Stopped inside its own commit it keeps a SQLite file locked: nobody can be granted anything then.
            victim.send(signal.SIGCONT)
            continue
        try:
            yield lease
        finally:
            await locks.release(lease)
        return


async def test_stopped_past_the_ttl_on_a_slow_network_no_stale_write_is_accepted(
    backend: Backend, tmp_path: Path
) -> None:
    """Ten processes, two stops each: every one is stopped in its section, outlived by its lease, succeeded,
    and continued; what it then sends was checked before the stop. Renewals and releases travel slowly."""
    ttl = max(0.4, backend.ttl_ms / 1000)
    # The successors' own leases are not the subject: they may not be lost to a slow machine.
    lock_class = LockClass("real", ttl=10, wait=3 * ttl + 1)
    resource = tmp_path / "resource.db"
    make_resource(resource)
    rng = random.Random(20)

    async def rounds(locks: Locks, item: str) -> list[list[str]]:
        outcomes = []
        conn = sqlite3.connect(resource, timeout=10)
        async with (
            link(backend) as (url, proxy),
            holder("writes", url, backend.prefix, ttl, item, resource) as victim,
        ):
            for _ in range(ROUNDS_EACH):
                proxy.delay_s = rng.uniform(0.001, ttl / 40)
                await victim.hear("held")
                # From here on what the victim sends takes half a ttl, and arrives in its successor's time.
                await asyncio.sleep(rng.uniform(0, ttl / 2))
                proxy.delay_s = ttl / 2
                await asyncio.sleep(rng.uniform(0, ttl / 4))
                async with succeeded(locks, lock_class, item, victim) as lease:
                    with lease.guard(conn, item):
                        conn.execute("INSERT INTO writes (item, fence) VALUES (?, ?)", (item, lease.fence))
                    victim.send(signal.SIGCONT)
                    victim.say("go")
                    outcomes.append(await victim.hear("tried"))
                    await asyncio.sleep(ttl / 2)
                    lease.check()
        conn.close()
        return outcomes

    async with Locks(backend.url, prefix=backend.prefix) as locks:
        by_victim = await asyncio.gather(*(rounds(locks, f"job-{n}") for n in range(VICTIMS)))

    outcomes = [outcome for outcomes in by_victim for outcome in outcomes]
    stale, accepted = stale_writes(resource)
    assert len(outcomes) == VICTIMS * ROUNDS_EACH
    assert stale == 0
    # Both of each round were meant to be accepted; a slow machine may have cost a victim its first one.
    assert accepted >= 1.5 * len(outcomes)
    assert {honest for honest, _, _ in outcomes} <= {"LeaseLost", "StaleFence"}
    assert {unbelieving for _, unbelieving, _ in outcomes} == {"StaleFence"}
    assert {block for _, _, block in outcomes} == {"LeaseLost"}


async def test_a_killed_holder_is_succeeded_within_its_ttl(backend: Backend) -> None:
    ttl = max(0.5, backend.ttl_ms / 1000)
    lock_class = LockClass("real", ttl=ttl, wait=20)
    async with Locks(backend.url, prefix=backend.prefix) as locks:
        async with holder("holds", backend.url, backend.prefix, ttl, "x") as victim:
            [fence] = await victim.hear("held")
            waiting = asyncio.create_task(locks.acquire(lock_class, "x"))
            await asyncio.sleep(1.2 * ttl)
            assert not waiting.done()
            victim.send(signal.SIGKILL)
            killed = time.monotonic()
            lease = await waiting

        assert time.monotonic() - killed <= ttl + 1
        assert lease.fence > int(fence)
        await locks.release(lease)


@pytest.mark.parametrize("kind", ["python", "short-calls", "long-call"])
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_burning_cpu_no_section_goes_on_after_its_lease(tmp_path: Path, where: str, kind: str) -> None:
    """With the dead-man's timer: kept, or told, or ended; never still at work when the next one is granted."""
    url, ttl = f"sqlite:///{tmp_path}/locks.db", 1.0
    async with Locks(url) as locks:
        async with holder("burns", url, "holdfast:", ttl, "x", where, kind) as burner:
            await burner.hear("held")
            async with locks.hold(LockClass("real", ttl=ttl, wait=20), "x"):
                granted = time.monotonic()
            said = await burner.rest()
            errors = await burner.errors()

    if kind == "long-call":
        # Nobody can renew behind a call that keeps the GIL: the timer ends the process, and says where it hung.
        assert said == []
        assert "Timeout" in errors
        assert "c_call" in errors
    elif said:
        outcome, ended = said[0], float(said[1])
        assert outcome in ("kept", "lost")
        assert ended <= granted
    else:
        assert "Timeout" in errors
