"""Handlers that run in the worker's own process: coroutines in its loop, or anything in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from holdfast.locks.runtime import Runtime
from holdfast.worker.attempt import Attempt, Stop
from holdfast.worker.context import Job, SyncJob
from holdfast.worker.ending import awaited, ended, ended_task, failed, raise_again
from holdfast.worker.wire import Answer, Done, Request
from holdfast.worker.worker import Task

AskPlane = Callable[[Request], Coroutine[Any, Any, Answer]]


async def run_in_loop(task: Task, attempt: Attempt, ask: AskPlane, *, runtime: Runtime) -> Done:
    """The handler, in the task that calls this; stopping cancels it. Returns when it has ended, not before.

    A task of its own would begin and end it a turn of the loop later, which is a tenth of what a small job takes here.
    """
    job = Job(attempt.work, ask, is_lost=_lateness(attempt, runtime))
    carrying = asyncio.current_task()
    assert carrying is not None

    def stop(why: Stop) -> None:
        job.over = why.value
        carrying.cancel(f"this attempt is over: {why}")

    attempt.stoppable(stop)
    try:
        value = await task.handler(job)
    except GeneratorExit:  # the loop itself is gone
        raise
    except BaseException as error:  # noqa: BLE001  (the handler's, and said of it; not of the task around it)
        handled: Callable[[], Any] = partial(raise_again, error)
    else:
        handled = partial(_given, value)
    attempt.body = None
    await _outlive_cancel(carrying)
    return ended(handled)


async def _outlive_cancel(carrying: asyncio.Task[Any]) -> None:
    """Whoever asked for it, it was the handler that was stopped: what is left to say of the attempt is said."""
    if not carrying.cancelling():
        return
    # What was asked for in the handler's last step has not come yet, and before Python 3.13 it would come all the same.
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while carrying.cancelling():
        carrying.uncancel()


async def run_in_thread(task: Task, attempt: Attempt, ask: AskPlane, *, runtime: Runtime) -> Done:
    """The handler in a thread of its own. Nothing stops it but `job.check()`; a coroutine is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Done] = loop.create_future()
    is_lost = _lateness(attempt, runtime)

    def function_here() -> Done:
        job = SyncJob(
            attempt.work, lambda request: asyncio.run_coroutine_threadsafe(ask(request), loop).result(), is_lost=is_lost
        )
        loop.call_soon_threadsafe(attempt.stoppable, lambda why: setattr(job, "over", why.value))
        with _without_loop():
            return ended(lambda: task.handler(job))

    async def coroutine_here() -> Done:
        here = asyncio.get_running_loop()

        def ask_from_here(request: Request) -> Awaitable[Answer]:
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(request), loop))

        job = Job(attempt.work, ask_from_here, is_lost=is_lost)
        handling = asyncio.ensure_future(awaited(task.handler, job))

        def stop(why: Stop) -> None:
            job.over = why.value
            with suppress(RuntimeError):  # it has just ended
                here.call_soon_threadsafe(handling.cancel, f"this attempt is over: {why}")

        loop.call_soon_threadsafe(attempt.stoppable, stop)
        await asyncio.wait([handling])
        return ended_task(handling)

    async def body() -> None:
        handled: Done | Exception
        try:
            handled = await coroutine_here() if task.is_coroutine else function_here()
        except asyncio.CancelledError:  # nobody has this task, but who ends the loop: a task of the handler's did
            handled = failed("handler-exited", "a task that the handler had started raised SystemExit")
        except Exception as error:  # noqa: BLE001  (else nobody hears of it, and the slot is never free again)
            handled = error
        with suppress(RuntimeError):  # the worker has ended before the thread did
            loop.call_soon_threadsafe(_settle, done, handled)

    runtime.run_in_thread(body, f"holdfast-{attempt.work.topic}")
    return await done


def _settle(done: asyncio.Future[Done], handled: Done | Exception) -> None:
    if done.done():
        return
    if isinstance(handled, Exception):
        done.set_exception(handled)
    else:
        done.set_result(handled)


@contextmanager
def _without_loop() -> Iterator[None]:
    """The runtime starts threads with a loop. A plain function must not find it: it may well call `asyncio.run`."""
    here = asyncio.get_running_loop()
    asyncio._set_running_loop(None)  # noqa: SLF001  (meant for those who run loops, as we do)
    try:
        yield
    finally:
        asyncio._set_running_loop(here)  # noqa: SLF001


def _lateness(attempt: Attempt, runtime: Runtime) -> Callable[[], bool]:
    """Judged by the clock alone: a handler that asks must hear the truth even while the worker's loop is stuck."""
    return lambda: runtime.now() >= attempt.lease.trusted_until


def _given(value: object) -> object:
    return value
