"""Drills about the store: away for a while, and slow for a while, under load."""

from __future__ import annotations

import asyncio

from holdfast.ops.drills.attempts import judge_jobs, runs_twice
from holdfast.ops.drills.findings import Figure, Trouble
from holdfast.ops.drills.load import Load, load_on
from holdfast.ops.drills.stage import TAKEOVER_S_MAX, Stage

OUTAGE_S = 4.0
SLOW_S = 5.0


async def store_outage(stage: Stage) -> None:
    await stage.start_plane()
    await stage.start_worker("anna")
    async with load_on(stage) as load:
        await load.grow(5)
        await stage.store.outage()
        stage.fault("plane", f"the store is taken away for {OUTAGE_S:.0f} s")
        band = stage.begin("plane", Trouble.OUTAGE, "store away")
        before = len(load.acknowledged)
        await asyncio.sleep(OUTAGE_S)
        false = len(load.acknowledged) - before
        await stage.store.heal()
        stage.finish(band)
        back_at = stage.now()
        stage.tell("the store is back")
        await load.grow(5, promise="P4")
        recovered_s = stage.now() - back_at
    # One that was under way when the store went may have been written just before.
    stage.found("P4", "submissions acknowledged while nothing could be stored", false, at_most=1)
    stage.found(
        "P4", "time until submissions were acknowledged again", round(recovered_s, 3), unit="s", at_most=TAKEOVER_S_MAX
    )
    stage.figure(Figure.TAKEOVER_S, recovered_s)
    stage.figure(Figure.BLIND_S, OUTAGE_S + recovered_s)
    await _judge(stage, load)


async def slow_store(stage: Stage) -> None:
    await stage.start_plane()
    await stage.start_worker("anna")
    async with load_on(stage) as load:
        await load.grow(5)
        usual = _median(load.latencies)
        await stage.store.slow()
        stage.fault("plane", f"the store is slow for {SLOW_S:.0f} s")
        band = stage.begin("plane", Trouble.SLOW, "store slow")
        seen = len(load.latencies)
        await asyncio.sleep(SLOW_S)
        await stage.store.heal()
        stage.finish(band)
        slow = _median(load.latencies[seen:])
        stage.tell(
            f"the store is fast again; a submission took {usual * 1000:.0f} ms before, {slow * 1000:.0f} ms meanwhile"
        )
        await load.grow(5, promise="P4")
    stage.found("P4", "submissions acknowledged while the store was slow", len(load.latencies) - seen, at_least=1)
    stage.found("P4", "median time of a submission meanwhile", round(slow, 4), unit="s")
    await _judge(stage, load)


async def _judge(stage: Stage, load: Load) -> None:
    stage.tell(f"{len(load.ids)} jobs were acknowledged, {load.unanswered} submissions got no answer and were repeated")
    await stage.wait_ended(load.ids, promise="P4", within_s=90)
    await judge_jobs(stage, load.ids)
    stage.found("P5", "attempts begun twice", runs_twice(stage, load.ids), at_most=0)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
