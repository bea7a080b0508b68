"""How the processes of a plane are, and what happens to its locks."""

from __future__ import annotations

import asyncio

import pytest
from flow.faulty_store import Fault
from metrics_plane import ANN, Stand, moves

from holdfast.flow.approve import APPROVAL
from holdfast.flow.dispatch import JOB
from holdfast.locks import LeaseLost, NotOwned
from holdfast.locks.errors import Unavailable
from metric_moves.governed import ask

# -- the process -----------------------------------------------------------------------------------


@moves('holdfast_workers{condition="ready"}', 'holdfast_workers{condition="silent"}')
async def introduced(plane: Stand) -> None:
    await plane.hello()


@moves('holdfast_workers{condition="stuck"}')
async def takes_nothing(plane: Stand) -> None:
    """It is there, and says so, and leaves what was sent to it where it is."""
    await plane.submit()
    await plane.hello()
    for _ in range(10):
        await asyncio.sleep(3)
        await plane.post("/v1/work/renew", {"worker": "w"})


@moves('holdfast_loop_idle_seconds{loop="reconciler"}', 'holdfast_loop_failures_total{loop="reconciler"}')
async def reconciler_fails(plane: Stand) -> None:
    plane.store.fault("list_recoverable", Fault.FAIL)


@moves("holdfast_snapshot_age_seconds")
async def nothing(_: Stand) -> None: ...


# -- locks of the plane ----------------------------------------------------------------------------


@moves(
    'holdfast_lock_acquired_total{namespace="scheduler.job"}',
    'holdfast_lock_wait_seconds_count{namespace="scheduler.job"}',
    'holdfast_lock_held_seconds_count{namespace="scheduler.job"}',
    'holdfast_lock_renewals_total{namespace="scheduler.job",result="renewed"}',
)
async def held(plane: Stand) -> None:
    async with plane.plane.locks.hold(JOB, "1"):
        await asyncio.sleep(30)


@moves(
    'holdfast_lock_wait_gave_up_total{namespace="approval"}',
    'holdfast_lock_wait_seconds_bucket{le="3.0",namespace="approval"}',
)
async def gave_up(plane: Stand) -> None:
    """Whoever waits for the whole of its budget, 2 s, is seen in a bucket beyond it."""
    approval = await ask(plane)
    job = (await plane.http.get(f"/v1/approvals/{approval}")).json()["job_id"]
    async with plane.plane.locks.hold(APPROVAL, job):
        reply = await plane.http.post(f"/v1/approvals/{approval}:decide", json={"decision": "approve"}, headers=ANN)
    assert reply.status_code == 423


@moves(
    'holdfast_lock_abandoned_total{namespace="scheduler.job",policy="fence",reason="revoked"}',
    'holdfast_lock_not_owned_total{namespace="scheduler.job",op="renew"}',
    'holdfast_lock_release_skipped_total{namespace="scheduler.job"}',
)
async def evicted(plane: Stand) -> None:
    locks = plane.plane.locks
    with pytest.raises(LeaseLost):
        async with locks.hold(JOB, "1") as lease:
            assert await locks._store.evict(lease.key, lease.fence, reason="a test")
            await asyncio.sleep(60)


@moves('holdfast_lock_not_owned_total{namespace="scheduler.job",op="release"}')
async def released_late(plane: Stand) -> None:
    locks = plane.plane.locks
    lease = await locks.try_acquire(JOB, "1")
    assert lease is not None
    assert await locks._store.evict(lease.key, lease.fence, reason="a test")
    with pytest.raises(NotOwned):
        await locks.release(lease)


async def away(*_: object, **__: object) -> None:
    raise Unavailable("the store", "away", applied=False)


@moves(
    'holdfast_lock_renewals_total{namespace="scheduler.job",result="failed"}',
    'holdfast_lock_abandoned_total{namespace="scheduler.job",policy="fence",reason="unreachable"}',
)
async def store_away_at_renewal(plane: Stand) -> None:
    locks = plane.plane.locks
    with pytest.raises(LeaseLost):
        async with locks.hold(JOB, "1"):
            locks._front.keeper.store.renew = away  # type: ignore[method-assign,assignment]
            await asyncio.sleep(120)


@moves(
    'holdfast_lock_fallback_total{namespace="scheduler.job"}',
    'holdfast_lock_policy_changes_total{namespace="scheduler.job"}',
)
async def store_away_at_acquire(plane: Stand) -> None:
    locks = plane.plane.locks
    locks.override(JOB.name, reason="a test", on_store_error="local")
    locks._store.acquire = away  # type: ignore[method-assign,assignment]
    async with locks.hold(JOB, "1"):
        pass
