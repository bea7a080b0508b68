"""Where a drill takes place: a store and a bus of its own, which can be taken away and given back.

A file is taken away by holding its write lock, as a stuck backup does; a server by a proxy in front of it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from holdfast.errors import Invalid
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import shown
from holdfast.ops.proxy import Proxy

PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "valkey": 6379, "etcd": 2379, "nats": 4222}
SLOW_S = 0.15
"""What each step of a slow store takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What is given. Nothing given: a SQLite file in a folder that goes with the drill."""

    store: str = ""
    bus: str = ""
    plane: str = ""
    """A plane that is up already. The drill brings workers and jobs of its own, and leaves the plane alone."""
    api_key: str = ""

    @property
    def shown(self) -> str:
        if self.plane:
            return shown(self.plane)
        store = shown(self.store) if self.store else "sqlite, a file of its own"
        return f"{store}, deliveries on {shown(self.bus)}" if self.bus else store


class Faulty(ABC):
    """Something that can be taken away. `heal` may be repeated."""

    url: str

    @abstractmethod
    async def outage(self) -> None: ...

    @abstractmethod
    async def slow(self) -> None: ...

    @abstractmethod
    async def heal(self) -> None: ...

    async def is_writable(self) -> bool:
        """Whether nobody keeps everybody else from writing: who is stopped inside of a commit to a file does."""
        return True


class StoreFile(Faulty):
    """A SQLite file. Whoever holds its write lock keeps everybody else from writing; reads go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self._connection: Any = None
        self._hogging: asyncio.Task[None] | None = None

    async def outage(self) -> None:
        await asyncio.to_thread(self._lock)

    async def slow(self) -> None:
        """Everybody's writes wait behind somebody who comes back again and again."""
        self._hogging = asyncio.create_task(self._hog())

    async def heal(self) -> None:
        hogging, self._hogging = self._hogging, None
        if hogging is not None:
            hogging.cancel()
            await asyncio.gather(hogging, return_exceptions=True)
        await asyncio.to_thread(self._unlock)

    async def is_writable(self) -> bool:
        return await asyncio.to_thread(self._probe)

    def _probe(self) -> bool:
        import apsw  # noqa: PLC0415  (only where there is a file)

        connection = apsw.Connection(str(self.path))
        try:
            connection.set_busy_timeout(500)
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return False
        finally:
            connection.close()
        return True

    async def _hog(self) -> None:
        while True:
            await asyncio.to_thread(self._lock)
            await asyncio.sleep(SLOW_S)
            await asyncio.to_thread(self._unlock)
            await asyncio.sleep(SLOW_S / 10)

    def _lock(self) -> None:
        import apsw  # noqa: PLC0415  (only where there is a file)

        if self._connection is None:
            self._connection = apsw.Connection(str(self.path))
            self._connection.set_busy_timeout(5000)
        self._connection.execute("BEGIN IMMEDIATE")

    def _unlock(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


class Server(Faulty):
    """A server behind a proxy of ours."""

    def __init__(self, proxy: Proxy, url: str) -> None:
        self._proxy = proxy
        self.url = proxy.url(url)

    async def outage(self) -> None:
        self._proxy.refusing = True
        self._proxy.cut()

    async def silence(self) -> None:
        """It answers nobody, and hangs up on nobody."""
        self._proxy.deaf = True

    async def slow(self) -> None:
        self._proxy.delay_s = SLOW_S / 2

    async def heal(self) -> None:
        was_deaf = self._proxy.deaf
        self._proxy.refusing = self._proxy.deaf = False
        self._proxy.delay_s = 0.0
        if was_deaf:
            self._proxy.cut()  # what was swallowed will not come: begin anew


@asynccontextmanager
async def open_store_site(url: str, folder: Path) -> AsyncIterator[Faulty]:
    """The store of one drill: of its own, or a part of its own in the one that was given."""
    if not url:
        file = StoreFile(folder / "plane.db")
        try:
            yield file
        finally:
            await file.heal()
        return
    if urlsplit(url).scheme == "sqlite":
        raise Invalid("a drill makes its own SQLite file: leave --store out, or name a server")
    async with _part_of(url) as own, Proxy(_port(own), host=urlsplit(own).hostname or "127.0.0.1") as proxy:
        yield Server(proxy, own)


@asynccontextmanager
async def open_bus_site(url: str) -> AsyncIterator[Server]:
    async with Proxy(_port(url), host=urlsplit(url).hostname or "127.0.0.1") as proxy:
        yield Server(proxy, url)


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or PORTS.get(parts.scheme, 0)


def _part_of(url: str) -> AbstractAsyncContextManager[str]:
    """A schema or a namespace of its own, removed afterwards. Elsewhere all of it: name a server for drills alone."""
    scheme = urlsplit(url).scheme
    name = f"holdfast_drill_{SYSTEM.token()[:12]}"
    if scheme.startswith("postgres"):
        return _schema(url, name)
    if "+" not in scheme and scheme.startswith(("redis", "valkey")):
        return _namespace(url, name)
    return nullcontext(url)


@asynccontextmanager
async def _schema(url: str, name: str) -> AsyncIterator[str]:
    import asyncpg  # noqa: PLC0415  (only where its URL names it)

    connection = await asyncpg.connect(_with(url, search_path=None))
    try:
        await connection.execute(f"CREATE SCHEMA {name}")
        yield _with(url, search_path=name)
    finally:
        with suppress(Exception):
            await connection.execute(f"DROP SCHEMA {name} CASCADE")
        await connection.close()


@asynccontextmanager
async def _namespace(url: str, name: str) -> AsyncIterator[str]:
    import redis.asyncio  # noqa: PLC0415  (only where its URL names it)

    try:
        yield _with(url, namespace=name)
    finally:
        client = redis.asyncio.from_url(_with(url, namespace=None).replace("valkey", "redis", 1))
        # Of the plane, and of its locks.
        for pattern in (f"{{{name}}}:*", f"{name}:*"):
            left = [key async for key in client.scan_iter(match=pattern, count=1000)]
            if left:
                await client.unlink(*left)
        await client.aclose()


def _with(url: str, **options: str | None) -> str:
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query)) | options
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return urlunsplit(parts._replace(query=query))
