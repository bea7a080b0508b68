"""A process that holds locks, driven by its parent: one word per line in, one line of facts out.

holder.py writes URL PREFIX TTL ITEM RESOURCE   guarded writes; after each "go" it tries stale ones
holder.py holds  URL PREFIX TTL ITEM            holds until it is killed
holder.py burns  URL PREFIX TTL ITEM WHERE KIND a section that burns CPU for longer than its ttl
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from contextlib import suppress

from holdfast.locks import Lease, LeaseLost, LockClass, LockError, Locks, Unavailable
from holdfast.locks.guards import guard

BURN_PER_TTL = 1.8


class Unbelieving:
    """A lease that never asks the clock: what it sends was checked long ago, before a pause."""

    def __init__(self, lease: Lease) -> None:
        self.key = lease.key
        self.fence = lease.fence
        self.next_seq = lease.next_seq
        self.numbered = lease.numbered

    def check(self) -> None:
        """Believes itself."""

    def fence_refused(self, resource: str) -> None:
        """Tells nobody."""


def say(*facts: object) -> None:
    print(*facts, flush=True)


async def hear() -> str:
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def write(lease: Lease | Unbelieving, conn: sqlite3.Connection, item: str) -> str:
    """One guarded write; the name of the error that refused it, or "accepted"."""
    try:
        with guard(lease, conn, item):
            conn.execute("INSERT INTO writes (item, fence) VALUES (?, ?)", (item, lease.fence))
    except LockError as refused:
        return type(refused).__name__
    return "accepted"


async def writes(locks: Locks, lock_class: LockClass, item: str, resource: str) -> None:
    conn = sqlite3.connect(resource, timeout=10)
    while True:
        block = "returned"
        tried: tuple[str, ...] = ()
        try:
            async with locks.hold(lock_class, item) as lease:
                say("held", lease.fence, write(lease, conn, item))
                # Stopped by the parent while it waits here. Cancelled or not, it tries to write when told to.
                hearing = asyncio.ensure_future(hear())
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(hearing)
                await hearing
                tried = write(lease, conn, item), write(Unbelieving(lease), conn, item)
        except LeaseLost:
            block = "LeaseLost"
        except Unavailable:
            block = "Unavailable"  # another one was stopped while it had the store's file for itself
        if tried:  # else nothing was begun, for that reason or because the grant came too late: asked again
            say("tried", *tried, block)


async def holds(locks: Locks, lock_class: LockClass, item: str) -> None:
    async with locks.hold(lock_class, item) as lease:
        say("held", lease.fence)
        await asyncio.sleep(60)


def python_loop(seconds: float) -> None:
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        count += 1


def c_call(seconds: float) -> None:
    """One call that keeps the GIL for at least about this long."""
    sum(range(int(seconds / FASTEST_STEP_S)))


def step_s() -> float:
    started = time.perf_counter()
    sum(range(100_000))
    return (time.perf_counter() - started) / 100_000


#: The fastest of several tries: a call that ends too early would show nothing.
FASTEST_STEP_S = min(step_s() for _ in range(20))


def c_calls(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        c_call(0.1)


async def burns(locks: Locks, lock_class: LockClass, item: str, where: str, kind: str) -> None:
    burn = {"python": python_loop, "short-calls": c_calls, "long-call": c_call}[kind]
    seconds = lock_class.ttl * BURN_PER_TTL
    try:
        async with locks.hold(lock_class, item):
            say("held")
            if where == "loop":
                burn(seconds)
            else:
                await asyncio.to_thread(burn, seconds)
            ended = time.monotonic()
    except LeaseLost as lost:
        say("lost", time.monotonic(), lost.reason)
    else:
        say("kept", ended)


async def main(role: str, url: str, prefix: str, ttl: str, item: str, *rest: str) -> None:
    lock_class = LockClass("real", ttl=float(ttl), wait=20, dead_man=role == "burns")
    async with Locks(url, prefix=prefix, holder=f"{role}-{item}") as locks:
        if role == "writes":
            await writes(locks, lock_class, item, *rest)
        elif role == "holds":
            await holds(locks, lock_class, item)
        else:
            await burns(locks, lock_class, item, *rest)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
