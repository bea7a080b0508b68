"""Stores side by side: told the same, at the same time of day, and compared in what they answer and what they keep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self, TypeAlias

from backends import Compared

from holdfast.core.record import Kind
from holdfast.errors import HoldfastError
from holdfast.ports import JobEvent
from holdfast.stores import StoreWithBus, open_portable, open_store
from holdfast.stores.batch_store import BatchStore
from plane.jobs import ACME, OTHER, ManualRuntime, recoverable
from plane.store_fixtures import TIMEOUT_S, TOPICS

EPOCH = 1_900_000_000.0
TENANTS = (ACME, OTHER)
WORKERS = ("w1", "w2")
SESSIONS = ("s", "t")
KINDS = (Kind.RUN, Kind.STEP, Kind.POST, Kind.APPROVAL, Kind.RESULT)

Question: TypeAlias = Callable[[StoreWithBus], Awaitable[Any]]


class Disagreement(AssertionError):
    """Two stores were told the same and differ."""


class Stage:
    """Stores by their names; the first is the one that the others are compared with."""

    def __init__(self, places: Mapping[str, Compared], *, inline: bool = False) -> None:
        self._places = places
        self._runner = asyncio.Runner()
        self._rooms = ExitStack()
        self._stores: dict[str, StoreWithBus] = {}
        self._urls: dict[str, str] = {}
        self._heard: dict[str, list[JobEvent]] = {name: [] for name in places}
        self.clock = ManualRuntime(inline=inline)
        self.broken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close(list(self._stores)))
        self._runner.close()

    def begin(self) -> None:
        """With empty stores, at the same time as always."""
        self.broken = False
        self.clock.clock_s, self.clock.wall_s = 0.0, EPOCH
        self._urls = {name: self._rooms.enter_context(place.fresh()) for name, place in self._places.items()}
        for heard in self._heard.values():
            heard.clear()
        for store in self._stores.values():  # those that stay open
            assert isinstance(store, BatchStore)
            _forget(store)
        self._runner.run(self._open())

    def end(self) -> None:
        try:
            self._runner.run(self._close([name for name in self._stores if not self._places[name].stays_open]))
        finally:
            self._rooms.close()

    def reopen(self) -> None:
        """As after the restart of each plane, on what it has kept."""
        self._runner.run(self._close(list(self._stores)))
        self._runner.run(self._open())

    def now(self) -> float:
        return self._first.now()

    def look(self, question: Question) -> Any:
        """At the first store alone."""
        return self._runner.run(answers(self._first, [question]))[0]

    def ask(self, *questions: Question) -> list[Any]:
        """All of them at once, of every store. What they answer, or raise, which is the same everywhere."""
        return self._agreed("answered", self._runner.run(self._ask(questions)))  # type: ignore[no-any-return]

    def compare_all(self) -> None:
        """Whatever is kept, and whatever each store has worked out of that for itself."""
        self._agreed("kept", self._runner.run(self._dump()))
        self.ask(*_DERIVED)
        self._agreed("told its listeners", self._heard)

    def _agreed(self, what: str, said: Mapping[str, Any]) -> Any:
        (first, expected), *others = said.items()
        for name, found in others:
            if found != expected:
                self.broken = True
                raise Disagreement(f"{name} {what} otherwise than {first}: {_difference(expected, found)}")
        return expected

    async def _open(self) -> None:
        for name, url in self._urls.items():
            if name not in self._stores:
                store = self._stores[name] = open_store(url, topics=TOPICS, runtime=self.clock, timeout_s=TIMEOUT_S)
                store.subscribe(self._heard[name].extend)
                await store.open()
        self._first = self._stores[next(iter(self._urls))]
        for store in self._stores.values():
            if isinstance(store, BatchStore):
                _set_clock(store, self._first.now())

    async def _close(self, names: Sequence[str]) -> None:
        for name in names:
            await self._stores.pop(name).close()

    async def _ask(self, questions: Sequence[Question]) -> dict[str, list[Any]]:
        told = await asyncio.gather(*(answers(self._stores[name], questions) for name in self._urls))
        return dict(zip(self._urls, told, strict=True))

    async def _dump(self) -> dict[str, list[Any]]:
        async def rows(url: str) -> list[Any]:
            pages = open_portable(url, runtime=self.clock).dump(alone=False)
            return [row async for page in pages for row in page]

        found = await asyncio.gather(*map(rows, self._urls.values()))
        return dict(zip(self._urls, found, strict=True))


def _difference(expected: Any, found: Any, where: str = "") -> str:
    """Where the first one lies: rows are long, and differ in little."""
    if type(expected) is type(found):
        for name in getattr(expected, "__struct_fields__", ()):
            if getattr(expected, name) != getattr(found, name):
                return _difference(getattr(expected, name), getattr(found, name), f"{where}.{name}")
        if isinstance(expected, list | tuple) and len(expected) == len(found):
            place = next(n for n, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1])
            return _difference(expected[place], found[place], f"{where}[{place}]")
    return f"{where}\n    {expected!r}\n    {found!r}"


def _forget(store: BatchStore) -> None:
    """What a plane remembers of the history before."""
    store._place.news.start(0)
    store._place.reads._turns.clear()  # type: ignore[attr-defined]


def _set_clock(store: BatchStore, now: float) -> None:
    """To a time that the server's clock does not show."""
    clock = store._place.clock
    clock._offset_s, clock._last = now - clock._steady(), 0.0


async def answers(store: StoreWithBus, questions: Sequence[Question]) -> list[Any]:
    """All asked at once, in this order."""

    async def ask(question: Question) -> Any:
        try:
            return await question(store)
        except HoldfastError as refused:
            return type(refused).__name__, str(refused)

    return await asyncio.gather(*map(ask, questions))


_DERIVED: list[Question] = [
    lambda store: store.list_dispatchable(limit=100),
    recoverable,
    lambda store: store.count_jobs(),
    lambda store: store.count_topics(),
    lambda store: store.count_active(),
    lambda store: store.list_in_hand(*WORKERS),
    lambda store: store.pruned_until(),
    lambda store: store.read_snapshot(),
    *(lambda store, kind=kind: store.list_due(kind, limit=100) for kind in KINDS),
    *(
        lambda store, tenant=tenant, session=session: store.list_session(tenant, session)
        for tenant in TENANTS
        for session in SESSIONS
    ),
]
