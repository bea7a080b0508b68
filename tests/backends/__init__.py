"""What tests must know of a backend: a file each, found by its name.

As a store of locks it has `TTL_MS_MIN`, `start` and `url`; as a store of planes `PLANE`, too. Every promise of a store, every
story and every comparison of stores then runs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import servers
from locks.virtual import VirtualRuntime

Running = dict[str, servers.Server | None]
"""The servers of a test run, by name."""
Dial = Callable[..., Coroutine[Any, Any, tuple[Any, Any]]]
"""`create_connection` of a loop."""

OLDEST = ("redis7",)
"""Servers of the oldest version that we promise to work on. The conformance suites run on them, too, and nothing else does."""
NAMES = sorted({path.stem for path in Path(__file__).parent.glob("[a-z]*.py")} - {*OLDEST})
NEVER_S = 1_000_000_000


class Turns(Protocol):
    """Of one connection to a real server: whether an answer is still to come."""

    @property
    def is_owed(self) -> bool: ...

    def sent(self, request: bytes) -> None: ...

    def received(self, reply: bytes) -> None: ...


class Opened(NamedTuple):
    url: str
    """Empty for a database in memory, of the story's own."""
    clock: Path | None = None
    """What a server reads the time from that tells the story's."""


@dataclass(frozen=True, kw_only=True)
class Telling:
    """How a story on virtual time is told on a store."""

    opened: Callable[[Running, Path], AbstractContextManager[Opened]]
    turns: Callable[[], Turns] | None = None
    """How a real server answers."""
    lent: Dial | None = None
    """How connections to it are made that outlive their story."""
    inside: Callable[[VirtualRuntime], Dial] | None = None
    """Instead of a real server, one in the story itself."""
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    """Servers of a story are never away, and days of it pass in a moment: nobody looks again and again whether they are."""


class Compared(NamedTuple):
    """Where a store is that is compared with others."""

    fresh: Callable[[], AbstractContextManager[str]]
    """The URL of a store in which there is nothing, for as long as the context lasts."""
    stays_open: bool = False
    """From one history to the next: new connections, and whatever must be prepared on each, are dear there."""


@dataclass(frozen=True, kw_only=True)
class PlaneStore:
    stories: Mapping[str, Telling]
    """By the name under which they are told. Every story is told on the first; the last is on what users run, file or server."""
    compared: Callable[[Running, Path], AbstractContextManager[Compared]]
    fresh: Callable[[Running], AbstractContextManager[str]] | None = None
    """The URL of a place on a server in which there is nothing yet. None: it is no server."""
    empty: Callable[[Running], AbstractContextManager[str]] | None = None
    """The same, where tables may be there already."""


def plane_stores() -> dict[str, PlaneStore]:
    modules = {name: import_module(f"backends.{name}") for name in NAMES}
    return {name: module.PLANE for name, module in modules.items() if hasattr(module, "PLANE")}


def oldest_places() -> dict[str, Callable[[Running], AbstractContextManager[str]]]:
    """What `PlaneStore.fresh` is, on each of the oldest servers."""
    return {name: import_module(f"backends.{name}").fresh for name in OLDEST}
