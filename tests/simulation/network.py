"""Everything that crosses from one process to another, and what can happen to it on the way.

A call is a request and a reply. Each may be lost, late, or overtaken by a later one; a request may
arrive twice, and its sender may stall between deciding to send and sending. Every fault that is
injected has a number, by which the shrinker leaves it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple

from simulation.world import Process, World

LATENCY_S_MIN = 0.0002
LATENCY_S_SPREAD = 0.0018
EXPRESS = 0.95
"""Of the calls that nothing happens to, so many take no time: that is a third of the simulator's own work."""
TIMEOUT_S = 2.0


class Mix(NamedTuple):
    """How likely each fault is, per call."""

    stall: float = 0.0
    lose_request: float = 0.0
    lose_reply: float = 0.0
    late_request: float = 0.0
    late_reply: float = 0.0
    twice: float = 0.0
    late_s_max: float = 4.0

    def thinned(self, share: float) -> Mix:
        """The same faults, and only this share of them."""
        return self._replace(**{name: share * rate for name, rate in self._asdict().items() if name != "late_s_max"})


CALM = Mix()
MIXES = (
    CALM,
    Mix(lose_request=0.05, lose_reply=0.05),
    Mix(stall=0.05, late_request=0.05, late_s_max=12.0),
    Mix(late_request=0.1, late_reply=0.1, twice=0.05),
    Mix(late_request=0.1, late_reply=0.5, late_s_max=0.8),
    Mix(stall=0.03, lose_request=0.03, lose_reply=0.06, late_request=0.05, late_reply=0.03, twice=0.03),
)


LATE_S_MAX = max(mix.late_s_max for mix in MIXES)


class Fate(NamedTuple):
    """What becomes of one call."""

    stall_s: float = 0.0
    request_s: float | None = 0.0
    """None: never arrives."""
    reply_s: float | None = 0.0
    again_s: float | None = None
    """Arrives once more, this much later."""


class Unanswered(Exception):
    """No reply in time, or no way to the other side."""

    def __init__(self, *, applied: bool | None) -> None:
        super().__init__("no answer")
        self.applied = applied


class Network:
    def __init__(self, world: World, *, without: frozenset[int] = frozenset()) -> None:
        self.world = world
        self.mix = CALM
        self.faults: list[str] = []
        """What was injected, in order; the index is the fault's number."""
        self._without = without
        self._cut: dict[tuple[str, str], float] = {}
        """Until when nothing passes between two processes."""

    def inject(self, what: str) -> bool:
        """Number a fault. False if this run is to do without it."""
        number = len(self.faults)
        self.faults.append(what)
        if number in self._without:
            return False
        self.world.tell("fault", f"#{number} {what}")
        return True

    def cut(self, one: Process, other: Process, seconds: float) -> None:
        self._cut[one.name, other.name] = self.world.clock_s + seconds

    def is_cut(self, one: Process, other: Process) -> bool:
        return self._cut.get((one.name, other.name), 0.0) > self.world.clock_s

    def is_express(self) -> bool:
        return self.world.chance.random() < EXPRESS

    async def call(
        self,
        sender: Process,
        receiver: Process,
        what: str,
        act: Callable[[], Awaitable[Any]],
        *,
        timeout_s: float = TIMEOUT_S,
        at_length: bool = False,
    ) -> Any:
        """Let `act` happen at the receiver, in one step, or `at_length` in a task of its own; its
        answer, or `Unanswered`."""
        if self.world.over:
            raise Unanswered(applied=None)
        fate = self.draw(what)
        if fate.stall_s:
            await asyncio.sleep(fate.stall_s)
        if self.is_cut(sender, receiver):
            await asyncio.sleep(self.world.chance.uniform(0.0, TIMEOUT_S))
            raise Unanswered(applied=False)
        express = fate is USUAL and receiver.runs and self.is_express()
        if express and not at_length:
            answer = self.happen(receiver, act)
            await asyncio.sleep(0)  # others may come in between here, too
            if isinstance(answer, Exception):
                raise answer
            return answer
        exchange = Exchange(self, receiver, act, fate, at_length=at_length, express=express)
        return await exchange.within(timeout_s)

    def push(self, receiver: Process, what: str, callback: Callable[..., None], *args: Any) -> None:
        """A message without a reply: a hint. May be lost or late."""
        if receiver.dead:
            return
        fate = self.draw(what)
        if fate.request_s is not None:
            self.world.after(self.latency() + fate.request_s, lambda: receiver.main.call_soon(callback, *args))

    def happen(self, receiver: Process, act: Callable[[], Awaitable[Any]]) -> Any:
        """Carry out at the receiver, in one step, what never waits. An error is its answer."""
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(receiver.main)
        try:
            return _result(act())
        except Exception as error:  # noqa: BLE001
            return error
        finally:
            asyncio._set_running_loop(running)

    def latency(self) -> float:
        return LATENCY_S_MIN + LATENCY_S_SPREAD * self.world.chance.random()

    def draw(self, what: str) -> Fate:
        """What becomes of the next message."""
        mix = self.mix
        if mix is CALM:
            return USUAL
        late_s = mix.late_s_max * self.world.chance.random()
        roll = self.world.chance.random()
        for rate, make in zip(mix, _FATES, strict=False):
            if roll < rate:
                words, fate = make(late_s)
                return fate if self.inject(f"{words} {what}") else USUAL
            roll -= rate
        return USUAL


