"""A world of processes in one thread: virtual time, and one seed that decides everything.

Each thread of a simulated process is a `Lane`: an event loop of its own, whose callbacks run in the
order they came. Which lane takes the next step is drawn from the seed, so the interleavings of
processes differ from seed to seed, and are the same for the same seed. Time passes only when
no lane has anything to do.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, NamedTuple, cast

STARTED_AT_S = 1000.0
WALL_AT_START_US = 1_800_000_000_000_000
LOOK_S = 0.5
"""Of the story's time, between two questions whether there is anything more to wait for."""
STEPS_MAX = 500_000
"""Of a story, which takes some thousands. Who goes on after so many does so for ever, and time may have stopped."""
LAST_STEPS_MAX = 20_000
"""After the story everything is told to end. What still takes steps after so many goes on for ever."""


class Told(NamedTuple):
    """What happened, and when. Put into words when somebody asks, which is seldom."""

    at_s: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at_s:10.4f} {self.who:<10} {self.what}"


class Step:
    """A callback on its way: `asyncio.Handle`, and its kind that waits for a time, without what nobody asks of it here."""

    __slots__ = ("args", "callback", "context", "dropped", "when_s")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.dropped = False
        self.when_s = 0.0

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.when_s


class Lane(asyncio.AbstractEventLoop):
    """One thread of a process, as an event loop that the world steps."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.ready: deque[Step] = deque()
        self.never_taken: list[Step] = []
        """Steps of a dead process. They are made up for after the story, so that its tasks can end."""
        self.closed = False
        self.awake = False
        """Whether the world asks it for its next step."""
        self.stalled_until = 0.0
        self.tasks: list[asyncio.Task[Any]] = []
        """All it ever had: a task of a dead process must not be collected, for that would run its `finally`."""

    # False, without a call of a function in Python: every future and every handle asks.
    get_debug = staticmethod(bool)

    def create_task(  # type: ignore[override]
        self, story: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(story, loop=self, **options)
        self.tasks.append(task)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def time(self) -> float:
        return self.world.clock_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Step:
        step = Step(callback, args, context)
        if self.process.dead:
            self.never_taken.append(step)
        else:
            self.ready.append(step)
            if not self.awake:
                self.world.waken(self)
        return step

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Step:
        step = Step(callback, args, context)
        step.when_s = when
        self.world.set_timer(when, self, step)
        return step

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Step:
        return self.call_at(self.world.clock_s + delay, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.failures.append(f"{self.process.name}: {context.get('message')}: {error!r}")

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def here() -> Process:
    """The process whose step this is."""
    lane = asyncio.get_running_loop()
    assert isinstance(lane, Lane)
    return lane.process


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
        lane = Lane(self.world, self)  # type: ignore[abstract]  # what it has not, nobody asks for
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
        return seconds * (0.5 + 0.5 * self._world.chance.random())

    def inline(self) -> bool:
        return True

    def run_in_thread(self, main: Callable[[], Awaitable[None]], name: str) -> threading.Thread:
        async def run() -> None:
            await main()

        # What asks for a thread only ever cancels it here.
        return cast(threading.Thread, self._process.new_lane().create_task(run(), name=name))


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock_s = STARTED_AT_S
        self.lanes: list[Lane] = []
        self.failures: list[str] = []
        """Errors that nobody caught, in any process."""
        self.over = False
        self.steps = 0
        self.steps_max = STEPS_MAX
        self.told: list[Told] = []
        self._awake: list[Lane] = []
        self._timers: list[tuple[float, int, Lane | None, Step | Callable[[], object]]] = []
        self._numbers = itertools.count()

    def process(self, name: str) -> Process:
        return Process(self, name)

    # -- what happened ----------------------------------------------------------------------------

    def tell(self, who: str, what: str) -> None:
        """A line of the trace. The digest of all of them is what two runs of a seed must agree on."""
        if not self.over:
            self.told.append(Told(self.clock_s - STARTED_AT_S, who, what))

    # -- time ----------------------------------------------------------------------------------------

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Something that happens to the world, whatever its processes do."""
        heapq.heappush(self._timers, (when, next(self._numbers), None, act))

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self.at(self.clock_s + seconds, act)

    def set_timer(self, when: float, lane: Lane, step: Step) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), lane, step))

    def waken(self, lane: Lane) -> None:
        if not lane.awake:
            lane.awake = True
            self._awake.append(lane)

    @property
    def passed_s(self) -> float:
        """Since the story began."""
        return self.clock_s - STARTED_AT_S

    def run(self, *, until: float, unless: Callable[[], bool] | None = None) -> None:
        """Let everything happen until then, unless there is nothing more to wait for: that is asked now and then."""
        until += STARTED_AT_S
        asks_at = self.clock_s if unless is not None else math.inf
        self._take_steps()
        while self._timers and self._timers[0][0] <= until:
            if self._timers[0][0] > asks_at:
                assert unless is not None
                if unless():
                    return
                asks_at = self._timers[0][0] + LOOK_S
            self._advance()
            if self._awake:
                self._take_steps()
        self.clock_s = until

    def _take_steps(self) -> None:
        """Steps of any lane that can take one, by lot, until none can. Nearly all of a story's time is spent here."""
        awake, draw = self._awake, self.chance.random
        running: Lane | None = None
        try:
            while awake:
                n = int(draw() * len(awake)) if len(awake) > 1 else 0
                lane = awake[n]
                process, ready = lane.process, lane.ready
                if not ready or process.dead or process.paused or lane.stalled_until > self.clock_s:
                    lane.awake = False
                    awake[n] = awake[-1]
                    awake.pop()
                    continue
                step = ready.popleft()
                if step.dropped:
                    continue
                if lane is not running:
                    asyncio._set_running_loop(lane)
                    running = lane
                self.steps += 1
                try:
                    step.context.run(step.callback, *step.args)
                except Exception as error:  # noqa: BLE001  (nobody caught it: the story has failed)
                    self.failures.append(f"{process.name}: {error!r}")
                if self.steps > self.steps_max:
                    assert self.over, "somebody takes steps without end"
                    return
        finally:
            asyncio._set_running_loop(None)

    def _advance(self) -> None:
        """To the next timer, and all that are due with it."""
        timers = self._timers
        self.clock_s = max(self.clock_s, timers[0][0])
        while timers and timers[0][0] <= self.clock_s:
            _, _, lane, due = heapq.heappop(timers)
            if lane is None:
                if not self.over:  # what comes round for ever would keep a task alive that waits for an answer
                    cast("Callable[[], object]", due)()
            elif not lane.process.dead and not (step := cast(Step, due)).dropped:
                lane.ready.append(step)
                if not lane.awake:
                    self.waken(lane)

    def end(self) -> None:
        """Let go of every task, the dead ones' too. What they still try to say, nobody hears."""
        self.over = True
        for lane in self.lanes:
            lane.process.dead = lane.process.paused = False
            lane.stalled_until = 0.0
            lane.ready.extendleft(reversed(lane.never_taken))
            self.waken(lane)
        self.steps_max = self.steps + LAST_STEPS_MAX
        # More than once: one that tidies up may wait for an answer that never comes.
        while self.steps <= self.steps_max and (going_on := self._going_on()):
            for task in going_on:
                task.cancel()
            self._take_steps()
            while self.steps <= self.steps_max and self._timers and self._going_on():
                self._advance()
                self._take_steps()
        if self.steps > self.steps_max:
            self.failures.append("tasks that do not end")
        for lane in self.lanes:
            lane.close()

    def _going_on(self) -> list[asyncio.Task[Any]]:
        return [task for lane in self.lanes for task in lane.tasks if not task.done()]
