"""The world itself: time passes by rule, and nothing goes on for ever in it."""

from __future__ import annotations

import asyncio

import pytest

from simulation.world import LOOK_S, World


async def tick(ticks: list[float], world: World, *, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        ticks.append(world.passed_s)


def test_time_passes_until_there_is_nothing_more_to_wait_for() -> None:
    world, ticks = World(1), list[float]()
    world.process("one").start(tick(ticks, world, every_s=0.1))

    world.run(until=100.0, unless=lambda: len(ticks) >= 3)
    world.end()

    assert 0.3 <= world.passed_s <= 0.3 + 2 * LOOK_S


def test_time_passes_until_the_end_if_there_always_is() -> None:
    world, ticks = World(1), list[float]()
    world.process("one").start(tick(ticks, world, every_s=1.0))

    world.run(until=10.0, unless=lambda: False)

    assert world.passed_s == 10.0
    assert [round(at) for at in ticks] == list(range(1, 11))
    world.end()


def test_a_process_that_never_rests_is_found() -> None:
    world = World(1)
    world.steps_max = 1000
    world.process("one").start(tick([], world, every_s=0.0))

    with pytest.raises(AssertionError, match="without end"):
        world.run(until=1.0)
    world.end()
