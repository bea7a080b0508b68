"""Watch a story for its picture: who sent what to whom, who held what, and what befell whom.

The story does not notice: it takes the same steps, draws the same lots and has the same digest. What is
watched is wrapped for as long as the picture is being taken, so that other stories do not pay for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from flow.plane_invariants import EVENTS, histories
from locks.invariants import Call

from holdfast.locks.port import Grant, Standing
from holdfast.ports import JobEvent
from simulation.lock_link import Witness
from simulation.network import Network, Unanswered
from simulation.world import STARTED_AT_S, WALL_AT_START_US, Process


@dataclass
class Message:
    what: str
    sender: str
    receiver: str
    sent_at: float
    arrivals: list[float] = field(default_factory=list)
    """Empty: it never arrived. Two: it arrived twice."""
    answered_at: float | None = None
    """None: the sender was never told, or had stopped waiting."""


@dataclass
class Band:
    """A right that a process had for a while: a lock, or an attempt at a job. Its end moves as it is renewed."""

    lane: str
    name: str
    fence: int
    start: float
    end: float
    of_job: bool = False


@dataclass
class Affliction:
    """Something that befell a process, and until when."""

    lane: str
    what: str
    start: float
    end: float


@dataclass
class Watch:
    """All times in seconds since the story began."""

    messages: list[Message] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    afflictions: list[Affliction] = field(default_factory=list)
    broken: list[tuple[float, str]] = field(default_factory=list)
    lanes: list[str] = field(default_factory=list)
    """The processes, in the order they were first started."""
    story: Witness | None = None
    _held: dict[str, Band] = field(default_factory=dict)
    """By token."""

    @property
    def now(self) -> float:
        assert self.story is not None
        return self.story.world.clock_s - STARTED_AT_S

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch the story that is told meanwhile."""
        with ExitStack() as stack:
            for owner, name, wrapped in (
                (Witness, "__init__", self._begin),
                (Witness, "saw", self._saw),
                (Witness, "broke", self._broke),
                (Network, "call", self._call),
                (Network, "cut", self._cut),
                (Process, "__init__", self._born),
                (Process, "pause", self._paused),
                (Process, "stall", self._stalled),
                (Process, "crash", self._crashed),
            ):
                stack.enter_context(patch.object(owner, name, wrapped(getattr(owner, name))))
            yield
        self._close()

    # -- the story ---------------------------------------------------------------------------------

    def _begin(self, begin: Callable[..., None]) -> Callable[..., None]:
        def wrapped(story: Witness, *args: Any, **options: Any) -> None:
            self.story = story
            begin(story, *args, **options)

        return wrapped

    def _broke(self, broke: Callable[..., None]) -> Callable[..., None]:
        def wrapped(story: Witness, promise: str) -> None:
            self.broken.append((self.now, promise))
            broke(story, promise)

        return wrapped

    def _close(self) -> None:
        """The story is over: so is everything in it. Its jobs' history says who worked on what."""
        end = self.now
        events: Iterable[JobEvent] = getattr(self.story, "events", ())
        self.bands += attempts(events, until=end)
        spans: list[Band | Affliction] = [*self.bands, *self.afflictions]
        for span in spans:
            span.end = min(span.end, end)

    # -- messages ----------------------------------------------------------------------------------

    def _call(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapped(
            network: Network, sender: Process, receiver: Process, what: str, act: Callable[[], Any], **options: Any
        ) -> Any:
            message = Message(what, sender.name, receiver.name, self.now)
            if not network.world.over:
                self.messages.append(message)

            def arrive() -> Any:
                message.arrivals.append(self.now)
                return act()

            try:
                answer = await call(network, sender, receiver, what, arrive, **options)
            except Unanswered:
                raise
            except Exception:
                message.answered_at = self.now  # an error is an answer, too
                raise
            message.answered_at = self.now
            return answer

        return wrapped

    # -- locks -------------------------------------------------------------------------------------

    def _saw(self, saw: Callable[..., None]) -> Callable[..., None]:
        def wrapped(story: Witness, sent: Call, answer: Any) -> None:
            saw(story, sent, answer)
            if isinstance(answer, Grant):
                self._granted(sent, answer)
            elif sent.verb == "renew":
                for renewal, standing in zip(sent.renewals, answer, strict=True):
                    if standing is Standing.OWNED and renewal.token in self._held:
                        self._held[renewal.token].end = self.now + renewal.ttl_ms / 1000
            elif sent.verb == "release" and answer and sent.token in self._held:
                self._held.pop(sent.token).end = self.now

        return wrapped

    def _granted(self, sent: Call, grant: Grant) -> None:
        until = self.now + sent.ttl_ms / 1000
        mine = self._held.get(sent.token)
        if mine is not None and mine.fence == grant.fence and mine.end >= self.now:
            mine.end = until
            return
        band = Band(sent.who.partition(".")[0], sent.key, grant.fence, self.now, until)
        for other in self.bands:
            if other.name == band.name:  # whatever the store had promised it: a copy may have taken over
                other.end = min(other.end, self.now)
        self.bands.append(band)
        self._held[sent.token] = band

    # -- what befalls a process --------------------------------------------------------------------

    def _befall(self, process: Process, what: str, seconds: float = float("inf")) -> None:
        if not process.world.over:
            self.afflictions.append(Affliction(process.name, what, self.now, self.now + seconds))

    def _born(self, born: Callable[..., None]) -> Callable[..., None]:
        def wrapped(process: Process, world: Any, name: str) -> None:
            born(process, world, name)
            if name not in self.lanes:
                self.lanes.append(name)
            for affliction in self.afflictions:
                if affliction.lane == name and affliction.what == "dead":
                    affliction.end = min(affliction.end, self.now)

        return wrapped

    def _paused(self, pause: Callable[..., None]) -> Callable[..., None]:
        def wrapped(process: Process, seconds: float) -> None:
            self._befall(process, "paused", seconds)
            pause(process, seconds)

        return wrapped

    def _stalled(self, stall: Callable[..., None]) -> Callable[..., None]:
        def wrapped(process: Process, seconds: float) -> None:
            self._befall(process, "stalled", seconds)
            stall(process, seconds)

        return wrapped

    def _crashed(self, crash: Callable[..., None]) -> Callable[..., None]:
        def wrapped(process: Process) -> None:
            self._befall(process, "dead")
            crash(process)

        return wrapped

    def _cut(self, cut: Callable[..., None]) -> Callable[..., None]:
        def wrapped(network: Network, one: Process, other: Process, seconds: float) -> None:
            self._befall(one, "cut off", seconds)
            cut(network, one, other, seconds)

        return wrapped


def attempts(events: Iterable[JobEvent], *, until: float) -> list[Band]:
    """Every attempt at a job, as long as it was RUNNING."""
    bands = []
    for job_id, history in histories(events).items():
        changes = [event for event in history if event.kind in EVENTS]
        if not changes:
            continue  # it is not about a job
        for event, after in zip(changes, [*changes[1:], None], strict=True):
            if event.kind == "job.started":
                lane = event.detail["worker"].partition("@")[0]
                end = _passed(after.at) if after is not None else until
                bands.append(Band(lane, job_id, event.fence, _passed(event.at), end, of_job=True))
    return bands


def _passed(at: float) -> float:
    return at - WALL_AT_START_US / 1_000_000
