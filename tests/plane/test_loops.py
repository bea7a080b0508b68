"""Loops that listen: from the first start to the stop, and each commit once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from flow.stage import Stage, staged
from locks.virtual import VirtualRuntime, on_virtual_time

from holdfast.loops import Listener
from holdfast.ports import JobEvent


class Heard(Listener):
    def __init__(self, stage: Stage, runtime: VirtualRuntime) -> None:
        super().__init__("heard", store=stage.typed_store, every_s=60, runtime=runtime)
        self.kinds: list[str] = []

    def heard(self, events: Sequence[JobEvent]) -> None:
        self.kinds += [event.kind for event in events]

    async def tick(self) -> None:
        return


@on_virtual_time
async def test_starting_twice_is_starting_once_and_stopping_ends_it(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        loop = Heard(stage, runtime)
        await stage.submit()
        await asyncio.sleep(0.1)
        loop.start()
        loop.start()
        await stage.submit()
        await asyncio.sleep(0.1)  # listeners are told after the commit
        await loop.stop()
        await loop.stop()
        await stage.submit()
        await asyncio.sleep(0.1)

        assert loop.kinds == ["job.submitted"]


@on_virtual_time
async def test_loop_that_was_stopped_can_be_started_again(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        loop = Heard(stage, runtime)
        loop.start()
        await loop.stop()
        loop.start()
        await stage.submit()
        await asyncio.sleep(0.1)  # listeners are told after the commit
        await loop.stop()

        assert loop.kinds == ["job.submitted"]
