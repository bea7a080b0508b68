"""Execute: a worker takes deliveries, starts them, keeps their leases and reports progress.

Everything a worker says carries the attempt's fence. RUNNING is the worker's word alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.core.effect import Effect, Ruling
from holdfast.core.job import Job, JobId, amend, step
from holdfast.core.recovery import SPENT
from holdfast.core.states import Event, State
from holdfast.core.topic import Topics
from holdfast.errors import StaleAttempt
from holdfast.flow.gate import apply_changes
from holdfast.flow.recover import remedy
from holdfast.ports import Bus, Change, Delivery, Note, Store
from holdfast.telemetry import Telemetry


class Standing(NamedTuple):
    """What became of one attempt's request: the job if it was accepted; else why not."""

    job_id: JobId
    job: Job | None
    code: str = "ok"
    """ok, stale-fence, not-found."""
    current_fence: int | None = None


class Attempt(NamedTuple):
    job_id: JobId
    fence: int


async def claim(
    worker: str,
    limit: int,
    *,
    start: bool,
    store: Store,
    bus: Bus,
    topics: Topics,
    telemetry: Telemetry,
    keep_free: Callable[[int], int] = lambda _: 0,
) -> list[Job]:
    """Deliveries for the worker: jobs DISPATCHED to it, or already RUNNING if `start`.

    A delivery that no longer fits its job (rolled back, requeued, cancelled) is settled, not given out;
    what lies behind it was announced already, and is looked for at once. One that was given out too often
    ends its job, with a dead letter. Where others may hand the worker jobs meanwhile, `keep_free` is told for how many
    of those from here there must be room, and says how many of the others there are.
    """
    claimed: list[Job] = []
    room = limit
    while not claimed and room > 0 and (deliveries := await bus.take(worker, limit=room)):
        jobs = await store.find_jobs([d.job_id for d in deliveries])
        fitting = {d: job for d, job in zip(deliveries, jobs, strict=True) if job is not None and _fits(d, job)}
        if start:
            keep_free(len(fitting))
            standings = await _start(list(fitting.values()), store=store, topics=topics, telemetry=telemetry)
            claimed = [standing.job for standing in standings if standing.job is not None]
            if not claimed:
                room = limit - keep_free(limit)
            await bus.settle(deliveries)
        else:
            # Started, it is counted as an attempt. Only what is given out without that goes by how often it was.
            spent = {d: job for d, job in fitting.items() if bus.given_too_often(d)}
            ended = await _give_up(spent, bus=bus, store=store, telemetry=telemetry) if spent else frozenset()
            claimed = [job for d, job in fitting.items() if d not in spent]
            await bus.settle([d for d in deliveries if d not in fitting or d in ended])
    return claimed


async def _give_up(
    spent: Mapping[Delivery, Job], *, bus: Bus, store: Store, telemetry: Telemetry
) -> frozenset[Delivery]:
    """End the jobs of deliveries that were given out too often and never begun, each with a dead letter. Those that were
    written: the bus may forget them now. Before, a crash in between would leave a job whose delivery nobody has."""
    changes = []
    for delivery, job in spent.items():
        change = remedy(job, SPENT, policy=None, now=store.now())
        assert change is not None
        evidence = {"given": bus.given_too_often(delivery), "worker": delivery.worker}
        changes.append(replace(change, detail={**change.detail, **evidence}))
    written = await apply_changes(changes, store=store)
    for change, done in zip(changes, written, strict=True):
        if done:
            telemetry.job_recovered(change.before, change.after, reason=SPENT.reason)
    return frozenset(delivery for delivery, done in zip(spent, written, strict=True) if done)


async def claim_again(worker: str, holding: Collection[Attempt], *, store: Store, telemetry: Telemetry) -> list[Job]:
    """What runs on the worker by the plane's books and not by its own: the answer to a claim was lost.
    The same attempts, with a lease that begins now."""
    held = frozenset(holding)
    running = [job for job in await store.list_in_hand(worker, bare=True) if job.state is State.RUNNING]
    missed = [ref for job in running if (ref := Attempt(job.id, job.fence)) not in held]
    standings = await renew_attempts(missed, store=store, telemetry=telemetry)
    return [standing.job for standing in standings if standing.job is not None]


def _fits(delivery: Delivery, job: Job) -> bool:
    return job.state is State.DISPATCHED and job.fence == delivery.fence and job.worker == delivery.worker


async def start_attempts(
    worker: str, attempts: Sequence[Attempt], *, store: Store, bus: Bus, topics: Topics, telemetry: Telemetry
) -> list[Standing]:
    """DISPATCHED → RUNNING, with a lease. The same worker saying it again is answered the same."""
    jobs = await store.find_jobs([a.job_id for a in attempts])
    standings: dict[Attempt, Standing] = {}
    waiting: dict[Attempt, Job] = {}
    for attempt, job in zip(attempts, jobs, strict=True):
        if job is None:
            standings[attempt] = Standing(attempt.job_id, None, "not-found")
        elif job.fence != attempt.fence or job.worker != worker or job.state not in (State.DISPATCHED, State.RUNNING):
            standings[attempt] = await refuse(job, attempt.fence, "start", store=store, telemetry=telemetry)
        elif job.state is State.RUNNING:
            standings[attempt] = Standing(job.id, job)
        else:
            waiting[attempt] = job
    started = await _start(list(waiting.values()), store=store, topics=topics, telemetry=telemetry)
    standings.update(zip(waiting, started, strict=True))
    await bus.settle([Delivery(worker, a.job_id, a.fence) for a in attempts])
    return [standings[attempt] for attempt in attempts]


