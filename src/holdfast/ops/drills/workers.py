"""Drills about workers: paused, cut off, killed in the middle of an effect, told everything many times."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from holdfast import api
from holdfast.api import EventView, ResolveEffect
from holdfast.client.asks import Ask, post_ask, read_as
from holdfast.errors import HoldfastError
from holdfast.ops.drills.attempts import ENDINGS, judge_jobs
from holdfast.ops.drills.book import entries, stale_accepted
from holdfast.ops.drills.findings import Figure, Sign, Trouble
from holdfast.ops.drills.stage import TAKEOVER_S_MAX, Stage, wall_s
from holdfast.ops.proxy import Proxy

STORM_JOBS = 5
REPEATS = 8


async def pause_worker(stage: Stage) -> None:
    if not stage.site.plane:
        await stage.start_plane()
    anna = await stage.start_worker("anna")
    job = await stage.submit("drill.write")
    await stage.until("anna has written", lambda: _noted(stage, "accepted", job.id, attempt=1))
    await stage.start_worker("ben")
    running = await stage.client.get(job.id)
    band = await stage.paused(anna, "anna is stopped in the middle of its job: nobody renews its lease")
    paused_at = wall_s()
    second = await _taken_over(stage, job.id, fault_at=paused_at, lease_until=running.lease_until or paused_at)
    stage.tell(f"ben has the job, {second.at - paused_at:.2f} s after anna was stopped")
    await stage.wait_ended([job.id], promise="P4")

    (stage.folder / "go").touch()
    stage.resumed(anna, band, "anna goes on, and writes what it had prepared")
    await stage.until("the late write is refused", lambda: _late_write(stage, job.id))
    refused = len(stage.journal.read("refused", job.id, 1))
    stage.report.timeline.mark("anna", Sign.REFUSED, "late write: its fence is too low", at=stage.now())
    accepted = await _say_late(stage, job.id, running.worker, running.fence)
    stage.found(
        "P1", "writes under an older fence that the resource accepted", stale_accepted(entries(stage.folder)), at_most=0
    )
    stage.found("P1", "late writes that the resource refused", refused, at_least=1)
    stage.found("P5", "late results that the plane accepted", accepted, at_most=0)
    histories = await judge_jobs(stage, [job.id])
    late = sum(event.kind == "attempt.refused" for event in histories[job.id])
    stage.found("P5", "late words refused, kept as evidence in the job's history", late, at_least=1)
    stage.figure(Figure.STALE_REFUSED, refused + late)


async def _late_write(stage: Stage, job_id: str) -> bool:
    """The first attempt has tried its second write, whatever came of it."""
    return len(stage.journal.read(item=job_id, attempt=1)) > 1


async def _noted(stage: Stage, what: str, job_id: str, *, attempt: int) -> bool:
    return bool(stage.journal.read(what, job_id, attempt))


async def _taken_over(stage: Stage, job_id: str, *, fault_at: float, lease_until: float) -> EventView:
    second = await stage.until(
        "another worker has begun", lambda: stage.event(job_id, "job.started", nth=2), promise="P7", within_s=120
    )
    stage.figure(Figure.TAKEOVER_S, second.at - fault_at)
    blind_s = max(0.0, second.at - lease_until)
    stage.figure(Figure.BLIND_S, blind_s)
    stage.found("P7", "time in which nobody looked after the job", round(blind_s, 3), unit="s", at_most=TAKEOVER_S_MAX)
    return second


async def _say_late(stage: Stage, job_id: str, worker: str, fence: int) -> int:
    """The result of the first attempt, as a network delivers it that had kept it for long. 1 if it was taken."""
    outcome = api.Outcome(job_id=job_id, fence=fence, outcome="succeeded", result={"by": "a late one"})
    said = api.CompleteWork(worker=worker, outcomes=[outcome])
    try:
        await stage.client.ask(post_ask("/v1/work/complete", read_as(api.Standings), said))
    except HoldfastError as refused:
        stage.tell(f"anna's result, delivered late: refused ({refused.code})")
        return 0
    stage.tell("anna's result, delivered late: TAKEN")
    return 1


async def renewal_outage(stage: Stage) -> None:
    if not stage.site.plane:
        await stage.start_plane()
    where = urlsplit(stage.url)
    async with Proxy(where.port or 80, host=where.hostname or "127.0.0.1") as proxy:
        await stage.start_worker("anna", url=proxy.url(stage.url))
        job = await stage.submit("drill.tick")
        await stage.until("anna works", lambda: _noted(stage, "alive", job.id, attempt=1))
        await stage.start_worker("ben")
        proxy.deaf = True
        fault_at = wall_s()
        running = await stage.client.get(job.id)
        stage.fault("anna", "what anna says no longer arrives; its connections stay open, its work goes on")
        band = stage.begin("anna", Trouble.CUT_OFF, "cut off: renewals hang")
        second = await _taken_over(stage, job.id, fault_at=fault_at, lease_until=running.lease_until or fault_at)
        await stage.wait_ended([job.id], promise="P4")
        last = max(note.at for note in stage.journal.read("alive", job.id, 1))
        stage.report.timeline.mark("anna", Sign.NOTE, "anna's handler is stopped", at=stage.moment(last))
        overlap_s = last - second.at
        stage.tell(f"anna's handler lived until {-overlap_s:.2f} s before ben began")
        stage.found("P2", "time in which both worked (negative: a gap)", round(overlap_s, 3), unit="s", at_most=0.0)
        stage.finish(band)
        proxy.deaf = False
        proxy.cut()
        stage.tell("anna is heard again")
        await judge_jobs(stage, [job.id])


async def kill_mid_effect(stage: Stage) -> None:
    if not stage.site.plane:
        await stage.start_plane()
    anna = await stage.start_worker("anna")
    job = await stage.client.submit("drill.pay", stage.payload(seconds=600), risk="high")
    await stage.until("the bank has paid", lambda: _paid(stage))
    anna.kill()
    stage.fault("anna", "anna is killed (-9): the bank has paid, and anna has not heard it")
    stage.begin("anna", Trouble.DEAD, "dead")
    await stage.start_worker("ben")
    await stage.until("the effect is on the worklist", lambda: _unknown(stage, job.id), promise="P9", within_s=120)
    stage.tell("the effect is unknown: it is on the worklist, and nobody repeats it")
    await stage.until("the job waits for a person", lambda: stage.event(job.id, "job.parked"), promise="P9")
    stage.found(
        "P9", "payments after the takeover, before a person decided", len(entries(stage.folder)), at_least=1, at_most=1
    )
    unknown = len((await stage.client.effects(state="unknown", job_id=job.id)).items)
    stage.found("P9", "unknown effects on the worklist", unknown, at_least=1, at_most=1)

    found = ResolveEffect(state="committed", result={"paid": True}, reason="seen in the bank's book")
    await stage.client.resolve_effect(job.id, "pay", found)
    stage.tell("a person says: it has been paid")
    await stage.wait_ended([job.id], promise="P4")
    stage.found("P9", "payments in all", len(entries(stage.folder)), at_least=1, at_most=1)
    await judge_jobs(stage, [job.id])
    stage.figure(Figure.DUPLICATES, len(entries(stage.folder)) - 1)


async def _paid(stage: Stage) -> bool:
    return bool(entries(stage.folder))


async def _unknown(stage: Stage, job_id: str) -> bool:
    return bool((await stage.client.effects(state="unknown", job_id=job_id)).items)


async def redelivery_storm(stage: Stage) -> None:
    """Speaks the protocol of workers itself: a worker of ours would not repeat itself like this."""
    if not stage.site.plane:
        await stage.start_plane()
    stage.report.timeline.lane("storm")
    topic, me = "storm.work", f"storm-{stage.folder.name[-8:]}"
    await stage.client.ask(_work("hello", api.Hello(worker=me, name=me, topics=[topic], slots=STORM_JOBS)))
    ids = await stage.submit_many(topic, STORM_JOBS)
    taken: dict[str, int] = {}
    while len(taken) < STORM_JOBS:
        claim = api.Claim(worker=me, limit=STORM_JOBS, wait_s=1.0)
        deliveries = await stage.client.ask(post_ask("/v1/work/claim", read_as(api.Deliveries), claim))
        taken |= {delivery.job_id: delivery.fence for delivery in deliveries.deliveries}
    stage.fault(
        "storm", f"each of {STORM_JOBS} deliveries is started {REPEATS} times, and ended {REPEATS} times, all at once"
    )
    refs = [api.AttemptRef(job_id=job_id, fence=fence) for job_id, fence in taken.items()]
    start = _work("start", api.StartWork(worker=me, attempts=refs))
    await asyncio.gather(*(stage.client.ask(start) for _ in range(REPEATS)))
    answers = await asyncio.gather(
        *(_end(stage, me, job_id, fence, kind) for kind in _ends() for job_id, fence in taken.items())
    )
    contradicted = sum(not taken for kind, taken in answers if kind == "failed")
    histories = await judge_jobs(stage, ids)
    started = [sum(event.kind == "job.started" for event in history) for history in histories.values()]
    stage.found("P5", "attempts begun more than once", sum(count > 1 for count in started), at_most=0)
    stage.found(
        "P5",
        "outcomes accepted",
        sum(_ended_events(history) for history in histories.values()),
        at_least=STORM_JOBS,
        at_most=STORM_JOBS,
    )
    stage.found("P5", "contradicting outcomes refused", contradicted, at_least=STORM_JOBS)
    stage.figure(Figure.STALE_REFUSED, contradicted)


def _ended_events(history: list[EventView]) -> int:
    return sum(event.kind in ENDINGS for event in history)


def _ends() -> list[str]:
    """The first is the truth; what contradicts it comes when it is long known."""
    return ["succeeded"] * REPEATS + ["failed"]


async def _end(stage: Stage, me: str, job_id: str, fence: int, kind: str) -> tuple[str, bool]:
    if kind == "failed":
        await stage.wait_ended([job_id], promise="P4")
    outcome = api.Outcome(job_id=job_id, fence=fence, outcome=kind)
    try:
        await stage.client.ask(_work("complete", api.CompleteWork(worker=me, outcomes=[outcome])))
    except HoldfastError:
        return kind, False
    return kind, True


def _work(verb: str, body: api.Request) -> Ask[None]:
    return post_ask(f"/v1/work/{verb}", lambda _: None, body)
