"""SQLite: a file per test, no server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backends import Compared, Opened, PlaneStore, Running, Telling

TTL_MS_MIN = 60


def start() -> None:
    return None


def url(server: None, directory: Path) -> str:
    return f"sqlite:///{directory / 'locks.db'}"


@contextmanager
def _in_memory(running: Running, directory: Path) -> Iterator[Opened]:
    yield Opened("")


@contextmanager
def _in_file(running: Running, directory: Path) -> Iterator[Opened]:
    yield Opened(f"sqlite:///{directory / 'plane.db'}")


@contextmanager
def _compared(running: Running, directory: Path) -> Iterator[Compared]:
    numbers = itertools.count()

    @contextmanager
    def fresh() -> Iterator[str]:
        path = directory / f"{next(numbers)}.db"
        yield f"sqlite:///{path}"
        path.unlink()

    yield Compared(fresh)


PLANE = PlaneStore(
    stories={"memory": Telling(opened=_in_memory), "file": Telling(opened=_in_file)},
    compared=_compared,
)
