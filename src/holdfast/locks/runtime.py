"""The one seam to clocks, randomness and threads. Nothing else in the library touches them."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol


class Runtime(Protocol):
    def now(self) -> float:
        """Seconds on a clock that never steps and counts suspend. Leases are judged by it alone."""

    def wall_us(self) -> int:
        """Microseconds since the epoch. Only ever a floor for fences, and for people to read."""

    def boot_id(self) -> str:
        """Changes when `now()` starts again from zero."""

    def token(self) -> str:
        """A fresh secret of 128 random bits."""

    def jitter(self, seconds: float) -> float:
        """A random share of `seconds`, between a half and the whole."""

    def inline(self) -> bool:
        """True where threads must not be started (simulation): their work runs in place."""

    def run_in_thread(self, main: Callable[[], Awaitable[None]], name: str) -> threading.Thread:
        """Run `main` in a daemon thread with an event loop of its own. Raises `OSError` or `RuntimeError` if there is none
        to be had."""


#: On macOS CLOCK_MONOTONIC counts sleep, while time.monotonic() there does not.
_CLOCK = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC

#: A call of C code: it is made several times for every lock.
suspend_aware_now: Callable[[], float] = partial(time.clock_gettime, _CLOCK)


class _Entropy:
    """Random tokens from a buffer: one system call per 256 tokens. A forked child starts empty,
    else parent and child would hand out the same secrets."""

    def __init__(self) -> None:
        self._tokens: list[str] = []
        os.register_at_fork(after_in_child=self._tokens.clear)

    def token(self) -> str:
        try:
            return self._tokens.pop()
        except IndexError:
            fresh = os.urandom(256 * 16).hex()
            self._tokens.extend(fresh[i : i + 32] for i in range(32, len(fresh), 32))
            return fresh[:32]


class SystemRuntime:
    def __init__(self) -> None:
        self.token = _Entropy().token

    now = staticmethod(suspend_aware_now)

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id") as f:
                return f.read().strip()
        except OSError:
            # Elsewhere: the wall time of boot, coarse enough not to change with small clock steps.
            return f"booted-{round((time.time() - suspend_aware_now()) / 60)}"

    def jitter(self, seconds: float) -> float:
        return seconds * (0.5 + 0.5 * random.random())  # noqa: S311  (spreads load, guards nothing)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def inline(self) -> bool:
        return False

    def run_in_thread(self, main: Callable[[], Awaitable[None]], name: str) -> threading.Thread:
        async def run() -> None:
            await main()

        loop = asyncio.new_event_loop()  # made here, where somebody hears of it if no descriptor is left for it

        def work() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(run())

        thread = threading.Thread(target=work, name=name, daemon=True)
        try:
            thread.start()
        except BaseException:
            loop.close()
            raise
        return thread


SYSTEM = SystemRuntime()


class _Forks:
    __slots__ = ("generation",)

    def __init__(self) -> None:
        self.generation = 0


#: Counts forks: what was created under another number belongs to another process. Read, not asked for, and an
#: attribute of an object, which is found sooner than one of a class: it is looked at several times for every lock.
FORKS = _Forks()


def _forked() -> None:
    FORKS.generation += 1


os.register_at_fork(after_in_child=_forked)


def default_holder() -> str:
    return f"{_place()}:{os.getpid()}"


def is_gone(holder: str) -> bool:
    """Whether a `default_holder` is known to run no more. In doubt it is not: then its leases run out by themselves."""
    place, _, pid = holder.rpartition(":")
    if place != _place() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:  # processes name themselves
            return stat.read().rpartition(")")[2].split()[0] in "ZX"  # dead, and not yet reaped by its parent
    except OSError:
        return False


def _place() -> str:
    """Where a process id is one process's and nobody else's. A host's name does not say so: machines may share it, and
    containers of one machine, each with process ids of its own."""
    import hashlib  # noqa: PLC0415  (who only imports us needs neither it nor OpenSSL, which it loads)

    where = hashlib.sha256(f"{SYSTEM.boot_id()} {_pid_namespace()}".encode()).hexdigest()[:8]
    return f"{socket.gethostname()}.{where}"


def _pid_namespace() -> str:
    if sys.platform != "linux":
        return ""  # there is but one
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  (pathlib would be a tenth of our import)
    except OSError:
        return SYSTEM.token()  # unknown, so nobody is known to be in the same
