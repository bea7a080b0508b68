"""Virtual time: a loop whose clock jumps to the next timer when nothing else is left to do.

Everything runs in one thread and one loop, from one seed: the same test makes the same steps
every time, and an hour of renewals takes a second.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
import selectors
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, cast

P = ParamSpec("P")

STARTED_AT_S = 1000.0
STORY_S_MAX = 100_000.0
ANSWER_S_MAX = 30.0
"""Of a server outside, by a real clock."""
WALL_AT_START_US = 1_800_000_000_000_000


class Deadlock(Exception):
    """No callback is ready and no timer is set: nothing would ever happen again."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.clock_s = STARTED_AT_S
        self.is_owed: Callable[[], bool] = lambda: False
        """Whether somebody outside has been asked and has not answered yet: this moment is not over then."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # The loop's own socket is one. Nobody writes to it here, so the kernel is asked only for those of others.
        ready = super().select(0) if len(self.get_map()) > 1 else []
        if ready or timeout == 0:
            return ready
        if self.is_owed():
            return self._wait_answer()
        if timeout is None:
            raise Deadlock
        self.clock_s += max(0.0, timeout)
        return []

    def _wait_answer(self) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(ANSWER_S_MAX)
        if not ready:
            raise Deadlock("a server was asked, and does not answer")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        self.dial: Callable[..., Coroutine[Any, Any, Any]] | None = None
        super().__init__(self._clock)

    def reach_out(self, dial: Callable[..., Coroutine[Any, Any, Any]], is_owed: Callable[[], bool]) -> None:
        """Connections are made by `dial`; time stands still while `is_owed()`."""
        self.dial, self._clock.is_owed = dial, is_owed

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        return await (self.dial or super().create_connection)(*args, **options)

    def time(self) -> float:
        return self._clock.clock_s

    # There is one thread, and this loop is not asleep while it calls.
    call_soon_threadsafe = asyncio.SelectorEventLoop.call_soon

    def stall(self, seconds: float) -> None:
        """Let time pass while nothing in this loop runs: a stopped process, a blocking call."""
        self._clock.clock_s += seconds


class VirtualRuntime:
    """`holdfast.locks.runtime.Runtime` on virtual time. Threads become tasks of the one loop."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = VirtualLoop()
        self.random = random.Random(seed)
        self.boot = "boot-1"
        self.wall_step_us = 0

    def now(self) -> float:
        return self.loop.time()

    def wall_us(self) -> int:
        return WALL_AT_START_US + round((self.now() - STARTED_AT_S) * 1_000_000) + self.wall_step_us

    def boot_id(self) -> str:
        return self.boot

    def token(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    def jitter(self, seconds: float) -> float:
        return seconds * self.random.uniform(0.5, 1.0)

    def inline(self) -> bool:
        return True

    def run_in_thread(self, main: Callable[[], Awaitable[None]], name: str) -> threading.Thread:
        async def run() -> None:
            await main()

        # What asks for a thread only ever cancels it here.
        return cast(threading.Thread, self.loop.create_task(run(), name=name))

    def stall(self, seconds: float) -> None:
        self.loop.stall(seconds)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Run the story to its end; fail if it leaves a task behind."""

        async def to_the_end() -> None:
            async with asyncio.timeout(STORY_S_MAX):
                await story
            # What was told to stop may take its last steps, but not wait for anything.
            for _ in range(20):
                await asyncio.sleep(0)
            if self.loop.dial is not None and (ending := asyncio.all_tasks() - {asyncio.current_task()}):
                await asyncio.wait(ending, timeout=1.0)  # and take leave of servers outside
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"left behind: {left}"

        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(to_the_end())


def on_virtual_time(
    story: Callable[Concatenate[VirtualRuntime, P], Coroutine[Any, Any, None]],
) -> Callable[P, None]:
    """Make an async test, whose first parameter is a `VirtualRuntime`, run on virtual time."""

    @functools.wraps(story)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        runtime = VirtualRuntime()
        runtime.run(story(runtime, *args, **kwargs))

    test.on_virtual_time = True  # type: ignore[attr-defined]
    signature = inspect.signature(story)
    test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return test
