"""The child process: loads the worker, then runs one handler at a time for its supervisor.

    python -m holdfast.worker.child <descriptor> <pid of the supervisor>

Plain functions run in the main thread with no event loop; coroutines run in a loop that is kept
from job to job, so that clients they have opened stay usable.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.worker.context import Job, SyncJob
from holdfast.worker.ending import awaited, ended, ended_task, failed, told
from holdfast.worker.errors import AttemptOver, BrokenWorker, LeaseLost
from holdfast.worker.streams import Streams
from holdfast.worker.wire import Answer, Ask, Begin, Broken, CancelWork, ChildEnd, Done, Order, Ready, Request, Work
from holdfast.worker.worker import Worker, load, loop_factory

CANCEL_SIGNAL = signal.SIGUSR1
PR_SET_PDEATHSIG = 1


def main() -> None:
    descriptor, supervisor = int(sys.argv[1]), int(sys.argv[2])
    die_with(supervisor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    # Whatever the handlers start is not to speak with the supervisor: it would hear what is said to this process.
    connection.set_inheritable(False)
    os.register_at_fork(after_in_child=connection.close)
    performer = Performer(ChildEnd(connection))
    signal.signal(CANCEL_SIGNAL, performer.interrupt)
    with suppress(BrokenPipeError, ConnectionResetError):  # the supervisor is gone: so are we
        performer.serve()


def die_with(supervisor: int) -> None:
    """Have the kernel end this process with its supervisor, however that one ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:  # it died before the line above
        sys.exit(1)


class Performer:
    """What runs in the child: one handler after the other."""

    def __init__(self, end: ChildEnd) -> None:
        self._end = end
        self._loop = asyncio.Runner(loop_factory=loop_factory())
        self._numbers = 0
        self._asking = threading.Lock()
        """One thread of a handler at a time: it would read, and throw away, what another one waits for."""
        self._running: SyncJob | None = None
        self._interrupted = False
        self._pid = os.getpid()

    def serve(self) -> None:
        worker = self._load()
        streams = Streams()
        while worker is not None and (order := self._end.wait_order()) is not None:
            if isinstance(order, Work):
                done = self._perform(worker, order)
                if os.getpid() != self._pid:
                    os._exit(done.outcome != "succeeded")  # a copy that the handler made: the original has the word
                streams.restore()
                self._end.say(done)
            # Anything else is late: for a handler that has already ended.

    def interrupt(self, signum: int, frame: object) -> None:
        # Of the one job or of none: a child that was told to stop is given nothing more.
        self._interrupted = True
        if self._running is not None:
            self._running.interrupt()

    def _load(self) -> Worker | None:
        begin = self._end.wait_order()
        if not isinstance(begin, Begin):
            return None
        sys.path[:] = begin.path
        try:
            worker = load(begin.target)
        except BrokenWorker as error:
            self._end.say(Broken(str(error)))
            return None
        except Exception as error:  # noqa: BLE001  (whatever a user's module raises while it is imported)
            self._end.say(Broken(f"{begin.target} cannot be loaded: {type(error).__name__}: {told(error)}"))
            return None
        self._end.say(Ready(worker.options.described(), worker.isolations()))
        return worker

    def _perform(self, worker: Worker, work: Work) -> Done:
        task = worker.find_task(work.topic)
        if task is None:
            return failed("no-handler", f"no task for topic {work.topic!r}")
        if task.is_coroutine:
            return self._loop.run(self._run_coroutine(task.handler, work))
        return self._run_function(task.handler, work)

    def _run_function(self, handler: Callable[[Any], Any], work: Work) -> Done:
        def ask(request: Request) -> Answer:
            with self._asking:
                job.check_lease()
                return self._ask(request)

        job = SyncJob(work, ask)
        try:
            self._running = job
            if self._interrupted:  # while the work was on its way
                job.interrupt()
            done = ended(lambda: handler(job))
        except AttemptOver:  # or between the handler's end and the next line
            done = Done("cancelled")
        finally:
            self._running = None
        with self._asking:  # a thread that waits for an answer is given it, and does not read the next job's orders
            job.over = "stale"
        return done

    def _ask(self, request: Request) -> Answer:
        self._numbers += 1
        self._end.say(Ask(self._numbers, request))
        while (order := self._end.wait_order()) is not None:
            if isinstance(order, Answer) and order.number == self._numbers:
                return order
        sys.exit(1)

    async def _run_coroutine(self, handler: Callable[[Any], Any], work: Work) -> Done:
        loop = asyncio.get_running_loop()
        asked: dict[int, asyncio.Future[Answer]] = {}

        async def ask(request: Request) -> Answer:
            if task.done():  # what the handler has left behind: by now it would be taken for the next job's
                raise LeaseLost("stale")
            self._numbers += 1
            number = self._numbers
            asked[number] = loop.create_future()
            self._end.say(Ask(number, request))
            try:
                return await asked[number]
            finally:
                del asked[number]

        def obey(order: Order) -> None:
            if isinstance(order, CancelWork):
                job.over = "cancelled"
                task.cancel()
            elif isinstance(order, Answer) and order.number in asked and not asked[order.number].done():
                asked[order.number].set_result(order)

        def read() -> None:
            orders = self._end.arrived()
            if orders is None:
                os._exit(1)  # nobody keeps this job's lease any more
            for order in orders:
                obey(order)

        job = Job(work, ask)
        task = asyncio.ensure_future(awaited(handler, job))
        self._end.watch(loop, read)
        for order in self._end.take_read():  # it came together with the work
            obey(order)
        try:
            await asyncio.wait([task])
        finally:
            self._end.unwatch(loop)
            job.over = "stale"
        return ended_task(task)


if __name__ == "__main__":
    main()
