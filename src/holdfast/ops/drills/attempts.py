"""The histories of a drill's jobs: what was done twice or never, and the bands and marks they make in the picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from holdfast.api import EventView, JobView
from holdfast.core.states import TERMINAL
from holdfast.errors import HoldfastError
from holdfast.ops.drills.findings import Band, Figure, Sign, Trouble
from holdfast.ops.drills.stage import Stage

ENDINGS = frozenset({"job.succeeded", "job.failed", "job.cancelled", "job.timed_out", "job.denied"})
LEFT = ENDINGS | {"job.lost", "job.retried", "job.parked", "job.handed_back"}
"""After these an attempt is over."""
DRAWN_JOBS_MAX = 12
MARKED_JOBS_MAX = 4
"""With more of them, that each ended well is no news."""
_REFUSED = ("attempt.refused", "effect.refused", "effect.unknown", "dispatch.rolled_back", "job.requeued")


async def judge_jobs(stage: Stage, ids: Sequence[str], *, promise: str = "P4") -> dict[str, list[EventView]]:
    """Each acknowledged job has ended, once. Their histories, for what else a drill wants to know."""
    lost, histories = 0, {}
    for job_id in ids:
        job = await stage.client.get(job_id)
        lost += job.state not in TERMINAL
        histories[job_id] = await stage.history(job_id)
    ends = [sum(event.kind in ENDINGS for event in history) for history in histories.values()]
    twice = sum(count > 1 for count in ends)
    stage.found(promise, "acknowledged jobs that did not end", lost, at_most=0)
    stage.found("P5", "jobs with more than one accepted outcome", twice, at_most=0)
    stage.figure(Figure.LOST, lost)
    stage.figure(Figure.DUPLICATES, twice)
    return histories


def runs_twice(stage: Stage, ids: Sequence[str]) -> int:
    """Attempts that were begun by two processes."""
    begun = Counter((note.item, note.attempt) for note in stage.journal.read("ran"))
    return sum(count > 1 for (item, _), count in begun.items() if item in ids)


async def draw_attempts(stage: Stage) -> None:
    """Leases as bands in the lanes of their workers, refusals as marks. What cannot be asked any more is left out."""
    if not stage.url:
        return
    with suppress(HoldfastError):
        jobs = (await stage.client.list(limit=DRAWN_JOBS_MAX)).items
        for job in reversed(jobs):
            _draw(stage, job, await stage.history(job.id), ends=len(jobs) <= MARKED_JOBS_MAX)


def _words(event: EventView) -> str:
    match event.kind:
        case "attempt.refused":
            return f"too late: {event.detail.get('what', 'its word')} of an attempt that is over, refused"
        case "effect.unknown":
            return "the attempt ended in the middle of an effect: whether it happened is unknown"
        case "dispatch.rolled_back":
            return "the bus did not take it: SCHEDULED again"
        case "job.requeued":
            return "dispatched, and nobody began: SCHEDULED again"
        case _:
            return event.kind


def _draw(stage: Stage, job: JobView, history: Sequence[EventView], *, ends: bool) -> None:
    timeline, open_band = stage.report.timeline, None
    lanes = set(timeline.lanes)
    workers: dict[int, str] = {}
    for event in history:
        at = stage.moment(event.at)
        lane = str(event.detail.get("worker", "")).partition("@")[0]
        if event.kind == "job.started" and lane in lanes:
            workers[event.fence] = lane
            label = f"{job.topic}, attempt {event.attempt}, fence {event.fence}"
            open_band = Band(lane=lane, kind=Trouble.LEASE, start=at, end=None, label=label)
            timeline.bands.append(open_band)
        elif event.kind in LEFT:
            if open_band is not None:
                open_band.end, open_band = at, None
            if ends and event.kind in ENDINGS and event.fence in workers:
                timeline.mark(workers[event.fence], Sign.ACCEPTED, event.kind.replace("job.", ""), at=at)
        elif event.kind in _REFUSED:
            offered = event.detail.get("offered_fence", 0)
            timeline.mark(workers.get(offered, timeline.lanes[0]), Sign.REFUSED, _words(event), at=at)
