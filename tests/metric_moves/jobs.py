"""What happens to jobs and effects."""

from __future__ import annotations

import asyncio

from flow.faulty_store import Fault
from metrics_plane import Stand, moves

from holdfast.buses.detached import Fault as BusFault

# -- jobs ------------------------------------------------------------------------------------------


@moves('holdfast_jobs_submitted_total{topic="t"}', 'holdfast_jobs{state="SCHEDULED"}')
async def submitted(plane: Stand) -> None:
    await plane.submit()


@moves('holdfast_jobs_dispatched_total{topic="t"}', 'holdfast_dispatch_wait_seconds_count{topic="t"}')
async def dispatched(plane: Stand) -> None:
    await plane.submit()
    await plane.hello()


@moves(
    'holdfast_jobs_ended_total{state="SUCCEEDED",topic="t"}',
    'holdfast_start_wait_seconds_count{topic="t"}',
    'holdfast_attempt_seconds_count{topic="t"}',
)
async def succeeded(plane: Stand) -> None:
    await plane.submit()
    await plane.end(await plane.take())


@moves("holdfast_jobs_pruned_total")
async def forgotten(plane: Stand) -> None:
    for _ in range(2):  # the newest event of all stays
        await succeeded(plane)
    await asyncio.sleep(60)


@moves('holdfast_jobs_ended_total{state="CANCELLED",topic="t"}')
async def cancelled(plane: Stand) -> None:
    """By a person, before any worker had it."""
    await plane.post(f"/v1/jobs/{await plane.submit()}:cancel", {"reason": "a test"})


@moves('holdfast_jobs_ended_total{state="DENIED",topic="t"}', 'holdfast_policy_decisions_total{action="deny"}')
async def denied(plane: Stand) -> None:
    await plane.publish({"name": "never", "match": {"topic": "t"}, "action": "deny", "reason": "a test"})
    await plane.submit()


@moves('holdfast_jobs_ended_total{state="FAILED",topic="once"}')
async def failed(plane: Stand) -> None:
    """By the reconciler: its worker is gone, and no attempt is left."""
    await plane.submit("once")
    await plane.take()


@moves('holdfast_jobs_ended_total{state="TIMEOUT",topic="t"}')
async def timed_out(plane: Stand) -> None:
    await plane.submit(timeout_s=5)


# -- dispatch --------------------------------------------------------------------------------------


@moves('holdfast_dispatch_retries_total{phase="dispatched_write"}')
async def write_failed(plane: Stand) -> None:
    await plane.submit()
    plane.store.fault("apply", Fault.FAIL, kind="job.dispatched")
    plane.store.fault("transact", Fault.FAIL, kind="job.dispatched")
    await plane.hello()


@moves(
    'holdfast_dispatch_retries_total{phase="publish"}', 'holdfast_dispatch_rollback_total{topic="t"}', apart=True
)  # fmt: skip
async def publish_failed(plane: Stand) -> None:
    plane.publishing.append(BusFault.NOT_APPLIED)
    await plane.submit()
    await plane.hello()


@moves(
    'holdfast_dispatch_retries_total{phase="rollback_write"}',
    'holdfast_dispatch_rollback_failed_total{topic="t"}',
    apart=True,
)
async def rollback_failed(plane: Stand) -> None:
    for verb in ("apply", "transact"):
        plane.store.fault(verb, Fault.FAIL, kind="dispatch.rolled_back")
    await publish_failed(plane)


@moves('holdfast_attempts_refused_total{what="succeeded"}')
async def zombie_reported(plane: Stand) -> None:
    await plane.submit()
    late = await plane.take()
    await asyncio.sleep(20)
    reply = await plane.http.post(
        "/v1/work/complete", json={"worker": "w", "outcomes": [{**late, "outcome": "succeeded"}]}
    )
    assert reply.status_code == 409


# -- recovery --------------------------------------------------------------------------------------


@moves(
    'holdfast_jobs_recovered_total{reason="lease-expired"}',
    'holdfast_jobs_stale{state="RUNNING"}',
    "holdfast_blind_window_seconds",
)
async def worker_died(plane: Stand) -> None:
    await plane.submit()
    await plane.take()


@moves('holdfast_jobs_stale{state="RUNNING"}', "holdfast_blind_window_seconds")
async def nobody_takes_it_back(plane: Stand) -> None:
    """The store refuses what the reconciler writes: a job past its limit is told of all the same."""
    for verb in ("apply", "transact"):
        plane.store.fault(verb, Fault.FAIL, kind="job.lost")
    await worker_died(plane)


@moves("holdfast_jobs_orphan_replayed_total", 'holdfast_jobs_stale{state="SCHEDULED"}')
async def nobody_came(plane: Stand) -> None:
    await plane.submit()


# -- effects ---------------------------------------------------------------------------------------


@moves('holdfast_effects_total{what="run"}')
async def effect_begun(plane: Stand) -> None:
    await plane.submit()
    await plane.effect("prepare", await plane.take())


@moves('holdfast_effects_total{what="remembered"}')
async def effect_repeated(plane: Stand) -> None:
    await plane.submit()
    attempt = await plane.take()
    await plane.effect("prepare", attempt)
    await plane.effect("commit", attempt)
    await plane.effect("prepare", attempt)


@moves('holdfast_effects_total{what="unknown"}')
async def effect_left(plane: Stand) -> str:
    job = await plane.submit("once", risk="high")
    await plane.effect("prepare", await plane.take())
    await asyncio.sleep(20)
    return job


@moves('holdfast_effects_total{what="settled"}')
async def effect_resolved(plane: Stand) -> None:
    job = await effect_left(plane)
    await plane.post(f"/v1/effects/{job}/pay:resolve", {"state": "absent", "reason": "looked it up"})


@moves('holdfast_effects_total{what="blocked"}')
async def effect_blocked(plane: Stand) -> None:
    await plane.submit(risk="high")
    await plane.effect("prepare", await plane.take())
    await asyncio.sleep(20)
    await plane.effect("prepare", await plane.take())


@moves('holdfast_effects_total{what="refused"}')
async def effect_committed_late(plane: Stand) -> None:
    await plane.submit(risk="low")
    late = await plane.take()
    await plane.effect("prepare", late)
    await asyncio.sleep(20)
    await plane.effect("prepare", await plane.take())
    reply = await plane.http.post("/v1/work/effect/commit", json={"worker": "w", **late, "key": "pay"})
    assert reply.status_code == 409
