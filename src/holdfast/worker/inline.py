"""Handlers that run in the worker's own process: coroutines in its loop, or anything in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from holdfast.locks.runtime import Runtime
from holdfast.worker.attempt import Attempt, Stop
from holdfast.worker.context import Job, SyncJob
from holdfast.worker.ending import ended
from holdfast.worker.wire import Answer, Done, Request
from holdfast.worker.worker import Task

Asking = Callable[[Request], Awaitable[Answer]]


async def run_in_loop(task: Task, attempt: Attempt, ask: Asking) -> Done:
    """The handler as a task of this loop; stopping cancels it."""
    job = Job(attempt.work, ask)
    handling = asyncio.ensure_future(_awaited(task, job))

    def stop(why: Stop) -> None:
        job.over = why.value
        handling.cancel()

    _stoppable(attempt, stop)
    await asyncio.wait([handling])
    return ended(handling.result)


async def run_in_thread(task: Task, attempt: Attempt, ask: Asking, *, runtime: Runtime) -> Done:
    """The handler in a thread of its own. Nothing stops it but `job.check()`; a coroutine is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Done] = loop.create_future()

    async def body() -> None:
        handled = await _coroutine_here() if task.is_coroutine else _function_here()
        with suppress(RuntimeError):  # the worker has ended before the thread did
            loop.call_soon_threadsafe(_settle, done, handled)

    def _function_here() -> Done:
        job = SyncJob(attempt.work, lambda request: asyncio.run_coroutine_threadsafe(_answered(request), loop).result())
        loop.call_soon_threadsafe(_stoppable, attempt, lambda why: setattr(job, "over", why.value))
        return ended(lambda: task.handler(job))

    async def _coroutine_here() -> Done:
        here = asyncio.get_running_loop()
        job = Job(
            attempt.work,
            lambda request: asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_answered(request), loop)),
        )
        handling = asyncio.ensure_future(_awaited(task, job))

        def stop(why: Stop) -> None:
            job.over = why.value
            with suppress(RuntimeError):  # it has just ended
                here.call_soon_threadsafe(handling.cancel)

        loop.call_soon_threadsafe(_stoppable, attempt, stop)
        await asyncio.wait([handling])
        return ended(handling.result)

    async def _answered(request: Request) -> Answer:
        return await ask(request)

    runtime.run_in_thread(body, f"holdfast-{attempt.work.topic}")
    return await done


def _settle(done: asyncio.Future[Done], handled: Done) -> None:
    if not done.done():
        done.set_result(handled)


def _stoppable(attempt: Attempt, stop: Callable[[Stop], None]) -> None:
    attempt.body = stop
    if attempt.stopped is not None:  # before there was anything to stop
        stop(attempt.stopped)


async def _awaited(task: Task, job: Job) -> Any:
    return await task.handler(job)
