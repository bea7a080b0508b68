"""What may be said of a fleet's work afterwards: by the history of the plane, and by the ledger outside it."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from holdfast.ports import JobEvent
from soak.fleet_tasks import ACCEPTED, REFUSED, REPEATED

ENDS = {"job.succeeded", "job.failed", "job.timed_out", "job.cancelled", "job.denied"}


class Arrival(NamedTuple):
    job: str
    fence: int
    was: str


def read_ledger(ledger: Path) -> list[Arrival]:
    with closing(sqlite3.connect(ledger)) as connection:
        return [Arrival(*row) for row in connection.execute("SELECT job, fence, was FROM arrivals ORDER BY id")]


def judge(acknowledged: Mapping[str, str], events: Sequence[JobEvent], arrivals: Sequence[Arrival]) -> list[str]:
    """Every promise that was broken. `acknowledged` is jobs by their idempotency keys, and every key is in it."""
    found = []
    numbers = [event.number for event in events]
    if numbers != sorted(set(numbers)):
        found.append("two events have one number")
    if len(set(acknowledged.values())) != len(acknowledged):
        found.append("two keys share a job")
    histories: defaultdict[str, list[JobEvent]] = defaultdict(list)
    for event in events:
        if event.job_id:
            histories[event.job_id].append(event)
    unknown = set(histories).difference(acknowledged.values())
    if unknown:
        found.append(f"{len(unknown)} jobs more than keys: a submission that was repeated made another one")
    for job_id in acknowledged.values():
        found += [f"{job_id}: {what}" for what in judge_job(histories[job_id])]
    return found + judge_effects(histories, arrivals)


def judge_job(history: Sequence[JobEvent]) -> list[str]:
    """It was stored once and ended once; its fences grew with each dispatch, and each was begun at most once."""
    kinds = Counter(event.kind for event in history)
    found = []
    if kinds["job.submitted"] != 1:
        found.append(f"submitted {kinds['job.submitted']} times")
    ends = sum(kinds[kind] for kind in ENDS)
    if ends != 1:
        found.append(f"ended {ends} times: {' '.join(event.kind for event in history)}")
    dispatched = [event.fence for event in history if event.kind == "job.dispatched"]
    if dispatched != sorted(set(dispatched)):
        found.append(f"dispatched with fences {dispatched}")
    started = [event.fence for event in history if event.kind == "job.started"]
    if started != sorted(set(started)) or not set(started) <= set(dispatched):
        found.append(f"started with fences {started}, dispatched with {dispatched}")
    if any(event.fence != started[-1:][0] for event in history if event.kind == "job.succeeded" and started):
        found.append(f"an outcome was taken that is not of the last attempt, {started}")
    return found


def judge_effects(histories: Mapping[str, Sequence[JobEvent]], arrivals: Sequence[Arrival]) -> list[str]:
    found = []
    accepted = Counter(arrival.job for arrival in arrivals if arrival.was == ACCEPTED)
    twice = [job for job, count in accepted.items() if count > 1]
    if twice:
        found.append(f"{len(twice)} effects were accepted twice: {twice[:3]}")
    attempts = Counter((arrival.job, arrival.fence) for arrival in arrivals)
    again = [attempt for attempt, count in attempts.items() if count > 1]
    if again:
        found.append(f"{len(again)} attempts came twice: {again[:3]}")
    for job_id, history in histories.items():
        if any(event.kind == "job.succeeded" for event in history) and not accepted[job_id]:
            found.append(f"{job_id}: succeeded without its effect")
    begun = {(event.job_id, event.fence) for history in histories.values() for event in history if is_start(event)}
    strange = set(attempts) - begun
    if strange:
        found.append(f"{len(strange)} effects are of attempts that never began: {sorted(strange)[:3]}")
    return found


def is_start(event: JobEvent) -> bool:
    return event.kind == "job.started"


def figures(events: Sequence[JobEvent], arrivals: Sequence[Arrival]) -> dict[str, int]:
    kinds = Counter(event.kind for event in events)
    was = Counter(arrival.was for arrival in arrivals)
    return {
        "succeeded": kinds["job.succeeded"],
        "attempts": kinds["job.started"],
        "lost attempts": kinds["job.lost"],
        "requeued": kinds["job.requeued"],
        "rolled back": kinds["dispatch.rolled_back"],
        "refused words": kinds["attempt.refused"],
        "effects repeated": was[REPEATED],
        "effects refused": was[REFUSED],
    }
