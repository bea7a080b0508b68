"""Planes that can be brought into trouble: their clock moved on, their store and bus failing, their locks at hand."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw
import pytest
from flow.faulty_store import Fault, FaultyStore, Rule
from harness import sooner_or_later
from plane_shell import Plane, plane_in_thread
from prometheus_client.parser import text_string_to_metric_families

from holdfast import app
from holdfast.buses.detached import DetachedBus
from holdfast.buses.detached import Fault as BusFault
from holdfast.core.topic import Topic, Topics
from holdfast.locks import Locks, SyncLocks
from holdfast.locks.runtime import SYSTEM
from holdfast.ports import Delivery
from holdfast.stores import StoreWithBus, open_store
from holdfast.testing.clock import Clock

T = TypeVar("T")

TOPICS = Topics((Topic(name="once.*", max_attempts=1), Topic(name="brief.*", lease_s=0.5)))
WITHIN_S = 30.0
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def until(happened: Callable[[], T]) -> T:
    return sooner_or_later(happened, within_s=WITHIN_S, every_s=0.05)


def store_of(plane: Plane) -> str:
    return f"sqlite:///{plane.home}/plane.db"


def metric(plane: Plane, selector: str) -> float:
    """The sum of the series that a plane serves, selected as in an expression: `holdfast_jobs{state!="RUNNING"}`."""
    name, _, matchers = selector.partition("{")
    wanted = _MATCHER.findall(matchers)
    lines = [line for line in plane._http.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(
        sample.value
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
        if sample.name == name and all(_fits(sample.labels.get(label, ""), *how) for label, *how in wanted)
    )


def _fits(value: str, how: str, wanted: str) -> bool:
    is_meant = re.fullmatch(wanted, value) is not None if "~" in how else value == wanted
    return is_meant is not how.startswith("!")


class Failing(DetachedBus):
    """A bus that takes what it is given, refuses it, or never answers."""

    def __init__(self) -> None:
        super().__init__(SYSTEM.now, fail=lambda _: BusFault.NOT_APPLIED if self.refuses else None)
        self.refuses = False
        self.hangs = False

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        while self.hangs:
            await asyncio.sleep(0.02)
        await super().publish(deliveries)

    def heal(self) -> None:
        self.refuses = self.hangs = False


class Patient:
    """A plane in this process, on a clock of its own, and what only its own process reaches."""

    plane: Plane
    store: FaultyStore
    locks: Locks
    stranger: SyncLocks
    """Another process that takes locks in the same store."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._loop: asyncio.AbstractEventLoop

    @classmethod
    @contextmanager
    def opened(cls, home: Path, *, bus: Failing | None = None, clock: Clock | None = None) -> Iterator[Patient]:
        """`clock`: that of another plane on the same store."""
        self = cls(clock or Clock())
        home.mkdir(exist_ok=True)
        with ExitStack() as stack:
            with pytest.MonkeyPatch.context() as patching:
                patching.setattr(app, "open_store", self._open_store)
                patching.setattr(app, "Locks", self._open_locks)
                opening = plane_in_thread(home, topics=TOPICS, bus=bus, runtime=self.clock)
                self.plane = stack.enter_context(opening)
            stranger = SyncLocks(store_of(self.plane), holder="a-stranger:1", runtime=self.clock)
            self.stranger = stack.enter_context(stranger)
            yield self
            self.heal()

    def _open_store(self, *args: Any, **options: Any) -> StoreWithBus:
        self._loop = asyncio.get_running_loop()
        self.store = FaultyStore(open_store(*args, **options))
        return cast(StoreWithBus, self.store)

    def _open_locks(self, *args: Any, **options: Any) -> Locks:
        self.locks = Locks(*args, **options)
        return self.locks

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """In the plane's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WITHIN_S)

    def refuse(self, kind: str) -> None:
        """From now on the store takes no change of this kind."""
        for verb in ("apply", "transact"):
            self.store.fault(verb, Fault.FAIL, kind=kind)

    def hang(self, verb: str) -> Rule:
        """The next call of this verb is not answered."""
        return self.store.pause(verb)

    @contextmanager
    def store_locked(self) -> Iterator[None]:
        """Another program keeps the file of the store locked: nobody can write."""
        program = apsw.Connection(f"{self.plane.home}/plane.db")
        program.set_busy_timeout(round(WITHIN_S * 1000))
        program.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            program.close()

    def heal(self) -> None:
        rules = list(self.store.rules)
        self.store.heal()
        for rule in rules:
            self._loop.call_soon_threadsafe(rule.open)


@dataclass
class Planes:
    """One whose bus is in its store, and one whose bus is not."""

    well: Patient
    with_bus: Patient
    bus: Failing
    folder: Path
    until_healed: ExitStack = field(default_factory=ExitStack)
    """What is there for the duration of one trouble."""
    counted: int = 0

    def name(self, word: str) -> str:
        self.counted += 1
        return f"{word}-{self.counted}"

    def read(self, selector: str) -> dict[str, float]:
        """By the URL of the plane that says so."""
        return {patient.plane.url: metric(patient.plane, selector) for patient in (self.well, self.with_bus)}

    def heal(self) -> None:
        self.until_healed.close()
        self.bus.heal()
        self.well.heal()
        self.with_bus.heal()


@contextmanager
def planes_in_trouble(folder: Path) -> Iterator[Planes]:
    bus = Failing()
    with Patient.opened(folder / "well") as well, Patient.opened(folder / "with-bus", bus=bus) as with_bus:
        yield Planes(well, with_bus, bus, folder)
