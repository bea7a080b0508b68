"""A worker that is handed jobs comes back at once: it is not looked for again what was looked for a moment ago."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from gateway.conftest import Served
from holdfast.core.job import Job
from holdfast.flow import execute
from holdfast.gateway.claims import QUIET_MAX, QUIET_S, Claims
from holdfast.ports import Delivery


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who was looked for in the store, each time."""
    asked: list[str] = []
    claim = execute.claim

    async def noting(worker: str, *args: Any, **options: Any) -> list[Job]:
        asked.append(worker)
        return await claim(worker, *args, **options)

    monkeypatch.setattr(execute, "claim", noting)
    return asked


async def claimed(served: Served, **more: Any) -> list[str]:
    asked = {"worker": "w1", "limit": 5, "wait_s": 5, "start": True, **more}
    return [delivery["job_id"] for delivery in (await served.work("claim", **asked))["deliveries"]]


async def handed(served: Served, looks: list[str]) -> str:
    """A job for a claim that waits already."""
    before = len(looks)
    claim = asyncio.create_task(claimed(served))
    while not served.plane.claims.waits("w1") or (before == 0 and not looks):
        await asyncio.sleep(0)
    job = await served.client.submit("t")
    assert await claim == [job.id]
    return job.id


async def test_claim_after_a_handover_does_not_look_again(served: Served, looks: list[str]) -> None:
    await served.introduce()
    for _ in range(3):
        await handed(served, looks)

    assert looks == ["w1"]


async def test_job_that_came_between_two_claims_is_found_at_once(served: Served, looks: list[str]) -> None:
    await served.introduce()
    await handed(served, looks)
    job = await served.client.submit("t")

    assert await claimed(served) == [job.id]


async def test_claim_that_does_not_wait_looks(served: Served, looks: list[str]) -> None:
    await served.introduce()
    await handed(served, looks)
    looks.clear()
    await claimed(served, wait_s=0)

    assert looks == ["w1"]


async def test_claim_whose_last_answer_was_lost_is_given_it(served: Served, looks: list[str]) -> None:
    await served.introduce()
    lost = await handed(served, looks)

    assert await claimed(served, holding=[]) == [lost]


async def test_what_waits_behind_a_lost_answer_is_found_at_once(served: Served, looks: list[str]) -> None:
    """The claim that was given the lost answer again has not looked for anything else."""
    await served.introduce()
    lost = await handed(served, looks)
    behind = await served.dispatched()

    assert await claimed(served, holding=[]) == [lost]
    assert await claimed(served) == [behind]


async def test_what_waits_behind_a_stale_delivery_is_found_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that gives out less than it was asked for has not seen everything, if some of what it took was stale."""
    await served.introduce()
    stale, fresh, behind = [await served.dispatched() for _ in range(3)]
    bus = served.plane.bus
    take = bus.take

    async def take_while_somebody_cancels(worker: str, *, limit: int) -> list[Delivery]:
        taken = await take(worker, limit=limit)
        monkeypatch.undo()
        await served.client.cancel(stale)
        return taken

    monkeypatch.setattr(bus, "take", take_while_somebody_cancels)

    assert await claimed(served, limit=2) == [fresh]
    assert await claimed(served, limit=2) == [behind]


async def test_delivery_of_which_no_hint_came_is_found_when_the_quiet_ends(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another plane's hint was lost, or somebody took it and failed: a claim that was spared its look does not wait for long."""
    await served.introduce()
    monkeypatch.setattr(served.plane.store, "_arrival_listeners", [])
    job = await served.dispatched()
    claims = served.plane.claims
    with claims.serving("w1") as claim:
        claims.found_nothing("w1", claim, looked_at=served.plane.runtime.now())

    assert await claimed(served, wait_s=10) == [job]


@on_virtual_time
async def test_quiet_ends_with_a_hint_and_after_a_moment(runtime: VirtualRuntime) -> None:
    claims = Claims(runtime)
    with claims.serving("w1") as claim:
        assert not claims.quiet_for("w1")
        claims.found_nothing("w1", claim, looked_at=runtime.now())
        assert claims.quiet_for("w1")
    assert not claims.quiet_for("w2")

    claims.give_hint("w1")
    assert not claims.quiet_for("w1")

    with claims.serving("w1") as claim:
        claims.found_nothing("w1", claim, looked_at=runtime.now())
    await asyncio.sleep(QUIET_S)
    assert not claims.quiet_for("w1")


@on_virtual_time
async def test_hint_for_nobody_in_particular_is_one_for_everybody(runtime: VirtualRuntime) -> None:
    claims = Claims(runtime)
    with claims.serving("w1") as first, claims.serving("w2") as second, claims.serving("w2") as third:
        claims.found_nothing("w1", first, looked_at=runtime.now())
        claims.give_hint("")

        assert [claim.hint.is_set() for claim in (first, second, third)] == [True] * 3
        assert not claims.quiet_for("w1")


@on_virtual_time
async def test_hint_that_came_while_somebody_looked_is_not_forgotten(runtime: VirtualRuntime) -> None:
    claims = Claims(runtime)
    with claims.serving("w1") as claim:
        looked_at = runtime.now()
        claims.give_hint("w1")
        claims.found_nothing("w1", claim, looked_at=looked_at)

    assert not claims.quiet_for("w1")


@on_virtual_time
async def test_workers_that_are_remembered_are_bounded(runtime: VirtualRuntime) -> None:
    claims = Claims(runtime)
    for n in range(QUIET_MAX + 1):
        with claims.serving(f"w{n}") as claim:
            claims.found_nothing(f"w{n}", claim, looked_at=runtime.now())

    assert not claims.quiet_for("w0")
    assert claims.quiet_for(f"w{QUIET_MAX}")