_FATES: tuple[Callable[[float], tuple[str, Fate]], ...] = (
    lambda late_s: (f"stall {late_s:.2f} s before", Fate(stall_s=late_s)),
    lambda _: ("lose", Fate(request_s=None)),
    lambda _: ("lose the reply to", Fate(reply_s=None)),
    lambda late_s: (f"delay by {late_s:.2f} s", Fate(request_s=late_s)),
    lambda late_s: (f"delay by {late_s:.2f} s the reply to", Fate(reply_s=late_s)),
    lambda late_s: (f"repeat {late_s:.2f} s later", Fate(again_s=late_s)),
)
"""In words and in deed, in the order of the rates of a `Mix`."""
USUAL = Fate()


class Exchange:
    """One request on its way, and its reply."""

    def __init__(
        self,
        network: Network,
        receiver: Process,
        act: Callable[[], Awaitable[Any]],
        fate: Fate,
        *,
        at_length: bool,
        express: bool,
    ) -> None:
        self._network = network
        self._world = network.world
        self._receiver = receiver
        self._act = act
        self._fate = fate
        self._at_length = at_length
        self._express = express
        self._lane = asyncio.get_running_loop()
        self._reply: asyncio.Future[Any] = self._lane.create_future()

    def within(self, seconds: float) -> asyncio.Future[Any]:
        if self._express:
            self._arrive()
        else:
            for late_s in (self._fate.request_s, self._fate.again_s):
                if late_s is not None:
                    self._world.after(self._network.latency() + late_s, self._arrive)
        self._lane.call_later(seconds, _settle, self._reply, Unanswered(applied=None))
        return self._reply

    def _arrive(self) -> None:
        receiver = self._receiver
        if self._world.over or receiver.dead:
            return
        if receiver.paused:  # it waits at the door
            self._world.after(0.05, self._arrive)
        elif self._at_length:
            receiver.main.create_task(self._serve())
        else:
            self._send_back(self._network.happen(receiver, self._act))

    async def _serve(self) -> None:
        try:
            answer = await self._act()
        except Exception as error:  # noqa: BLE001  (it is the answer)
            answer = error
        self._send_back(answer)

    def _send_back(self, answer: Any) -> None:
        if self._express:
            self._lane.call_soon(_settle, self._reply, answer)
        elif self._fate.reply_s is not None:
            arrives_in_s = self._network.latency() + self._fate.reply_s
            self._world.after(arrives_in_s, lambda: self._lane.call_soon(_settle, self._reply, answer))


def _settle(reply: asyncio.Future[Any], answer: Any) -> None:
    if reply.done():
        return
    if isinstance(answer, Exception):
        reply.set_exception(answer)
    else:
        reply.set_result(answer)


def _result(asked: Awaitable[Any]) -> Any:
    """The answer of a call that never waits: stores in memory answer in place."""
    if isinstance(asked, asyncio.Future):
        return asked.result()
    steps: Generator[Any, None, Any] = asked.__await__()
    try:
        next(steps)
    except StopIteration as done:
        return done.value
    raise AssertionError("a store in memory waited")
