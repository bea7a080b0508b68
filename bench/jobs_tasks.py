"""What the measured workers do. `holdfast worker` loads it as a file, in the worker or in its children."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from holdfast.worker import Fatal, Job, SyncJob, Worker

#: Jobs that a worker has at once; the peers that have such a number are given the same, and are no slower with it.
SLOTS = 64
#: For jobs of milliseconds a worker claims ahead, as docs/how-to/write-a-worker.md says of `backlog`.
in_loop = Worker(name="bench", slots=SLOTS, backlog=448)
in_processes = Worker(name="bench", slots=2, backlog=254)
patient = Worker(name="bench")
#: Few at once, so that it is the slots that limit it and not a core.
waiting = Worker(name="bench", slots=8)
WAIT_S = 0.02


@in_loop.task("noop", isolation="async")
async def noop(job: Job) -> None:
    pass


@in_loop.task("fail", isolation="async")
async def fail(job: Job) -> None:
    raise Fatal("as asked")


@waiting.task("wait", isolation="async")
async def wait(job: Job) -> None:
    await asyncio.sleep(WAIT_S)


@in_processes.task("noop")
def noop_in_child(job: SyncJob) -> None:
    pass


@patient.task("mark")
def mark(job: SyncJob) -> None:
    """Leave a line that outlives this process; the first attempt then hangs until it is killed."""
    with Path(job.payload["file"]).open("a") as file:
        file.write(f"{os.getpid()} {time.monotonic()}\n")
    if job.attempt == 1:
        time.sleep(3600)
