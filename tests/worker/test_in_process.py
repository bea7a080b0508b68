"""Handlers in the worker's own process (`async`, `thread`): what keeps their leases, and what ends them in time."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from worker_plane import IN_TIME_S, LEASE_S, TASKS, connected, marks, plane, runs, wait_marked, way, worker_process

from holdfast.worker import serving


async def test_handler_that_burns_the_loop_keeps_its_lease(tmp_path: Path) -> None:
    async with plane(tmp_path) as url, connected(url) as client, worker_process(url, slots=1):
        job_id = await client.submit("burn.async", {"file": str(tmp_path / "marks"), "seconds": 2.5 * LEASE_S})
        job = await client.wait_ended(job_id)
        kinds = [kind for kind, _ in await client.events(job_id)]

    assert (job["state"], job["attempts"]) == ("SUCCEEDED", 1)
    assert "job.lost" not in kinds


@pytest.mark.parametrize(("topic", "evidence"), [("block.async", "in block_async"), ("swallow.async", "lease.lost")])
async def test_worker_that_is_stuck_without_a_plane_ends_before_its_lease_can(
    tmp_path: Path, topic: str, evidence: str
) -> None:
    file = tmp_path / "marks"
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        async with plane(tmp_path) as url, connected(url) as client:
            stuck = worker_process(url, slots=1, stderr=PIPE)
            worker = await stuck.__aenter__()
            await client.submit(topic, {"file": str(file), "seconds": 60})
            await wait_marked(file, "began")
            await asyncio.sleep(LEASE_S)
            assert worker.returncode is None  # renewed meanwhile
        gone_at = loop.time()
        _, said = await worker.communicate()

    assert loop.time() - gone_at < IN_TIME_S
    assert worker.returncode == 1
    assert evidence in said.decode()
    assert "most recent call first" in said.decode()
    assert "finished" not in file.read_text()
    await stuck.__aexit__(None, None, None)


@pytest.mark.parametrize("topic", ["stubborn", "told.thread"])
async def test_others_are_stopped_in_time_although_the_loop_is_blocked(tmp_path: Path, topic: str) -> None:
    """By a handler whose own lease is long, so that nothing ends the worker yet."""
    blocking, file = tmp_path / "blocking", tmp_path / "marks"
    async with asyncio.timeout(30):
        async with plane(tmp_path) as url, connected(url) as client:
            working = worker_process(url, slots=2)
            worker = await working.__aenter__()
            await client.submit(topic, {"file": str(file), "seconds": 60})
            [[_, pid, _]] = await wait_marked(file, "began")
            await client.submit("long-lease.block", {"file": str(blocking), "seconds": 60})
            await wait_marked(blocking, "began")
        gone_at = asyncio.get_running_loop().time()
        while runs(int(pid)) and "lost" not in file.read_text():
            await asyncio.sleep(0.005)

    assert asyncio.get_running_loop().time() - gone_at < IN_TIME_S
    assert worker.returncode is None
    await working.__aexit__(None, None, None)


async def test_c_call_that_keeps_the_interpreter_ends_with_its_lease(tmp_path: Path) -> None:
    """Nobody can renew while it lasts, although the plane is there."""
    file = tmp_path / "marks"
    loop = asyncio.get_running_loop()
    async with plane(tmp_path) as url, connected(url) as client, worker_process(url, slots=1, stderr=PIPE) as worker:
        job_id = await client.submit("gil.async", {"file": str(file)}, max_attempts=1)
        await wait_marked(file, "began")
        began_at = loop.time()
        _, said = await worker.communicate()
        assert loop.time() - began_at < IN_TIME_S
        ended = await client.wait_ended(job_id)

    assert "gil_async" in said.decode()
    assert ended["error"]["code"] == "lease-expired-no-attempts-left"


@pytest.mark.parametrize("topic", ["told.async", "told.thread"])
async def test_handler_is_told_that_its_lease_is_lost(tmp_path: Path, topic: str) -> None:
    """And the worker lives on: it has done nothing wrong."""
    file = tmp_path / "marks"
    loop = asyncio.get_running_loop()
    async with plane(tmp_path) as url, connected(url) as client:
        working = worker_process(url, slots=1)
        worker = await working.__aenter__()
        await client.submit(topic, {"file": str(file), "seconds": 60})
        await wait_marked(file, "began")
    gone_at = loop.time()
    await wait_marked(file, "lost:lost")

    assert loop.time() - gone_at < IN_TIME_S
    await asyncio.sleep(LEASE_S)
    assert worker.returncode is None
    await working.__aexit__(None, None, None)


async def test_worker_whose_handler_stops_in_time_lives_on(tmp_path: Path) -> None:
    """Nothing is refused, nothing is answered: the handler is stopped by the clock alone, at the last moment."""
    file = tmp_path / "marks"
    async with plane(tmp_path) as url, connected(url) as client, way(url) as (through, to_plane):
        async with worker_process(through, slots=1) as worker:
            job_id = await client.submit("told.async", {"file": str(file), "seconds": 60}, max_attempts=1)
            await wait_marked(file, "began")
            to_plane.blocked = True
            job = await client.wait_ended(job_id)
            assert marks(file)[-1][0] == "lost:lost"  # before the plane could give it to anybody else
            assert worker.returncode is None
            to_plane.reopen()
            await client.run("echo.async", 1)

    assert job["error"]["code"] == "lease-expired-no-attempts-left"


async def test_deadline_of_a_handler_that_has_stopped_is_nobody_elses(tmp_path: Path) -> None:
    file, other = tmp_path / "marks", tmp_path / "other"
    async with plane(tmp_path) as url, connected(url) as client, way(url) as (through, to_plane):
        async with worker_process(through, slots=2) as worker:
            longer = await client.submit("long-lease.sleep.async", {"file": str(other), "seconds": 2 * LEASE_S})
            await wait_marked(other, "began")
            await client.submit("told.async", {"file": str(file), "seconds": 60}, max_attempts=1)
            await wait_marked(file, "began")
            to_plane.blocked = True
            await wait_marked(file, "lost:lost")
            await wait_marked(other, "ended")
            to_plane.reopen()
            job = await client.wait_ended(longer)
            assert worker.returncode is None

    assert (job["state"], job["attempts"]) == ("SUCCEEDED", 1)


async def test_worker_goes_on_after_a_handler_in_its_loop(tmp_path: Path) -> None:
    """The dead-man's timer is off when nothing runs: this very process would end."""
    async with plane(tmp_path) as url, connected(url) as client, serving(TASKS, url=url, slots=1):
        await client.run("echo.async", 1)
        await asyncio.sleep(1.2 * LEASE_S)
        job = await client.run("echo.async", 2)

    assert job["result"] == 2
