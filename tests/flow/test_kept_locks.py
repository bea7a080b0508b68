"""The lock of a run: kept for a moment between its steps, and given back."""

from __future__ import annotations

import asyncio

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.run_stage import chain, runs_staged
from flow.telling import undelivered
from holdfast.flow.kept_locks import IDLE_S, KEEP_S, RUN, KeptLocks
from holdfast.locks import Holder, LockClass
from holdfast.locks.lease import Lease


@on_virtual_time
async def test_the_lock_is_kept_for_a_moment_and_then_given_back(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("three", 3))
        fences = []
        for step in ("s1", "s2"):
            await staged.do(run.id, step)
            await staged.first.engine.tick()
            fences.append((await staged.run(run.id)).fence)
        assert fences[0] == fences[1], "one lock for steps that follow each other at once"
        assert await staged.stage.locks.inspect(RUN, run.id) is not None
        await asyncio.sleep(3 * IDLE_S)
        assert await staged.stage.locks.inspect(RUN, run.id) is None

        await staged.do(run.id, "s3")
        await staged.first.tick()
        assert (await staged.run(run.id)).fence > fences[1]


@on_virtual_time
async def test_locks_that_are_just_given_back_are_given_back_before_it_stops(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs_staged(runtime) as staged:
        release = staged.stage.locks.release

        async def slowly(lease: Lease) -> None:
            await asyncio.sleep(IDLE_S)
            await release(lease)

        monkeypatch.setattr(staged.stage.locks, "release", slowly)
        run = await staged.start(chain("two", 2))
        await staged.do(run.id, "s1")
        await staged.first.engine.tick()
        await asyncio.sleep(1.5 * IDLE_S)  # it is on its way back now
        await staged.first.engine.stop()

        assert await staged.stage.locks.inspect(RUN, run.id) is None


@undelivered
@on_virtual_time
async def test_who_took_the_lock_after_a_dead_process_keeps_it(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs_staged(runtime) as staged:
        (dead, _), (alive, _) = await staged.another("E2"), await staged.another("E3")
        left = await dead.locks.acquire(RUN, "r1")
        inspect = staged.stage.locks.inspect

        async def inspect_later(lock_class: LockClass, key: str) -> Holder | None:
            await dead.locks.release(left)  # as if it had run out
            await alive.locks.acquire(lock_class, key)
            return await inspect(lock_class, key)

        monkeypatch.setattr(staged.stage.locks, "inspect", inspect_later)
        ours = KeptLocks(staged.stage.locks, RUN, runtime=runtime, is_gone=lambda holder: holder == "E2")

        assert await ours.try_take("r1") is None
        held = await inspect(RUN, "r1")
        assert held is not None
        assert held.holder == "E3"


@undelivered
@on_virtual_time
async def test_a_busy_lock_is_not_kept_from_others_for_long(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        other, _ = await staged.another("E2")

        async def be_busy() -> None:
            while True:
                if await staged.first.locks.try_take("r1") is not None:
                    staged.first.locks.put_back("r1")
                await asyncio.sleep(IDLE_S / 5)

        busy = asyncio.create_task(be_busy())
        await asyncio.sleep(1.0)
        before = runtime.now()
        lease = await other.locks.acquire(RUN, "r1")
        assert runtime.now() - before <= KEEP_S + 2 * IDLE_S
        await other.locks.release(lease)
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


@undelivered
@on_virtual_time
async def test_the_lock_of_an_engine_whose_process_is_gone_is_taken_over_at_once(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        other, _ = await staged.another("E2")
        await other.locks.acquire(RUN, "r1")
        ours = KeptLocks(staged.stage.locks, RUN, runtime=runtime, is_gone=lambda holder: holder == "E2")
        before = runtime.now()
        async with ours.hold("r1") as fence:
            assert fence > 0
        assert runtime.now() - before < RUN.ttl / 2
        history = await staged.stage.locks.history(RUN, "r1")
        assert "its process is gone" in str(history)
        await ours.close()
