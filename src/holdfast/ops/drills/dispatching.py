"""Drills about dispatch on a bus that is apart from the store: the publish fails, the rollback fails, too."""

from __future__ import annotations

from holdfast.api import EventView
from holdfast.ops.drills.attempts import judge_jobs, runs_twice
from holdfast.ops.drills.bus_switch import BusFault
from holdfast.ops.drills.findings import Figure, Trouble
from holdfast.ops.drills.scrape import read_metric
from holdfast.ops.drills.stage import DISPATCH_TIMEOUT_S, TAKEOVER_S_MAX, Stage, wall_s

JOBS = 6
DUE_S = 1.0
TRY_S = 6.0
"""After they are due: time enough to try."""


async def publish_failure(stage: Stage) -> None:
    await stage.start_plane(apart=True)
    await stage.start_worker("anna")
    ids = await _write_fails(stage)
    await _break_bus(stage, BusFault.REFUSE)
    stage.fault("plane", "the bus is taken away: publishes fail")
    band = stage.begin("plane", Trouble.OUTAGE, "bus away: publishes fail")
    refused = await stage.submit_many("drill.refused", JOBS)
    for job_id in refused:
        await stage.wait_event(job_id, "dispatch.rolled_back", promise="P6")
    stage.tell(f"all {JOBS} jobs are SCHEDULED again")
    if stage.bus is None:
        await _break_bus(stage, BusFault.LOSE_ANSWER)
        stage.fault("plane", "the bus takes deliveries, and its answers are lost")
        ids += await stage.submit_many("drill.unanswered", JOBS)
        await stage.until("one is rolled back", lambda: stage.event(ids[-1], "dispatch.rolled_back"), promise="P6")
    await _break_bus(stage, BusFault.NONE)
    stage.finish(band)
    healed_at = wall_s()
    stage.tell("the bus is back")
    ids += refused
    await stage.wait_ended(ids, promise="P4", within_s=90)
    stage.figure(Figure.TAKEOVER_S, wall_s() - healed_at)
    histories = await judge_jobs(stage, ids)
    rolled_back = [sum(event.kind == "dispatch.rolled_back" for event in histories[job_id]) for job_id in refused]
    stage.found(
        "P6", "jobs whose publish failed and who went back to SCHEDULED", sum(map(bool, rolled_back)), at_least=JOBS
    )
    stage.found("P6", "attempts that failed publishes cost", _attempts(histories) - len(ids), at_most=0)
    stage.found("P5", "attempts begun twice", runs_twice(stage, ids), at_most=0)
    if stage.bus is None:
        unwritten = [sent for sent in stage.switch.publishes() if sent not in _dispatched(histories)]
        stage.found("P6", "deliveries published without a DISPATCHED state", len(unwritten), at_most=0)


async def _write_fails(stage: Stage) -> list[str]:
    """The store takes no write when jobs become due: DISPATCHED cannot be written, so nothing may be sent."""
    ids = await stage.submit_many("drill.due", JOBS, delay_s=DUE_S)
    await stage.store.outage()
    stage.fault("plane", "the store takes no writes when jobs become due: DISPATCHED cannot be written")
    band = stage.begin("plane", Trouble.OUTAGE, "store away: no state, no publish")
    tried_until = stage.now() + DUE_S + TRY_S

    async def tried() -> bool:
        failed = await read_metric(stage, stage.url, "dispatch_retries_total", 'phase="dispatched_write"')
        return failed > 0 or stage.now() > tried_until  # a server that cannot be read is not even tried to be written

    await stage.until("it was tried", tried)
    published = len(stage.switch.publishes())
    await stage.store.heal()
    stage.finish(band)
    stage.tell("the store is back")
    if stage.bus is None:
        stage.found("P6", "deliveries published while DISPATCHED could not be written", published, at_most=0)
    return ids


def _attempts(histories: dict[str, list[EventView]]) -> int:
    return sum(event.kind == "job.started" for history in histories.values() for event in history)


def _dispatched(histories: dict[str, list[EventView]]) -> set[tuple[str, int]]:
    return {
        (job, event.fence) for job, history in histories.items() for event in history if event.kind == "job.dispatched"
    }


async def rollback_failure(stage: Stage) -> None:
    await stage.start_plane(apart=True)
    await stage.start_worker("anna")
    await _break_bus(stage, BusFault.SILENT)
    stage.fault("plane", "the bus falls silent")
    band = stage.begin("plane", Trouble.OUTAGE, "bus silent")
    job = await stage.submit("drill.stuck")
    dispatched = await stage.until("it is DISPATCHED", lambda: stage.event(job.id, "job.dispatched"))
    await stage.store.outage()
    stage.fault("plane", "the store is taken away as well, before the publish fails: it cannot be rolled back")
    await _break_bus(stage, BusFault.REFUSE)
    counted = await stage.until(
        "the failed rollback is counted",
        lambda: read_metric(stage, stage.url, "dispatch_rollback_failed_total", 'topic="drill.stuck"'),
        promise="P6",
    )
    stage.tell("the rollback has failed, and is counted: the job is DISPATCHED, and no message is under way")
    await stage.store.heal()
    await _break_bus(stage, BusFault.NONE)
    stage.finish(band)
    stage.tell("store and bus are back")
    await stage.wait_ended([job.id], promise="P6", within_s=90)
    history = await stage.history(job.id)
    again = [event for event in history if event.kind in {"job.requeued", "dispatch.rolled_back"}]
    second = [event for event in history if event.kind == "job.dispatched"][1:]
    stage.found("P6", "rollbacks that failed, as the metric counts them", counted, at_least=1)
    stage.found("P6", "re-dispatches", len(second), at_least=1)
    ended = (await stage.client.get(job.id)).state
    stage.found("P6", "it ended in a timeout instead", ended != "SUCCEEDED", at_most=0)
    if second:
        stuck_s = second[0].at - dispatched.at
        stage.figure(Figure.TAKEOVER_S, stuck_s)
        stage.figure(Figure.BLIND_S, max(0.0, stuck_s - DISPATCH_TIMEOUT_S))
        limit = DISPATCH_TIMEOUT_S + TAKEOVER_S_MAX
        stage.found("P6", "time until it was dispatched again", round(stuck_s, 3), unit="s", at_most=limit)
    stage.tell(f"it was dispatched again after {', '.join(event.kind for event in again) or 'nothing'}, and succeeded")
    stage.found("P5", "attempts begun twice", runs_twice(stage, [job.id]), at_most=0)
    await judge_jobs(stage, [job.id])


async def _break_bus(stage: Stage, fault: BusFault) -> None:
    if stage.bus is None:
        stage.switch.set(fault)
        return
    await stage.bus.heal()
    if fault is BusFault.SILENT:
        await stage.bus.silence()
    elif fault is not BusFault.NONE:
        await stage.bus.outage()
