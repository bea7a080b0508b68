"""Where a drill takes place: a store and a bus of its own, which can be taken away and given back.

A file is taken away by holding its write lock, as a stuck backup does; a server by a proxy in front of it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast import buses, stores
from holdfast.errors import Invalid
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import shown
from holdfast.ops.proxy import Proxy

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


async def ask_servers(site: Site) -> None:
    """See that they are there before anything is begun. Raises what opening them would."""
    if site.store:
        await stores.inspect_store(site.store, runtime=SYSTEM)
    await buses.inspect_bus(site.bus, runtime=SYSTEM)


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
    if not stores.is_shared(url):
        raise Invalid("a drill makes its own SQLite file: leave --store out, or name a server")
    # Where a store has no parts it is all of it: such a server must be for drills alone.
    part = stores.own_part(url, _name_of_part())
    async with part as own, Proxy(stores.port_of(own), host=urlsplit(own).hostname or "127.0.0.1") as proxy:
        yield Server(proxy, own)


@asynccontextmanager
async def open_bus_site(url: str) -> AsyncIterator[Server]:
    part = buses.own_part(url, _name_of_part())
    async with part as own, Proxy(buses.port_of(own), host=urlsplit(own).hostname or "127.0.0.1") as proxy:
        yield Server(proxy, own)


def _name_of_part() -> str:
    return f"holdfast_drill_{SYSTEM.token()[:12]}"
