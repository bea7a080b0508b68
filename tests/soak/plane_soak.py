"""A real plane on SQLite under load: killed and stopped for most of the time, then left alone and watched for leaks.

The load, the planes and the verdict are those of tests/crash/test_plane_kills.py: nothing acknowledged is lost,
nothing ends twice, the history has no gaps.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

from crash.test_plane_kills import Load, Planes, judge, unfinished
from servers import free_port

from soak.leaks import find_leaks, look_at
from soak.lock_soak import Tally

SETTINGS = '[topics."*"]\nlease_s = 2\ndispatch_timeout_s = 2\nmax_attempts = 1000\n'
ATTACKED = 0.6
"""Of the time. A plane that is killed again and again cannot be seen to grow."""
STANDSTILL_S = 60
"""People may submit faster than one worker works. What is left at the end may take its time, but not stand still."""


async def soak_plane(directory: Path, *, seconds: float, tells: bool = False) -> Tally:
    tally, began = Tally("plane on sqlite"), time.monotonic()
    store, chance = directory / "plane.db", random.Random()
    store.with_name("plane.toml").write_text(SETTINGS)
    async with Planes(store, free_port()) as planes:
        load = Load(planes.url)
        people = [asyncio.create_task(load.submit(who)) for who in range(4)]
        worker = asyncio.create_task(load.work())

        def look() -> None:
            tally.seconds = time.monotonic() - began
            tally.acknowledged = set(load.acknowledged.values())
            if tells:
                tally.show()

        try:
            await planes.start()
            while tally.seconds < ATTACKED * seconds:
                await strike(planes, chance)
                tally.strikes += 1
                look()
            while tally.seconds < seconds:
                await asyncio.sleep(0.25)
                assert planes._alive is not None
                sample = look_at(planes._alive)
                assert sample is not None, "the plane ended by itself"
                tally.samples.append(sample)
                look()
            load.stopping = True
            await asyncio.gather(*people)
            tally.violations += await drained(store)
        finally:
            for task in (*people, worker):
                task.cancel()
            ends = await asyncio.gather(*people, worker, return_exceptions=True)
            load.close()
    look()
    tally.violations += [f"the load ended by itself: {end}" for end in ends if isinstance(end, Exception)]
    try:
        judge(store, load)
    except AssertionError as broken:
        tally.violations.append(str(broken))
    tally.violations += find_leaks(tally.samples)
    return tally


async def drained(store: Path) -> list[str]:
    """Wait until every job has ended. What is wrong, if they do not."""
    left, since = unfinished(store), time.monotonic()
    while left:
        await asyncio.sleep(0.1)
        now_left = unfinished(store)
        if now_left < left:
            left, since = now_left, time.monotonic()
        elif time.monotonic() > since + STANDSTILL_S:
            return [f"{left} jobs stood still for {STANDSTILL_S} s"]
    return []


async def strike(planes: Planes, chance: random.Random) -> None:
    """Let it work for a moment; then kill it and start another one, or stop it for longer than a lease lasts."""
    await asyncio.sleep(chance.uniform(0.0, 1.0))
    if chance.random() < 0.7:
        await planes.kill()
        await planes.start()
        return
    assert planes._alive is not None
    os.kill(planes._alive, signal.SIGSTOP)
    try:
        await asyncio.sleep(chance.uniform(0.2, 3.0))
    finally:
        os.kill(planes._alive, signal.SIGCONT)