def starting(job: Job, topics: Topics, *, now: float) -> Change:
    """RUNNING, with a lease that begins now."""
    lease_until = now + topics.get(job.topic).lease_s
    started = step(job, Event.START, now=now, attempts=job.attempts + 1, lease_until=lease_until)
    return Change(before=job, after=started, kind="job.started", detail={"worker": job.worker})


async def _start(jobs: Sequence[Job], *, store: Store, topics: Topics, telemetry: Telemetry) -> list[Standing]:
    """RUNNING, with a lease, for jobs that were just seen DISPATCHED."""
    if not jobs:
        return []
    changes = [starting(job, topics, now=store.now()) for job in jobs]
    standings = []
    for change, written in zip(changes, await store.apply(changes), strict=True):
        if written:
            telemetry.job_started(change.after, waited_s=change.after.since - change.before.since)
            standings.append(Standing(change.after.id, change.after))
        else:
            # Moved on between the read and the write (cancelled, requeued): nobody may work on it.
            standings.append(Standing(change.after.id, None, "stale-fence"))
    return standings


async def renew_attempts(attempts: Sequence[Attempt], *, store: Store, telemetry: Telemetry) -> list[Standing]:
    """Extend the leases. A `job.cancel_requested` in the answer tells the worker to stop that one."""
    if not attempts:
        return []
    renewed = await store.renew_leases(attempts)
    # What could not be renewed is looked at; the others, which are nearly all, were read by the store alone.
    lost = [attempt for attempt, kept in zip(attempts, renewed, strict=True) if kept is None]
    found = dict(zip(lost, await store.find_jobs([a.job_id for a in lost]), strict=True)) if lost else {}
    standings: list[Standing] = []
    for attempt, kept in zip(attempts, renewed, strict=True):
        job = kept or found[attempt]
        if job is None:
            standings.append(Standing(attempt.job_id, None, "not-found"))
        elif kept is not None:
            standings.append(Standing(job.id, kept))
        elif job.is_terminal and job.fence == attempt.fence:
            # As a rule on its own word, which overtook this renewal: nothing to be alarmed about.
            standings.append(Standing(job.id, None, "stale-fence", job.fence))
        else:
            standings.append(await refuse(job, attempt.fence, "renewal", store=store, telemetry=telemetry))
    return standings


async def find_cancelled(worker: str, *, store: Store) -> list[Attempt]:
    """What runs on the worker although somebody has asked that it be stopped."""
    held = await store.list_in_hand(worker, bare=True)
    return [Attempt(job.id, job.fence) for job in held if job.state is State.RUNNING and job.cancel_requested]


async def report_progress(attempt: Attempt, progress: Any, *, store: Store, telemetry: Telemetry) -> Standing:
    """Keep what the worker says about how far it is."""
    while True:  # again if a renewal or another report came in between: each time one of them got on
        [job] = await store.find_jobs([attempt.job_id])
        if job is None:
            return Standing(attempt.job_id, None, "not-found")
        if job.state is not State.RUNNING or job.fence != attempt.fence:
            return await refuse(job, attempt.fence, "progress", store=store, telemetry=telemetry)
        noted = amend(job, progress=progress)
        [written] = await store.apply([Change(before=job, after=noted, kind="job.progressed", detail={})])
        if written:
            return Standing(job.id, noted)


async def prepare_effect(
    attempt: Attempt, key: str, *, idempotent: bool, store: Store, telemetry: Telemetry
) -> tuple[Effect, Ruling]:
    """Enter an effect before it happens. Raises `StaleAttempt`, counted and kept as evidence."""
    try:
        return await store.prepare_effect(attempt.job_id, attempt.fence, key, idempotent=idempotent)
    except StaleAttempt:
        [job] = await store.find_jobs([attempt.job_id])
        assert job is not None
        await refuse(job, attempt.fence, "effect", store=store, telemetry=telemetry)
        raise


async def commit_effect(
    attempt: Attempt, key: str, result: bytes | None, *, store: Store, telemetry: Telemetry
) -> None:
    """An effect has happened. Raises `StaleAttempt`, counted; the store has kept the evidence, with the result."""
    try:
        await store.commit_effect(attempt.job_id, attempt.fence, key, result)
    except StaleAttempt:
        await _count_late_effect(attempt, store=store, telemetry=telemetry)
        raise


async def withdraw_effect(attempt: Attempt, key: str, *, store: Store, telemetry: Telemetry) -> None:
    """An effect has not happened, for certain. Raises as `commit_effect`, and `Conflict` if it has."""
    try:
        await store.withdraw_effect(attempt.job_id, attempt.fence, key)
    except StaleAttempt:
        await _count_late_effect(attempt, store=store, telemetry=telemetry)
        raise


async def _count_late_effect(attempt: Attempt, *, store: Store, telemetry: Telemetry) -> None:
    [job] = await store.find_jobs([attempt.job_id])
    assert job is not None
    telemetry.attempt_refused(job, what="effect")


async def refuse(job: Job, fence: int, what: str, *, store: Store, telemetry: Telemetry) -> Standing:
    """Count something that came too late, keep the evidence, and say so."""
    telemetry.attempt_refused(job, what=what)
    detail = {"what": what, "offered_fence": fence, "current_fence": job.fence, "state": job.state}
    await store.add_notes([Note(job.tenant, job.id, "attempt.refused", detail)])
    return Standing(job.id, None, "stale-fence", job.fence)
