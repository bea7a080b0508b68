"""Child processes: spawned, kept for many jobs, killed with all they have started, and reaped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from holdfast.worker.errors import BrokenWorker
from holdfast.worker.starting import ChildDied, NotStarted, not_started
from holdfast.worker.undertaker import Undertaker
from holdfast.worker.wire import Ask, Begin, Broken, CancelWork, Done, Frames, Order, Ready, Word, Work, frame, word

logger = logging.getLogger("holdfast.worker")

POLL_S = 0.01
WARM_MAX = 8
"""Children started before there is work for them."""
START_S_MAX = 120.0
LEAVE_S_MAX = 5.0


class Child(asyncio.Protocol):
    """One process. `start` and `run` end with `ChildDied`, or with what it says; `run` with `NotStarted` where it is certain
    that the process never read of the job."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._ready: asyncio.Future[Ready] = self._loop.create_future()
        self._reaped: asyncio.Future[int] = self._loop.create_future()
        self._done: asyncio.Future[Done] | None = None
        self._asked: Callable[[Ask], None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._pidfd = -1
        self._ending = threading.Lock()
        """Nobody is killed by a number that has become another process's, or in the middle of another job."""
        self._connected = False
        self._was_cut = False
        """It ended without having read all that it was told."""
        self._told_since = False
        """It was told something after its work: if that is what it has not read, nobody knows of the work."""
        self.jobs = 0
        self.used_up = False
        """It was told to stop something, and may still be about to: not for another job."""

    async def start(self, target: str) -> Ready:
        """Raises `BrokenWorker` if the module cannot be loaded."""
        ours, theirs = socket.socketpair()
        self._socket = ours
        command = [sys.executable, "-m", "holdfast.worker.child", str(theirs.fileno()), str(os.getpid())]
        try:
            # A group of its own: a kill reaches what the handler has started, and Ctrl-C does not reach the handler.
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220  (our own command; a spawn takes a millisecond)
                command, pass_fds=[theirs.fileno()], process_group=0, stdin=subprocess.DEVNULL
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            self._watch()
        except OSError:  # there is no descriptor left to watch it by
            ours.close()
            self._process.kill()
            self._process.wait()
            raise
        self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=ours)
        self.say(Begin(target, list(sys.path)))
        try:
            async with asyncio.timeout(START_S_MAX):
                return await self._ready
        except BaseException:
            await self.close(at_once=True)
            raise

    def run(self, work: Work, asked: Callable[[Ask], None]) -> asyncio.Future[Done]:
        with self._ending:
            self.jobs += 1
        self._asked = asked
        self._done = self._loop.create_future()
        self.say(work)
        self._told_since = False
        if self._transport.is_closing():
            # It was not sent. Its process may be about to be reaped, or may never end by itself.
            self._was_cut = True
            self.kill()
        if self._reaped.done():
            self._done.set_exception(not_started(ChildDied(self._reaped.result())))
        return self._done

    def say(self, order: Order) -> None:
        """Nobody hears it if the child is gone; then `run` ends by that."""
        self._told_since = True
        if self._connected:
            self._transport.write(frame(order))

    def cancel(self, *, grace_s: float) -> None:
        """Ask the handler to stop; kill it if it has not by then."""
        self.used_up = True
        self.say(CancelWork())
        if not self._reaped.done():
            os.kill(self._process.pid, signal.SIGUSR1)
        self._patience = self._loop.call_later(grace_s, self.kill)

    def kill(self, *, job: int | None = None) -> None:
        """End it and everything in its process group, from any thread. `run` ends when it is reaped.

        With `job`, only if it has not been given another since: the number that `jobs` had.
        """
        with self._ending:
            if job in {None, self.jobs} and self._process.returncode is None:
                self.used_up = True
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                with suppress(ProcessLookupError):  # where SIGCHLD is ignored, the kernel has reaped it already
                    os.kill(self._process.pid, signal.SIGKILL)  # a handler may have put it into another group

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        return self._connected and not self.used_up and not self._reaped.done()

    def when_reaped(self, then: Callable[[], None]) -> None:
        self._reaped.add_done_callback(lambda _: then())

    async def close(self, *, at_once: bool = False) -> None:
        """Let it end, or make it; then reap it."""
        self._transport.close()
        if at_once:
            self.kill()
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                await asyncio.shield(self._reaped)
        except TimeoutError:
            self.kill()
            await asyncio.shield(self._reaped)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._hear(word(body))
        except msgspec.DecodeError:  # something else wrote to its descriptor
            self.kill()

    def _hear(self, said: Word) -> None:
        match said:
            case Done() if self._done is not None and not self._done.done():
                self._end_patience()
                self._done.set_result(said)
            case Ask() if self._asked is not None:
                self._asked(said)
            case Ready() if not self._ready.done():
                self._ready.set_result(said)
            case Broken() if not self._ready.done():
                self._ready.set_exception(BrokenWorker(said.reason))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connected = True

    def connection_lost(self, exc: Exception | None) -> None:
        # It ended, or its handler closed every descriptor: nothing can be heard of it any more.
        self._connected = False
        self._was_cut |= exc is not None
        if self._done is not None and not self._done.done():
            self.kill()

    def _watch(self) -> None:
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self._process.pid)
            self._loop.add_reader(self._pidfd, self._look)
        else:
            self._loop.call_later(POLL_S, self._look)

    def _look(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            # It is gone, and what it has left behind in its group goes with it: now, because the
            # group's number cannot become another's before its leader is reaped.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with self._ending:
            code = self._process.wait() if self._pidfd >= 0 else self._process.poll()
        if code is None:
            self._loop.call_later(POLL_S, self._look)
            return
        self._end_patience()
        self._reaped.set_result(code)
        if not self._ready.done():
            self._ready.set_exception(ChildDied(code))
        if not self._ready.cancelled():
            self._ready.exception()
        if self._connected:
            # The kernel says so of a socket whose other end was closed with something in it.
            self._was_cut |= self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
        # In the next turn: the transport may have been told in this one, and have yet to tell us.
        self._loop.call_soon(self._end_work, ChildDied(code))

    def _end_work(self, died: ChildDied) -> None:
        if self._done is not None and not self._done.done():
            never_read = self._was_cut and not self._told_since
            self._done.set_exception(not_started(died) if never_read else died)

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class Children:
    """As many as there is work for, one job each at a time; some are kept ready."""

    def __init__(self, target: str, *, slots: int, jobs_per_child: int) -> None:
        self._target = target
        self._warm = min(slots, WARM_MAX)
        self._jobs_per_child = jobs_per_child
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._starting = 0
        self._waiting: deque[asyncio.Future[Child]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._undertaker = Undertaker()
        self._closing = False

    async def start(self) -> None:
        """Raises `BrokenWorker` if the worker cannot be loaded. One child is ready, others follow."""
        try:
            await self.have_one()
        except NotStarted as none:
            # What its module has said, if that was it, is for whoever starts it.
            raise none.__cause__ if isinstance(none.__cause__, BrokenWorker) else BrokenWorker(str(none)) from none
        for _ in range(self._warm - 1):
            self._spawn()

    async def have_one(self) -> None:
        """See to it that a child is ready. Raises `NotStarted`."""
        self._offer(await self.take())

    async def take(self) -> Child:
        """A child to run one job. Raises `NotStarted`."""
        while self._idle:
            child = self._idle.pop()
            if child.usable:
                return child
            self._background(self._retire(child))
        waiting: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        if self._starting < len(self._waiting):
            self._spawn()
        return await waiting

    def give_back(self, child: Child) -> None:
        if child.usable and child.jobs < self._jobs_per_child and not self._closing:
            self._offer(child)
        else:
            self._background(self._retire(child))
            if len(self._all) <= self._warm and not self._closing:
                self._spawn()

    async def close(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        idle = set(self._idle)
        await asyncio.gather(*(child.close(at_once=child not in idle) for child in list(self._all)))
        self._all.clear()
        self._undertaker.close()

    def _spawn(self) -> None:
        self._starting += 1
        self._background(self._start_child())

    async def _start_child(self) -> None:
        child = Child()
        self._all.add(child)
        try:
            await child.start(self._target)
            await self._have_watched(child)
        except BaseException as error:
            self._all.discard(child)
            if not isinstance(error, Exception):
                raise
            none = not_started(error)
            none.__cause__ = error
            logger.warning("child.not_started error=%s next=%s", error, none.then)
            if waiting := self._next_waiting():
                waiting.set_exception(none)
            return
        finally:
            self._starting -= 1
        self._offer(child)

    async def _have_watched(self, child: Child) -> None:
        """Before it is given a job: what that starts must not outlive this process either."""
        try:
            self._undertaker.watch(child.pid)
        except OSError:
            await child.close(at_once=True)
            raise
        child.when_reaped(partial(self._undertaker.forget, child.pid))

    def _offer(self, child: Child) -> None:
        if waiting := self._next_waiting():
            waiting.set_result(child)
        else:
            self._idle.append(child)

    def _next_waiting(self) -> asyncio.Future[Child] | None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                return waiting
        return None

    async def _retire(self, child: Child) -> None:
        await child.close()
        self._all.discard(child)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def describe(target: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A worker's options and isolations, found out by a child: nothing of it is loaded here."""
    child = Child()
    try:
        ready = await child.start(target)
    except BrokenWorker:
        raise
    except (ChildDied, OSError) as error:
        raise BrokenWorker(f"{target}: {not_started(error)}") from error
    await child.close()
    return ready.options, ready.isolations
