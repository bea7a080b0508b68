"""Record: how an attempt ended becomes how the job goes on. Once per attempt, by its fence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.core.job import PARKED_UNTIL, Job, JobId, step
from holdfast.core.states import Event, State
from holdfast.core.topic import Topic, Topics
from holdfast.flow.advance import Advancer
from holdfast.flow.execute import Standing, refuse
from holdfast.flow.session import why_stopped
from holdfast.locks.runtime import Runtime
from holdfast.ports import Change, Store
from holdfast.telemetry import Telemetry

EFFECT_UNKNOWN = "effect-unknown"
"""The error code of an attempt that met an effect which an earlier one may have performed."""
STOPPED = {"code": "cancelled", "message": "stopped on request"}
RAN_TOO_LONG = {"code": "running-timeout", "message": "ran for longer than its topic allows"}


class End(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HANDED_BACK = "handed_back"
    TIMED_OUT = "timed_out"
    """It ran for longer than its topic allows."""


class Outcome(NamedTuple):
    job_id: JobId
    fence: int
    end: End
    result: bytes | None = None
    error: dict[str, Any] | None = None
    retryable: bool = True


async def record(
    outcomes: Sequence[Outcome],
    *,
    store: Store,
    topics: Topics,
    telemetry: Telemetry,
    runtime: Runtime,
    advancer: Advancer | None = None,
    known: Mapping[JobId, Job] | None = None,
) -> list[Standing]:
    """Accept each outcome whose fence is the job's own and whose job is RUNNING; refuse the rest.

    An accepted outcome said again is answered as the first time. A refused one changes nothing,
    is counted, and is kept as evidence in the job's events. With an `advancer`, the run of a job that has ended
    goes on in the same transaction, if it can. Jobs that are `known` are read only if they have moved on since.
    """
    jobs = await _find_jobs(outcomes, known or {}, store)
    now = store.now()
    standings: list[Standing | None] = [None] * len(outcomes)
    changes: dict[int, Change] = {}
    for n, (outcome, job) in enumerate(zip(outcomes, jobs, strict=True)):
        if job is None:
            standings[n] = Standing(outcome.job_id, None, "not-found")
        elif job.state is State.RUNNING and job.fence == outcome.fence:
            topic = topics.get(job.topic)
            changes[n] = conclude(job, outcome, topic, now=now, chance=2 * runtime.jitter(1.0) - 1.0)
        else:
            standings[n] = await _answer_late(job, outcome, store=store, telemetry=telemetry)
    if changes:
        answers = await _write(list(changes.values()), store=store, advancer=advancer)
        for (n, change), written in zip(changes.items(), answers, strict=True):
            if written:
                telemetry.attempt_ended(change.before, change.after)
                standings[n] = Standing(change.after.id, change.after)
            else:
                # A renewal, progress or a cancel request came in between, or the attempt is over: it is read again.
                [standings[n]] = await record(
                    [outcomes[n]],
                    store=store,
                    topics=topics,
                    telemetry=telemetry,
                    runtime=runtime,
                    advancer=advancer,
                )
    return [standing for standing in standings if standing is not None]


async def _find_jobs(outcomes: Sequence[Outcome], known: Mapping[JobId, Job], store: Store) -> list[Job | None]:
    jobs = [known.get(outcome.job_id) for outcome in outcomes]
    # Of an attempt that is not the one that is known, only the store can say what has become of it.
    others = [n for n, job in enumerate(jobs) if job is None or job.fence != outcomes[n].fence]
    if others:
        for n, job in zip(others, await store.find_jobs([outcomes[n].job_id for n in others]), strict=True):
            jobs[n] = job
    return jobs


async def _write(changes: Sequence[Change], *, store: Store, advancer: Advancer | None) -> list[bool]:
    if advancer is None or not any(change.after.run for change in changes):
        return await store.apply(changes)
    written = await advancer.end_jobs(changes)
    others = [n for n, done in enumerate(written) if not done]
    for n, done in zip(others, await store.apply([changes[n] for n in others]) if others else (), strict=True):
        written[n] = done
    return written


def conclude(job: Job, outcome: Outcome, topic: Topic, *, now: float, chance: float) -> Change:
    """What one accepted outcome makes of its job."""
    match outcome.end:
        case End.SUCCEEDED:
            after = step(job, Event.SUCCEED, now=now, result=outcome.result, error=None)
            return Change(before=job, after=after, kind="job.succeeded")
        case End.CANCELLED:
            after = step(job, Event.CANCEL, now=now, error=why_stopped(job) or STOPPED)
            return Change(before=job, after=after, kind="job.cancelled")
        case End.HANDED_BACK | End.FAILED if job.cancel_requested:
            # Whoever asked for it was told that it will stop: it is not begun again, nor kept for a person.
            after = step(job, Event.CANCEL, now=now, error=why_stopped(job) or outcome.error or STOPPED)
            return Change(before=job, after=after, kind="job.cancelled")
        case End.HANDED_BACK:
            # The worker's doing, not the job's: it costs no attempt and no waiting.
            after = step(job, Event.HAND_BACK, now=now, attempts=job.attempts - 1, worker="", not_before=now)
            detail = {"error": outcome.error} if outcome.error else {}
            return Change(before=job, after=after, kind="job.handed_back", detail=detail)
        case End.TIMED_OUT:
            # As recovery would end it, had the worker not been first.
            after = step(job, Event.EXPIRE, now=now, error=RAN_TOO_LONG)
            return Change(before=job, after=after, kind="job.timed_out", dead_letter=RAN_TOO_LONG["code"])
        case End.FAILED:
            error = outcome.error or {"code": "failed", "message": ""}
            if error.get("code") == EFFECT_UNKNOWN:
                # Nobody knows whether it happened: parked, at no cost, until a person has found out.
                after = step(
                    job,
                    Event.RETRY,
                    now=now,
                    error=error,
                    worker="",
                    attempts=job.attempts - 1,
                    not_before=PARKED_UNTIL,
                )
                return Change(before=job, after=after, kind="job.parked", detail={"error": error})
            if outcome.retryable and job.attempts < job.max_attempts:
                wait_s = topic.backoff.delay(job.attempts, chance)
                after = step(job, Event.RETRY, now=now, error=error, worker="", not_before=now + wait_s)
                return Change(before=job, after=after, kind="job.retried", detail={"error": error, "wait_s": wait_s})
            after = step(job, Event.FAIL, now=now, error=error)
            reason = "not-retryable" if not outcome.retryable else "no-attempts-left"
            return Change(before=job, after=after, kind="job.failed", detail={"error": error}, dead_letter=reason)


#: The events that an accepted outcome leaves behind.
_SAID = {
    End.SUCCEEDED: ("job.succeeded",),
    End.FAILED: ("job.failed", "job.retried", "job.parked", "job.cancelled"),
    End.CANCELLED: ("job.cancelled",),
    End.HANDED_BACK: ("job.handed_back", "job.cancelled"),
    End.TIMED_OUT: ("job.timed_out",),
}
EVENTS_PAGE = 1000


async def _answer_late(job: Job, outcome: Outcome, *, store: Store, telemetry: Telemetry) -> Standing:
    same_result = outcome.end is not End.SUCCEEDED or job.result == outcome.result
    if same_result and await _was_said(job, outcome, store):
        return Standing(job.id, job)  # the reply to the first time was lost
    return await refuse(job, outcome.fence, outcome.end, store=store, telemetry=telemetry)


async def _was_said(job: Job, outcome: Outcome, store: Store) -> bool:
    """Whether this attempt ended by this outcome. The state cannot tell: a job that was retried on its worker's word looks
    like one that was taken from it, and one that was taken from it may have been cancelled since."""
    after, has_begun = 0, False
    while events := await store.list_events(after=after, limit=EVENTS_PAGE, job_id=job.id):
        for event in events:
            if event.fence != outcome.fence:
                continue
            if has_begun and event.state is not State.RUNNING:
                # What recovery did carries its remedy; that was nobody's outcome.
                return event.kind in _SAID[outcome.end] and "remedy" not in event.detail
            has_begun |= event.kind == "job.started"
        after = events[-1].number
    return False
