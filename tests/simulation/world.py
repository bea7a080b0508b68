"""A world of processes in one thread: virtual time, and one seed that decides everything.

Each thread of a simulated process is a `Lane`: an event loop of its own, whose callbacks run in the
order they came. Which lane takes the next step is drawn from the seed, so the interleavings of
processes differ from seed to seed, and are the same for the same seed. Time passes only when
no lane has anything to do.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import itertools
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, cast

STARTED_AT_S = 1000.0
WALL_AT_START_US = 1_800_000_000_000_000
LAST_STEPS_MAX = 20_000
"""After the story everything is told to end. What still takes steps after so many goes on for ever."""


class Lane(asyncio.BaseEventLoop):
    """One thread of a process, as an event loop that the world steps."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__()
        self.world = world
        self.process = process
        self.ready: deque[asyncio.Handle] = deque()
        self.never_taken: list[asyncio.Handle] = []
        """Steps of a dead process. They are made up for after the story, so that its tasks can end."""
        self.stalled_until = 0.0
        self.tasks: list[asyncio.Task[Any]] = []
        """All it ever had: a task of a dead process must not be collected, for that would run its `finally`."""

    def create_task(  # type: ignore[override]
        self, story: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task = super().create_task(story, **options)
        self.tasks.append(task)
        return task

    def time(self) -> float:
        return self.world.clock_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.process.dead:
            self.never_taken.append(handle)
        else:
            if not self.ready:
                self.world.waken(self)
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.world.set_timer(when, self, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.world.clock_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap and is passed over when its time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.failures.append(f"{self.process.name}: {context.get('message')}: {error!r}")

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self


class Process:
    """One process of the story. `crash` ends it between two steps; whatever it had in memory is gone."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.lanes: list[Lane] = []
        self.dead = False
        self.paused = False
        self.wall_step_us = 0
        self.runtime = SimRuntime(self)
        self.main = self.new_lane()

    def new_lane(self) -> Lane:
        lane = Lane(self.world, self)
        self.lanes.append(lane)
        self.world.lanes.append(lane)
        return lane

    def start(self, story: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.main.create_task(story)

    def pause(self, seconds: float) -> None:
        """As SIGSTOP and, later, SIGCONT do it."""
        self.paused = True
        self.world.at(self.world.clock_s + seconds, self.resume)

    def resume(self) -> None:
        self.paused = False
        for lane in self.lanes:
            self.world.waken(lane)

    def stall(self, seconds: float) -> None:
        """The main thread computes for so long; the others go on."""
        self.main.stalled_until = self.world.clock_s + seconds
        self.world.at(self.main.stalled_until, lambda: self.world.waken(self.main))

    def crash(self) -> None:
        self.dead = True
        for lane in self.lanes:
            lane.never_taken += lane.ready
            lane.ready.clear()

    @property
    def runs(self) -> bool:
        return not self.dead and not self.paused


class SimRuntime:
    """`holdfast.locks.runtime.Runtime` for one process of the world."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def now(self) -> float:
        return self._world.clock_s

    def wall_us(self) -> int:
        passed_s = self._world.clock_s - STARTED_AT_S
        return WALL_AT_START_US + round(passed_s * 1_000_000) + self._process.wall_step_us

    def boot_id(self) -> str:
        return "boot-1"

    def token(self) -> str:
        return f"{self._world.chance.getrandbits(128):032x}"

    def jitter(self, seconds: float) -> float:
        return seconds * self._world.chance.uniform(0.5, 1.0)

    def inline(self) -> bool:
        return True

    def run_in_thread(self, main: Callable[[], Awaitable[None]], name: str) -> threading.Thread:
        async def run() -> None:
            await main()

        # What asks for a thread only ever cancels it here.
        return cast(threading.Thread, self._process.new_lane().create_task(run(), name=name))


class World:
    def __init__(self, seed: int, *, tells: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock_s = STARTED_AT_S
        self.lanes: list[Lane] = []
        self.failures: list[str] = []
        """Errors that nobody caught, in any process."""
        self.over = False
        self.steps = 0
        self.story: list[str] | None = [] if tells else None
        self._digest = hashlib.sha256()
        self._awake: list[Lane] = []
        self._timers: list[tuple[float, int, Lane | None, asyncio.TimerHandle | Callable[[], object]]] = []
        self._numbers = itertools.count()

    def process(self, name: str) -> Process:
        return Process(self, name)

    # -- what happened ----------------------------------------------------------------------------

    def tell(self, who: str, what: str) -> None:
        """A line of the trace. The digest of all of them is what two runs of a seed must agree on."""
        if self.over:
            return
        line = f"{self.clock_s - STARTED_AT_S:10.4f} {who:<10} {what}"
        self._digest.update(line.encode())
        if self.story is not None:
            self.story.append(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()[:16]

    # -- time ----------------------------------------------------------------------------------------

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Something that happens to the world, whatever its processes do."""
        heapq.heappush(self._timers, (when, next(self._numbers), None, act))

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self.at(self.clock_s + seconds, act)

    def set_timer(self, when: float, lane: Lane, handle: asyncio.TimerHandle) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), lane, handle))

    def waken(self, lane: Lane) -> None:
        if lane not in self._awake:
            self._awake.append(lane)

    def run(self, *, until: float) -> None:
        """Let everything happen until then."""
        until += STARTED_AT_S
        while True:
            lane = self._choose()
            if lane is not None:
                self._step(lane)
            elif self._timers and self._timers[0][0] <= until:
                self._advance()
            else:
                self.clock_s = until
                return

    def _choose(self) -> Lane | None:
        """Any lane that can take a step, by lot."""
        awake = self._awake
        while awake:
            n = int(self.chance.random() * len(awake)) if len(awake) > 1 else 0
            lane = awake[n]
            if lane.ready and lane.process.runs and lane.stalled_until <= self.clock_s:
                return lane
            awake[n] = awake[-1]
            awake.pop()
        return None

    def _step(self, lane: Lane) -> None:
        handle = lane.ready.popleft()
        if handle.cancelled():
            return
        self.steps += 1
        asyncio._set_running_loop(lane)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def _advance(self) -> None:
        """To the next timer, and all that are due with it."""
        self.clock_s = max(self.clock_s, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self.clock_s:
            _, _, lane, due = heapq.heappop(self._timers)
            if lane is None:
                cast(Callable[[], object], due)()
            elif not lane.process.dead and not (handle := cast(asyncio.TimerHandle, due)).cancelled():
                if not lane.ready:
                    self.waken(lane)
                lane.ready.append(handle)

    def end(self) -> None:
        """Let go of every task, the dead ones' too. What they still try to say, nobody hears."""
        self.over = True
        for lane in self.lanes:
            lane.process.dead = lane.process.paused = False
            lane.stalled_until = 0.0
            lane.ready.extendleft(reversed(lane.never_taken))
            self.waken(lane)
            for task in lane.tasks:
                task.cancel()
        for _ in range(LAST_STEPS_MAX):
            lane_with_steps = self._choose()
            if lane_with_steps is not None:
                self._step(lane_with_steps)
            elif self._timers and any(not task.done() for lane in self.lanes for task in lane.tasks):
                self._advance()
            else:
                break
        else:
            self.failures.append("tasks that do not end")
        for lane in self.lanes:
            lane.close()
