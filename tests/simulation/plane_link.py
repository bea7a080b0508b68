"""How the parts of a simulated plane reach each other: store, bus, and the gateway that workers post to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from holdfast.errors import BusUnavailable, StoreUnavailable
from holdfast.http1.answer import BrokenExchange, Reply
from holdfast.ports import Delivery, JobEvent
from simulation.network import Unanswered
from simulation.world import Process, here

if TYPE_CHECKING:
    from simulation.plane_story import PlaneStory


class StoreLink:
    """A `Store` on the other side of the network: every verb may fail, before or after it was carried out."""

    def __init__(self, story: PlaneStory, process: Process) -> None:
        self._story = story
        self._process = process
        self._listeners: list[Callable[[Sequence[JobEvent]], None]] = []
        self._unsubscribe: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._story.jobs, name)
        carried = functools.partial(self._carry, name, verb) if inspect.iscoroutinefunction(verb) else verb
        setattr(self, name, carried)  # asked for once
        return carried

    async def open(self) -> None:
        """The store is there before anybody."""

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()

    def subscribe(self, listener: Callable[[Sequence[JobEvent]], None]) -> Callable[[], None]:
        """What is committed reaches a process as one message, however many listen there."""
        if self._unsubscribe is None:
            push = self._story.network.push
            self._unsubscribe = self._story.jobs.subscribe(
                lambda events: push(self._process, "events", self._hear, events)
            )
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _hear(self, events: Sequence[JobEvent]) -> None:
        for listener in tuple(self._listeners):
            listener(events)

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        push = self._story.network.push
        self._story.jobs.on_arrival(lambda worker: push(self._process, "an arrival", callback, worker))

    async def _carry(self, name: str, verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return await self._story.network.call(
                self._process, self._story.server, name, functools.partial(verb, *args, **options)
            )
        except Unanswered as error:
            raise StoreUnavailable("store", "no answer", applied=error.applied) from error


class BusLink:
    """A `Bus` apart from the store, on the other side of the network."""

    atomic = False

    def __init__(self, story: PlaneStory, process: Process) -> None:
        self._story = story
        self._process = process
        self._is_away = False
        self._return_callbacks: list[Callable[[], None]] = []

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        self._story.published += [(delivery, self._story.commits()) for delivery in deliveries]
        await self._carry("publish", functools.partial(self._story.bus.publish, deliveries))

    async def take(self, worker: str, *, limit: int) -> list[Delivery]:
        taken: list[Delivery] = await self._carry("take", functools.partial(self._story.bus.take, worker, limit=limit))
        return taken

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        self._story.settled += [(delivery, self._story.commits()) for delivery in deliveries]
        await self._carry("settle", functools.partial(self._story.bus.settle, deliveries))

    def given_too_often(self, delivery: Delivery) -> int:
        return self._story.bus.given_too_often(delivery)

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        push = self._story.network.push
        self._story.bus.on_arrival(lambda worker: push(self._process, "an arrival", callback, worker))

    def on_return(self, callback: Callable[[], None]) -> None:
        self._return_callbacks.append(callback)

    async def _carry(self, what: str, act: Callable[[], Any]) -> Any:
        try:
            answer = await self._story.network.call(self._process, self._story.bus_process, what, act)
        except Unanswered as error:
            self._is_away = True
            raise BusUnavailable("bus", "no answer", applied=error.applied) from error
        if self._is_away:
            self._is_away = False
            for callback in self._return_callbacks:
                callback()
        return answer


class PlaneAddress:
    """Where a worker or a person posts to: one of the planes, and another one when that does not answer."""

    def __init__(self, story: PlaneStory) -> None:
        self._story = story
        self._process = here()
        self._turn = story.world.chance.randrange(2)

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        login: str = "",
        within_s: float,
        key: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Reply:
        node = self._story.planes[self._turn % len(self._story.planes)]
        sent_along = {**headers, "idempotency-key": key} if key else headers
        request = functools.partial(node.serve, path, body, sent_along)
        asked = self._story.log.ask(path, body, key)
        try:
            reply: Reply = await self._story.network.call(
                self._process, node.process, path, request, timeout_s=within_s, at_length=True
            )
        except Unanswered as error:
            self._turn += 1
            raise BrokenExchange("no answer") from error
        self._story.log.answer(asked, reply)
        return reply

    def close(self) -> None:
        """Nothing is kept open."""


class DeadManSwitch:
    """`holdfast.locks.dead_man.DEAD_MAN` for simulated processes: its owner's process ends, and is started again."""

    def __init__(self, story: PlaneStory) -> None:
        self._story = story
        self._set: dict[Any, float] = {}

    def arm(self, owner: Any, at: float, *, now: float) -> None:
        self._set[owner] = at
        self._story.world.at(max(at, now + 0.001), lambda: self._fire(owner, at))

    def disarm(self, owner: Any, *, now: float) -> None:
        self._set.pop(owner, None)

    def _fire(self, owner: Any, at: float) -> None:
        process: Process = owner._runtime._process
        if self._set.get(owner) != at or process.dead:
            return
        if process.paused:  # the kernel waits for SIGCONT, too
            self._story.world.after(0.05, lambda: self._fire(owner, at))
            return
        self._story.reached["dead man's timer"] += 1
        self._story.world.tell(process.name, "is ended by its dead man's timer")
        next(node for node in self._story.nodes if node.process is process).kill(1.0)
