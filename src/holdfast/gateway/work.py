"""`/v1/work/*`: what a worker in any language says. Everything about an attempt carries its fence."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

from holdfast import api
from holdfast.core.job import Job, JobId
from holdfast.core.recovery import DRAINING, UNABLE
from holdfast.core.states import State
from holdfast.errors import Draining, HoldfastError, NotFound
from holdfast.flow import execute
from holdfast.flow.execute import Attempt, Standing
from holdfast.flow.record import End, Outcome, record
from holdfast.flow.recover import lose_attempts
from holdfast.gateway import limits
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.claims import Claim
from holdfast.gateway.desk import Desk
from holdfast.gateway.plane import Plane
from holdfast.gateway.views import delivery_view, standing_view
from holdfast.gateway.waiting import Patience

NOTHING = api.Nothing()


class Refused(HoldfastError):
    """What came too late, as the answer to a request about one attempt."""

    code = "stale-fence"
    status = 409

    def __init__(self, standing: Standing) -> None:
        super().__init__(f"the attempt of job {standing.job_id} that this fence belongs to is over")
        self.job_id = standing.job_id
        self.current_fence = standing.current_fence


def _only(standing: Standing) -> api.AttemptStanding:
    """The standing of a request about one attempt. Raises what a batch would list."""
    if standing.code == "not-found":
        raise NotFound(f"no job {standing.job_id}")
    if standing.code != "ok":
        raise Refused(standing)
    return standing_view(standing)


async def hello(desk: Desk, call: Call) -> Answer:
    plane = desk.plane
    said: api.Hello = call.body
    reply = plane.registry.hello(said, now=plane.store.now())
    # Believed only of those that the plane itself takes for its predecessors: same name, same host.
    dead = [worker for worker in said.predecessor_dead if worker in reply.predecessors]
    for worker in dead:
        await _bury(plane, worker, reason="worker-died")
    if said.unable:
        await _call_back(plane, said.worker, reason=UNABLE)
    reply.predecessors = [worker for worker in reply.predecessors if worker not in dead]
    plane.wake()
    return Answer(reply)


async def claim_work(desk: Desk, call: Call) -> Answer:
    plane, runtime = desk.plane, desk.plane.runtime
    wanted: api.Claim = call.body
    _check_serving(desk)
    arrived_at = looked_at = runtime.now()
    plane.registry.seen(wanted.worker, now=plane.store.now())
    with desk.claims.serving(wanted.worker) as claim:
        if wanted.holding is not None:
            await desk.claims.wait_alone(wanted.worker, claim)
            looked_at = runtime.now()
        async with Patience(claim.hint, seconds=wanted.wait_s, receive=call.receive) as patience:
            may_be_spared = wanted.wait_s and wanted.holding is None
            quiet_s = desk.claims.quiet_for(wanted.worker) if may_be_spared else 0.0
            jobs = [] if quiet_s else await _look(desk, wanted, claim)
            while not jobs and wanted.wait_s and not desk.draining:
                with claim.open_for(wanted.limit if wanted.start else 0):
                    # What it was spared it gets when that is over, for a hint may have been lost.
                    hinted = await patience.wait_hint(within_s=quiet_s or math.inf)
                quiet_s = 0.0
                if claim.opened_at is not None:
                    looked_at, jobs = claim.opened_at, await claim.take_handed()
                if claim.opened_at is not None or not hinted or claim.is_ghost:
                    break
                looked_at = runtime.now()
                jobs = await _look(desk, wanted, claim)
    if wanted.start:
        desk.handed.remember(jobs)
    deliveries = [delivery_view(job, plane.topics, started=wanted.start) for job in jobs]
    # Read before the leases began: a worker that trusts them from there on trusts them for too short a time, if at all.
    return Answer(api.Deliveries(deliveries=deliveries, waited_s=looked_at - arrived_at))


async def _look(desk: Desk, wanted: api.Claim, claim: Claim) -> list[Job]:
    """What waits for the worker, and what it is handed meanwhile: of that so little that both together are no more than it
    asked for. Until it is known how much waits, that may be all that the worker has in hand."""
    plane = desk.plane
    looked_at, room = plane.runtime.now(), wanted.limit - plane.registry.in_hand(wanted.worker)
    try:
        with claim.open_for(max(0, room) if wanted.start else 0):
            waiting = await _claim(plane, wanted, lambda found: claim.resize(wanted.limit - found))
    finally:
        # Also where the look has failed: the worker's next claim says what it holds, and is to find these written.
        handed = await claim.take_handed()
    # Not by what it was given: that may be less than it asked for because some of it was stale, with more behind.
    if not waiting and not handed:
        desk.claims.found_nothing(wanted.worker, claim, looked_at=looked_at)
    return [*waiting, *handed]


async def _claim(plane: Plane, wanted: api.Claim, keep_free: Callable[[int], int]) -> list[Job]:
    store, topics, telemetry = plane.store, plane.topics, plane.telemetry
    if wanted.holding is not None:
        held = _attempts(wanted.holding)
        missed = await execute.claim_again(wanted.worker, held, store=store, telemetry=telemetry)
        if missed:
            return missed
    return await execute.claim(
        wanted.worker,
        wanted.limit,
        start=wanted.start,
        keep_free=keep_free,
        store=store,
        bus=plane.bus,
        topics=topics,
        telemetry=telemetry,
    )


def _check_serving(desk: Desk) -> None:
    """Who comes to wait while the plane shuts down would be answered at once, and come again at once."""
    if desk.draining:
        raise Draining("shutting down: ask another one, or later")


async def listen(desk: Desk, call: Call) -> Answer:
    plane = desk.plane
    wanted: api.Listen = call.body
    _check_serving(desk)
    plane.registry.seen(wanted.worker, now=plane.store.now())
    heard = frozenset(_attempts(wanted.heard))
    with desk.cancels.of(wanted.worker) as hint:
        async with Patience(hint, seconds=wanted.wait_s, receive=call.receive) as patience:
            news = set(await execute.find_cancelled(wanted.worker, store=plane.store)) - heard
            while not news and not desk.draining and await patience.wait_hint():
                news = set(await execute.find_cancelled(wanted.worker, store=plane.store)) - heard
    return Answer(api.Heard(cancel=[api.AttemptRef(job_id=a.job_id, fence=a.fence) for a in sorted(news)]))


def _attempts(refs: Sequence[api.AttemptRef]) -> list[Attempt]:
    return [Attempt(JobId(ref.job_id), ref.fence) for ref in refs]


async def start_work(desk: Desk, call: Call) -> Answer:
    plane = desk.plane
    wanted: api.StartWork = call.body
    plane.registry.seen(wanted.worker, now=plane.store.now())
    standings = await execute.start_attempts(
        wanted.worker,
        _attempts(wanted.attempts),
        store=plane.store,
        bus=plane.bus,
        topics=plane.topics,
        telemetry=plane.telemetry,
    )
    return Answer(api.Standings(attempts=[standing_view(standing) for standing in standings]))


async def renew_work(desk: Desk, call: Call) -> Answer:
    plane = desk.plane
    wanted: api.RenewWork = call.body
    # Leases first: they are judged by their fences, whether or not the plane knows the worker again yet.
    attempts = _attempts(wanted.attempts)
    desk.handed.take(attempt.job_id for attempt in attempts)  # they have another version from now on
    standings = await execute.renew_attempts(attempts, store=plane.store, telemetry=plane.telemetry)
    plane.registry.seen(wanted.worker, now=plane.store.now())
    return Answer(api.Standings(attempts=[standing_view(standing) for standing in standings]))


async def tell_progress(desk: Desk, call: Call) -> Answer:
    said: api.Progress = call.body
    limits.stored_json(said.progress, "progress")
    attempt = Attempt(JobId(said.job_id), said.fence)
    plane = desk.plane
    desk.handed.take([attempt.job_id])
    standing = await execute.report_progress(attempt, said.progress, store=plane.store, telemetry=plane.telemetry)
    return Answer(_only(standing))


async def complete_work(desk: Desk, call: Call) -> Answer:
    """Outcomes are judged by their fences alone, so one is not lost because the plane has restarted
    and does not know its worker yet. A single outcome that is refused is answered with the problem."""
    plane = desk.plane
    said: api.CompleteWork = call.body
    outcomes = [_outcome(outcome) for outcome in said.outcomes]
    recording = record(
        outcomes,
        known=desk.handed.take(outcome.job_id for outcome in outcomes),
        store=plane.store,
        topics=plane.topics,
        telemetry=plane.telemetry,
        runtime=plane.runtime,
        advancer=plane.advancer,
    )
    if said.refill and not desk.draining:
        with desk.claims.serving(said.worker, first=True) as claim:
            with claim.open_for(said.refill):
                standings = await recording
            jobs = await claim.take_handed()
    else:
        standings, jobs = await recording, []
    with contextlib.suppress(NotFound):
        plane.registry.seen(said.worker, now=plane.store.now())
    if len(standings) == 1 and not said.refill:
        return Answer(api.Completed(attempts=[_only(standings[0])]))
    desk.handed.remember(jobs)
    deliveries = [delivery_view(job, plane.topics, started=True) for job in jobs]
    return Answer(api.Completed(attempts=[standing_view(standing) for standing in standings], deliveries=deliveries))


def _outcome(said: api.Outcome) -> Outcome:
    end = End(said.outcome)
    result = limits.stored_json(said.result, "result") if end is End.SUCCEEDED else None
    if said.error is not None:
        limits.stored_json(said.error, "error")
    return Outcome(JobId(said.job_id), said.fence, end, result, said.error, said.retryable)


async def prepare_effect(desk: Desk, call: Call) -> Answer:
    said: api.PrepareEffect = call.body
    plane = desk.plane
    effect, ruling = await execute.prepare_effect(
        Attempt(JobId(said.job_id), said.fence),
        said.key,
        idempotent=said.idempotent,
        store=plane.store,
        telemetry=plane.telemetry,
    )
    return Answer(
        api.EffectRuling(ruling=ruling, idempotency_key=effect.idempotency_key, result=api.json_value(effect.result))
    )


async def commit_effect(desk: Desk, call: Call) -> Answer:
    said: api.CommitEffect = call.body
    result = limits.stored_json(said.result, "result")
    attempt = Attempt(JobId(said.job_id), said.fence)
    await execute.commit_effect(attempt, said.key, result, store=desk.plane.store, telemetry=desk.plane.telemetry)
    return Answer(NOTHING)


async def withdraw_effect(desk: Desk, call: Call) -> Answer:
    said: api.WithdrawEffect = call.body
    attempt = Attempt(JobId(said.job_id), said.fence)
    await execute.withdraw_effect(attempt, said.key, store=desk.plane.store, telemetry=desk.plane.telemetry)
    return Answer(NOTHING)


async def goodbye(desk: Desk, call: Call) -> Answer:
    said: api.Goodbye = call.body
    if said.gone:
        await _bury(desk.plane, said.worker, reason="worker-gone")
        desk.plane.wake()
    else:
        await drain(desk.plane, said.worker)
    return Answer(NOTHING)


async def drain(plane: Plane, worker: str) -> None:
    """Nothing more for this worker: what it has not started goes to others, what it runs it may finish."""
    plane.registry.drain(worker, now=plane.store.now())
    await _call_back(plane, worker, reason=DRAINING)
    plane.wake()


async def _call_back(plane: Plane, worker: str, *, reason: str) -> None:
    """What was sent to it and has not begun."""
    waiting = [job for job in await plane.store.list_in_hand(worker, bare=True) if job.state is State.DISPATCHED]
    await lose_attempts(waiting, reason=reason, store=plane.store, telemetry=plane.telemetry)


async def _bury(plane: Plane, worker: str, *, reason: str) -> None:
    # No new jobs for it first: one dispatched after the list was read would be found by nobody.
    plane.registry.gone(worker, now=plane.store.now())
    jobs = await plane.store.list_in_hand(worker, bare=True)
    await lose_attempts(jobs, reason=reason, store=plane.store, telemetry=plane.telemetry, outbox=plane.outbox)
