"""What tests share: a backend under test, and waiting for what a server's own clock decides."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import backends
import servers

from holdfast.locks.port import LockStore
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store

T = TypeVar("T")

SOON_S = 5.0
"""For what takes some tenths of a second, where left to itself it would take no end: a busy machine lets us notice late."""


@dataclass(frozen=True)
class Backend:
    name: str
    url: str
    #: The shortest ttl this store keeps exactly.
    ttl_ms: int
    server: servers.Server | None
    prefix: str

    def open(self, holder: str = "test-holder", **options: float) -> LockStore:
        return open_store(self.url, holder=holder, prefix=self.prefix, runtime=SYSTEM, **options)

    def key(self, name: str = "k") -> str:
        return f"{self.prefix}{name}"


def make_backend(name: str, running: backends.Running, directory: Path) -> Backend:
    module = import_module(f"backends.{name}")
    prefix = f"t{uuid.uuid4().hex[:12]}:"
    elsewhere = os.environ.get(f"HOLDFAST_TEST_{name.upper()}_URL")
    if elsewhere:
        return Backend(name, elsewhere, module.TTL_MS_MIN, None, prefix)
    if name not in running:
        try:
            running[name] = module.start()
        except (FileNotFoundError, RuntimeError) as why:
            servers.unavailable(name, str(why))
    server = running[name]
    return Backend(name, module.url(server, directory), module.TTL_MS_MIN, server, prefix)


def sockets() -> set[str]:
    """Of this process."""
    found = set()
    for place in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it meanwhile
            found.add(place.readlink().name)
    return {name for name in found if name.startswith("socket:")}


async def eventually(read: Callable[[], Awaitable[T]], *, within_s: float = 10.0) -> T:
    """Poll until `read` gives something true. For what a server's own clock decides."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not (value := await read()):
        assert asyncio.get_running_loop().time() < deadline, "never happened"
        await asyncio.sleep(0.01)
    return value


def sooner_or_later(read: Callable[[], T], *, within_s: float = 10.0, every_s: float = 0.01) -> T:
    """`eventually`, for a test without an event loop. Seldomer where to read costs something."""
    deadline = time.monotonic() + within_s
    while not (value := read()):
        assert time.monotonic() < deadline, "never happened"
        time.sleep(every_s)
    return value
