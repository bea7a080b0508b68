"""Handlers for the worker's tests, loaded by its children from this file. Each does one thing that a test watches."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.worker import EffectAbsent, Fatal, Job, LeaseLost, PlaneRefused, SyncJob, Worker

worker = Worker(name="tasks")
"""Its URL and slots are set by the test."""


def mark(job: Job | SyncJob, what: str) -> None:
    """Leave a line that outlives this process."""
    with Path(job.payload["file"]).open("a") as file:
        file.write(f"{what} {os.getpid()} {job.attempt}\n")


@worker.task("echo")
async def echo(job: Job) -> Any:
    return {"payload": job.payload, "attempt": job.attempt, "pid": os.getpid()}


@worker.task("echo.sync")
def echo_sync(job: SyncJob) -> Any:
    return {"payload": job.payload, "pid": os.getpid()}


@worker.task("echo.async", isolation="async")
async def echo_async(job: Job) -> Any:
    return job.payload


@worker.task("echo.thread", isolation="thread")
def echo_thread(job: SyncJob) -> Any:
    return job.payload


@worker.task("family.*")
def family(job: SyncJob) -> Any:
    return job.topic


@worker.task("progress")
async def progress(job: Job) -> None:
    await job.progress({"step": 1})


@worker.task("progress.sync")
def progress_sync(job: SyncJob) -> None:
    job.progress({"step": 2})


@worker.task("raise")
def raise_(job: SyncJob) -> None:
    raise KeyError("no such customer")


@worker.task("long-words")
def long_words(job: SyncJob) -> None:
    raise ValueError("x" * 10_000)


@worker.task("fatal")
def fatal(job: SyncJob) -> None:
    raise Fatal("never again")


@worker.task("not-json")
def not_json(job: SyncJob) -> object:
    return float("nan") if job.payload == "nan" else object()


UNDECODABLE = os.fsdecode(b"report-\xff.csv")
"""A file name as the system gives it, which no JSON can carry."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("not even its words")


@worker.task("undecodable")
@worker.task("undecodable.thread", isolation="thread")
def undecodable(job: SyncJob) -> str:
    if job.payload == "return":
        return UNDECODABLE
    raise FileNotFoundError(UNDECODABLE)


@worker.task("undecodable.async", isolation="async")
async def undecodable_async(job: Job) -> None:
    raise FileNotFoundError(UNDECODABLE)


@worker.task("wordless.thread", isolation="thread")
def wordless(job: SyncJob) -> None:
    raise Wordless


@worker.task("exit")
def exit_(job: SyncJob) -> None:
    raise SystemExit(3)


@worker.task("exit.coroutine")
@worker.task("exit.thread", isolation="thread")
@worker.task("exit.async", isolation="async")
async def exit_async(job: Job) -> None:
    raise SystemExit(3)


@worker.task("exit.task.thread", isolation="thread")
async def exit_in_task(job: Job) -> None:
    await asyncio.gather(exit_async(job))


@worker.task("cancel-itself.async", isolation="async")
async def cancel_itself(job: Job) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


saying: list[asyncio.Future[None]] = []


@worker.task("cancel-itself-at-the-end.async", isolation="async")
async def cancel_itself_at_the_end(job: Job) -> str:
    """With something under way that the outcome has to wait for."""
    task = asyncio.current_task()
    assert task is not None
    saying.append(asyncio.ensure_future(job.progress("all")))
    await asyncio.sleep(0)  # it is asked now
    task.cancel()
    return "done"


@worker.task("refuse-to-stop.async", isolation="async")
async def refuse_to_stop(job: Job) -> str:
    """Is told to stop, and ends its work first."""
    mark(job, "began")
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    async with asyncio.timeout(60):
        await asyncio.sleep(0)
    await job.progress("all")
    return "done"


@worker.task("long-lease.die-once")
def die_once(job: SyncJob) -> int:
    mark(job, "began")
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return job.attempt


@worker.task("long-lease.tool")
def tool(job: SyncJob) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as process, Path(job.payload["file"]).open("a") as file:
        file.write(f"tool {process.pid} {job.attempt}\n")
        file.flush()
        process.wait()


@worker.task("sleep")
@worker.task("sleep.brief")
@worker.task("long-lease.sleep")
async def sleep(job: Job) -> None:
    mark(job, "began")
    try:
        await asyncio.sleep(job.payload["seconds"])
        mark(job, "finished")
    except asyncio.CancelledError:
        mark(job, "cancelled")
        raise


@worker.task("sleep.sync")
def sleep_sync(job: SyncJob) -> None:
    mark(job, "began")
    try:
        time.sleep(job.payload["seconds"])
        mark(job, "finished")
    except BaseException:
        mark(job, "stopped")
        raise


@worker.task("stubborn")
def stubborn(job: SyncJob) -> None:
    """Ignores every request to stop."""
    mark(job, "began")
    end = time.monotonic() + job.payload["seconds"]
    while time.monotonic() < end:
        with suppress(BaseException):
            time.sleep(0.01)
    mark(job, "finished")


@worker.task("gil")
def gil(job: SyncJob) -> None:
    """One C call that holds the GIL for many seconds."""
    mark(job, "began")
    sum(range(3_000_000_000))
    mark(job, "finished")


