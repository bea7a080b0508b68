"""What ends without a word: processes that are killed or stopped, a plane that goes away and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from worker_plane import (
    IN_TIME_S,
    LEASE_S,
    TASKS,
    connected,
    marks,
    plane,
    runs,
    stop_process,
    wait_marked,
    worker_process,
)

from holdfast.worker import serving


async def test_handler_is_dead_before_its_lease_can_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One C call that never gives up the GIL; the plane is gone, so nobody can renew."""
    monkeypatch.setattr("holdfast.worker.supervisor.SETTLE_S", 0.1)  # there is nobody to hear of its end
    file = tmp_path / "marks"
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        async with plane(tmp_path) as url, connected(url) as client:
            working = serving(TASKS, url=url, slots=1, drain_s=0)
            await working.__aenter__()
            await client.submit("gil", {"file": str(file)})
            [[_, pid, _]] = await wait_marked(file, "began")
            began_at = loop.time()
            await asyncio.sleep(LEASE_S)  # renewed meanwhile: it outlives its first lease
            assert runs(int(pid))
        gone_at = loop.time()
        while runs(int(pid)):
            await asyncio.sleep(0.005)

        assert loop.time() - began_at > LEASE_S
        assert loop.time() - gone_at < IN_TIME_S
        await working.__aexit__(None, None, None)


async def test_attempt_that_the_plane_gave_away_is_killed_at_once(tmp_path: Path) -> None:
    """The worker is stopped past its lease; another runs the job; the first wakes up and kills its handler."""
    file = tmp_path / "marks"
    async with plane(tmp_path) as url, connected(url) as client:
        async with worker_process(url, name="first", slots=1) as first:
            job_id = await client.submit("sleep.sync", {"file": str(file), "seconds": 60})
            [[_, pid, _]] = await wait_marked(file, "began")
            # Of two idle workers the plane takes the first by name, and it cannot see that one is stopped.
            async with worker_process(url, name="another", slots=1):
                await client.wait_workers(2)
                stop_process(first.pid)
                await wait_marked(file, "began", times=2)
                os.kill(first.pid, signal.SIGCONT)
                async with asyncio.timeout(IN_TIME_S):
                    while runs(int(pid)):
                        await asyncio.sleep(0.005)
                job = await client.get(job_id)

    assert (job["state"], job["attempts"]) == ("RUNNING", 2)
    assert [(what, attempt) for what, _, attempt in marks(file)] == [("began", "1"), ("began", "2")]


async def test_killed_worker_takes_its_children_along_and_its_successor_hands_over(tmp_path: Path) -> None:
    """With a lease of a minute: the proof of death, not the lease, brings the job back."""
    file = tmp_path / "marks"
    loop = asyncio.get_running_loop()
    async with plane(tmp_path) as url, connected(url) as client:
        async with worker_process(url, slots=1) as first:
            job_id = await client.submit("long-lease.sleep", {"file": str(file), "seconds": 2})
            [[_, pid, _]] = await wait_marked(file, "began")
            first.kill()
            await first.wait()
        killed_at = loop.time()
        async with worker_process(url, slots=1):
            await wait_marked(file, "began", times=2)
            assert loop.time() - killed_at < 10  # seconds, most of them to start Python on a busy machine
            assert not runs(int(pid))
            job = await client.wait_ended(job_id)
            assert len(await client.workers()) == 1

    assert (job["state"], job["attempts"]) == ("SUCCEEDED", 2)


@pytest.mark.parametrize("undertakers", [1, 2])
async def test_killed_worker_takes_along_what_its_handlers_have_started(tmp_path: Path, undertakers: int) -> None:
    """Also if the process that sees to it was killed before: the next child brings another one."""
    file = tmp_path / "marks"
    async with plane(tmp_path) as url, connected(url) as client:
        async with worker_process(url, slots=1) as first:
            await client.run("echo")
            if undertakers > 1:
                os.kill(undertaker_of(first.pid), signal.SIGKILL)
                await client.run("long-lease.die-once", {"file": str(tmp_path / "died")})
            await client.submit("long-lease.tool", {"file": str(file)})
            [[_, tool, _]] = await wait_marked(file, "tool")
            first.kill()
            await first.wait()
        async with asyncio.timeout(10):
            while runs(int(tool)):
                await asyncio.sleep(0.01)


async def test_worker_that_ends_takes_its_undertaker_along(tmp_path: Path) -> None:
    async with plane(tmp_path) as url, connected(url) as client, worker_process(url, slots=1) as first:
        await client.run("echo")
        undertaker = undertaker_of(first.pid)
        first.terminate()
        await first.wait()

    assert not runs(undertaker)


def undertaker_of(worker: int) -> int:
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    [one] = [int(pid) for pid in children if b"undertaker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return one


async def test_living_namesake_keeps_its_jobs(tmp_path: Path) -> None:
    file = tmp_path / "marks"
    async with plane(tmp_path) as url, connected(url) as client:
        async with worker_process(url, slots=1), worker_process(url, slots=1):
            await client.wait_workers(2)
            job = await client.run("long-lease.sleep", {"file": str(file), "seconds": 0.5})

    assert (job["state"], job["attempts"]) == ("SUCCEEDED", 1)


async def test_sigterm_drains_and_a_second_one_hands_back_at_once(tmp_path: Path) -> None:
    file = tmp_path / "marks"
    async with plane(tmp_path) as url, connected(url) as client:
        async with worker_process(url, slots=1) as worker:
            job_id = await client.submit("sleep.sync", {"file": str(file), "seconds": 60})
            await wait_marked(file, "began")
            worker.terminate()
            await asyncio.sleep(1.0)
            assert worker.returncode is None
            worker.terminate()
            assert await asyncio.wait_for(worker.wait(), 5) == 0
        job = await client.get(job_id)

        assert (job["state"], job["attempts"]) == ("SCHEDULED", 0)
        assert await client.workers() == []


async def test_plane_that_restarts_in_mid_job_gets_the_outcome(tmp_path: Path) -> None:
    file = tmp_path / "marks"
    async with plane(tmp_path) as url, connected(url) as client:
        job_id = await client.submit("long-lease.sleep", {"file": str(file), "seconds": 1.5})
        working = serving(TASKS, url=url, slots=1)
        await working.__aenter__()
        await wait_marked(file, "began")
    await asyncio.sleep(0.3)
    async with plane(tmp_path, port=int(url.rpartition(":")[2])) as url, connected(url) as client:
        job = await client.wait_ended(job_id)
        again = await client.run("echo", 1)
        await working.__aexit__(None, None, None)

    assert (job["state"], job["attempts"]) == ("SUCCEEDED", 1)
    assert again["state"] == "SUCCEEDED"
