"""Drills about planes: killed with everything else, paused beside another one, succeeded in what only one may do."""

from __future__ import annotations

from holdfast.ops.drills.attempts import judge_jobs, runs_twice
from holdfast.ops.drills.findings import Figure, Trouble
from holdfast.ops.drills.load import load_on
from holdfast.ops.drills.stage import LEASE_S, TAKEOVER_S_MAX, Plane, Stage, wall_s

ROUNDS = 3
SNAPSHOT_FAILOVER_S = 15.0
MACHINE_S = 3.0
"""What a busy machine may add to a time that is promised."""


async def kill_everything(stage: Stage) -> None:
    plane = await stage.start_plane()
    workers = {name: await stage.start_worker(name) for name in ("anna", "ben")}
    async with load_on(stage) as load:
        for number in range(ROUNDS):
            await load.grow(5)
            victims = [plane.process, *workers.values()][number % 2 :]
            for victim in victims:
                victim.kill()
            words = f"{', '.join(victim.name for victim in victims)} killed (-9), with {len(load.acknowledged)} jobs acknowledged"
            stage.fault("plane", words)
            bands = [stage.begin(victim.name, Trouble.DEAD, "dead") for victim in victims]
            killed_at = stage.now()
            if not plane.process.runs:
                plane = await stage.start_plane(port=plane.port)
            for name in [name for name, worker in workers.items() if not worker.runs]:
                workers[name] = await stage.start_worker(name)
            for band in bands:
                stage.finish(band)
            await load.grow(1, promise="P4")
            stage.figure(
                Figure.TAKEOVER_S, max(stage.report.figures.get(Figure.TAKEOVER_S, 0.0), stage.now() - killed_at)
            )
        await load.grow(5)
    ids = load.ids
    stage.tell(f"nobody is killed any more; {len(ids)} jobs were acknowledged")
    await stage.wait_ended(ids, promise="P4", within_s=90)
    await judge_jobs(stage, ids)
    stage.found("P5", "attempts begun twice", runs_twice(stage, ids), at_most=0)
    stage.found("P4", "two submissions became one job, or one became two", len(ids) - len(set(ids)), at_most=0)


async def reconciler_split(stage: Stage) -> None:
    planes = {
        plane.process.pid: plane for plane in (await stage.start_plane("plane 1"), await stage.start_plane("plane 2"))
    }
    pid = await stage.until("one of them is the reconciler", lambda: _holder_pid(stage, "reconciler", planes))
    first = planes.pop(pid)
    [second] = planes.values()
    stage.url = second.url
    anna = await stage.start_worker("anna")
    ids = [(await stage.submit("drill.tick")).id for _ in range(3)]
    for job_id in ids:
        await stage.wait_event(job_id, "job.started")
    band = await stage.paused(first.process, f"{first.process.name}, the reconciler, is stopped")
    anna.kill()
    killed_at = wall_s()
    stage.fault("anna", "anna is killed (-9): its jobs have nobody")
    stage.begin("anna", Trouble.DEAD, "dead")
    await stage.start_worker("ben")
    for job_id in ids:
        await stage.wait_event(job_id, "job.lost", promise="P7", within_s=90)
    taken_s = wall_s() - killed_at
    stage.figure(Figure.TAKEOVER_S, taken_s)
    stage.figure(Figure.BLIND_S, max(0.0, taken_s - LEASE_S))
    stage.tell(f"{second.process.name} has recovered all of them, {taken_s:.2f} s after anna's death")
    stage.resumed(
        first.process, band, f"{first.process.name} goes on in its tick, which is {second.process.name}'s by now"
    )
    await stage.wait_ended(ids, promise="P4", within_s=90)
    histories = await judge_jobs(stage, ids, promise="P7")
    lost = [sum(event.kind == "job.lost" and event.attempt == 1 for event in history) for history in histories.values()]
    stage.found("P7", "attempts recovered by both reconcilers", sum(count > 1 for count in lost), at_most=0)
    stage.found(
        "P7",
        "time until the jobs of a dead worker were recovered",
        round(taken_s, 3),
        unit="s",
        at_most=LEASE_S + TAKEOVER_S_MAX,
    )


async def _holder_pid(stage: Stage, family: str, planes: dict[int, Plane]) -> int:
    """The plane that holds the window: its holder's name ends in the id of its process."""
    for lock in (await stage.client.locks(family=family)).items:
        pid = lock.holder.rpartition(":")[2]
        if pid.isdigit() and int(pid) in planes:
            return int(pid)
    return 0


async def snapshot_failover(stage: Stage) -> None:
    planes = {
        plane.process.pid: plane for plane in (await stage.start_plane("plane 1"), await stage.start_plane("plane 2"))
    }
    pid = await stage.until("one of them writes the snapshot", lambda: _holder_pid(stage, "snapshot", planes))
    writer = planes.pop(pid)
    [other] = planes.values()
    stage.url = other.url
    await stage.start_worker("anna")
    writer.process.kill()
    killed_at = stage.now()
    stage.fault(writer.process.name, f"{writer.process.name}, which writes the snapshot of the workers, is killed (-9)")
    stage.begin(writer.process.name, Trouble.DEAD, "dead")
    await stage.until(
        "the other one writes it", lambda: _holder_pid(stage, "snapshot", {other.process.pid: other}), promise="P7"
    )
    taken_s = stage.now() - killed_at
    stage.figure(Figure.TAKEOVER_S, taken_s)
    stage.figure(Figure.BLIND_S, taken_s)
    stage.tell(f"{other.process.name} has taken over, after {taken_s:.2f} s")
    limit = SNAPSHOT_FAILOVER_S + MACHINE_S
    stage.found("P7", "time until another plane wrote the snapshot", round(taken_s, 3), unit="s", at_most=limit)
    job = await stage.submit("drill.after")
    await stage.wait_ended([job.id], promise="P4")
    await judge_jobs(stage, [job.id])
