"""One child process and what its handlers may do to it, without a plane."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.worker.children import Child, ChildDied
from holdfast.worker.wire import Answer, Ask, Work

SOURCE = """
import asyncio, os, time
from holdfast.worker import Job, SyncJob, Worker

worker = Worker()

@worker.task("wait")
async def wait(job: Job):
    await asyncio.sleep(60)

@worker.task("wait.sync")
def wait_sync(job: SyncJob):
    time.sleep(60)

@worker.task("elsewhere.sync")
def elsewhere(job: SyncJob):
    os.setpgid(0, os.getpgid(os.getppid()))
    job.progress("moved")
    time.sleep(60)
"""


def work(topic: str) -> Work:
    return Work(f"job-{topic}", 7, topic, b"null", 1, 3, {}, "high", "")


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Child]:
    file = folder / "odd.py"
    file.write_text(SOURCE)
    child = Child()
    await child.start(f"{file}:worker")
    try:
        yield child
    finally:
        await child.close(at_once=True)


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Child]:
    async with started(tmp_path) as child:
        yield child


@pytest.mark.parametrize("topic", ["wait", "wait.sync"])
async def test_cancel_that_comes_before_the_handler_has_begun_stops_it(child: Child, topic: str) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    running = child.run(work(topic), lambda ask: None)
    child.cancel(grace_s=60)
    os.kill(child.pid, signal.SIGCONT)

    async with asyncio.timeout(20):
        assert (await running).outcome == "cancelled"


async def test_handler_that_has_left_its_process_group_is_killed_all_the_same(child: Child) -> None:
    moved = asyncio.Event()

    def answer(ask: Ask) -> None:
        child.say(Answer(ask.number))
        moved.set()

    running = child.run(work("elsewhere.sync"), answer)
    async with asyncio.timeout(20):
        await moved.wait()
        child.kill()
        with pytest.raises(ChildDied):
            await running