@worker.task("sleep.thread", isolation="thread")
def sleep_thread(job: SyncJob) -> None:
    mark(job, "began")
    for _ in range(round(job.payload["seconds"] / 0.01)):
        job.check()
        time.sleep(0.01)
    mark(job, "finished")


@worker.task("nested.thread", isolation="thread")
def nested_thread(job: SyncJob) -> int:
    """Runs a loop of its own, as the synchronous faces of many libraries do."""
    asyncio.run(asyncio.sleep(0))
    job.progress("ran")
    return 1


@worker.task("sleep.async", isolation="async")
@worker.task("long-lease.sleep.async", isolation="async")
async def sleep_async(job: Job) -> None:
    mark(job, "began")
    try:
        await asyncio.sleep(job.payload["seconds"])
    finally:
        mark(job, "ended")


@worker.task("burn.async", isolation="async")
async def burn_async(job: Job) -> int:
    """Never gives the loop to anybody else."""
    mark(job, "began")
    end, turns = time.monotonic() + job.payload["seconds"], 0
    while time.monotonic() < end:
        turns += 1
    return turns


@worker.task("block.async", isolation="async")
@worker.task("long-lease.block", isolation="async")
async def block_async(job: Job) -> None:
    mark(job, "began")
    time.sleep(job.payload["seconds"])
    mark(job, "finished")


@worker.task("gil.async", isolation="async")
async def gil_async(job: Job) -> None:
    mark(job, "began")
    sum(range(3_000_000_000))
    mark(job, "finished")


@worker.task("swallow.async", isolation="async")
async def swallow_async(job: Job) -> None:
    """Does not let itself be cancelled."""
    mark(job, "began")
    end = time.monotonic() + job.payload["seconds"]
    while time.monotonic() < end:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
    mark(job, "finished")


@worker.task("told.async", isolation="async")
async def told_async(job: Job) -> None:
    mark(job, "began")
    try:
        await asyncio.sleep(job.payload["seconds"])
    except asyncio.CancelledError:
        try:
            job.check()
        except LeaseLost as lost:
            mark(job, f"lost:{lost.why}")
        raise


@worker.task("told.thread", isolation="thread")
def told_thread(job: SyncJob) -> None:
    mark(job, "began")
    try:
        while True:
            job.check()
            time.sleep(0.01)
    except LeaseLost as lost:
        mark(job, f"lost:{lost.why}")
        raise


def charge(file: str, amount: int, *, idempotency_key: str = "") -> dict[str, Any]:
    with Path(file).open("a") as ledger:
        ledger.write(f"charged {amount} {idempotency_key}\n")
    return {"amount": amount, "key": idempotency_key}


@worker.task("charge")
async def charge_once(job: Job) -> Any:
    paid = await job.once("charge", charge, job.payload["file"], 42)
    if job.attempt == 1:
        raise RuntimeError("after the effect")
    return paid


@worker.task("charge.sync")
def charge_once_sync(job: SyncJob) -> Any:
    paid = job.once("charge", charge, job.payload["file"], 42)
    if job.attempt == 1:
        raise RuntimeError("after the effect")
    return paid


@worker.task("charge.killed")
async def charge_killed(job: Job) -> Any:
    def charge_and_die() -> None:
        charge(job.payload["file"], 42)
        os.kill(os.getpid(), signal.SIGKILL)

    return await job.once("charge", charge_and_die)


@worker.task("charge.insistent")
def charge_insistent(job: SyncJob) -> Any:
    def charge_and_break() -> None:
        charge(job.payload["file"], 42)
        raise ConnectionResetError

    while True:
        with suppress(ConnectionResetError):
            return job.once("charge", charge_and_break)


def fetch(file: str, found: Any) -> Any:
    charge(file, 42)
    return found


@worker.task("charge.unkeepable")
def charge_unkeepable(job: SyncJob) -> Any:
    """Its results cannot be kept: two are not to be written as JSON, the other is nested too deeply for the plane."""
    file = job.payload["file"]
    deep: Any = None
    for _ in range(100):
        deep = [deep]
    for key, found in [("undecodable", UNDECODABLE), ("nan", math.nan), ("deep", deep)]:
        with suppress(ValueError, PlaneRefused):
            job.once(key, fetch, file, found)
    if job.attempt == 1:
        raise RuntimeError("after the effects")
    return [job.once(key, fetch, file, None) for key in ("undecodable", "nan", "deep")]


def declined(job: Job | SyncJob) -> str:
    """The bank says no the first time, and says so."""
    mark(job, "tried")
    if job.attempt == 1:
        raise EffectAbsent("card declined") from PermissionError("declined")
    return "paid"


@worker.task("charge.declined")
async def charge_declined(job: Job) -> Any:
    return await job.once("charge", declined, job)


@worker.task("charge.declined.sync")
def charge_declined_sync(job: SyncJob) -> Any:
    return job.once("charge", declined, job)


@worker.task("charge.cancelled")
def charge_cancelled(job: SyncJob) -> None:
    def slowly() -> int:
        mark(job, "began")
        time.sleep(1.0)
        mark(job, "charged")
        return 42

    job.once("charge", slowly)
    time.sleep(60)
