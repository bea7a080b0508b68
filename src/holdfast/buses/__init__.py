"""What carries deliveries to workers. The store is the truth; a bus is a wake-up. Imported when its URL names it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from holdfast.buses.embedded import DeliveryStore, EmbeddedBus
from holdfast.core.inspection import Inspection
from holdfast.ports import Bus

if TYPE_CHECKING:
    from types import ModuleType

    from holdfast.locks.runtime import Runtime

TIMEOUT_S = 2.0


class Backend(NamedTuple):
    """What others must know of a backend without importing it: nobody asks for a scheme elsewhere."""

    package: str
    """Here: its modules `bus`, `inspect` and `part` are asked for by name."""
    port: int
    """Of a server whose URL names none."""


_NATS = Backend("nats", port=4222)
_BACKENDS = {"nats": _NATS, "tls": _NATS}


@asynccontextmanager
async def open_bus(url: str, *, store: DeliveryStore, runtime: Runtime) -> AsyncIterator[Bus]:
    """The bus a URL names, open; without a URL the one in the store. Raises `ValueError` for one nobody serves,
    `Invalid` for a server that will not do."""
    if not url:
        yield EmbeddedBus(store)
        return
    bus = _backend(url, "bus").open_bus(url, runtime=runtime)
    await bus.open()
    try:
        yield bus
    finally:
        await bus.close()


async def inspect_bus(url: str, *, runtime: Runtime, timeout_s: float = TIMEOUT_S) -> Inspection | None:
    """What the bus that a URL names says of itself; None: it is in the store. Raises as `open_bus`."""
    if not url:
        return None
    found: Inspection = await _backend(url, "inspect").inspect(url, runtime=runtime, timeout_s=timeout_s)
    return found


def own_part(url: str, name: str) -> AbstractAsyncContextManager[str]:
    """A part of the bus for one plane alone, as a URL; removed afterwards with all that is in it."""
    part: AbstractAsyncContextManager[str] = _backend(url, "part").own_part(url, name)
    return part


def port_of(url: str) -> int:
    """Of the server of a bus; 0: it has none that anybody knows."""
    backend = _BACKENDS.get(urlsplit(url).scheme)
    return urlsplit(url).port or (0 if backend is None else backend.port)


def _backend(url: str, part: str) -> ModuleType:
    backend = _BACKENDS.get(urlsplit(url).scheme)
    if backend is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_BACKENDS))
        raise ValueError(f"no bus serves this URL; use one of {known}, or leave it out for the bus in the store")
    try:
        return import_module(f"holdfast.buses.{backend.package}.{part}")
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"this bus needs the package {missing.name!r}: pip install 'holdfast[{backend.package}]'"
        ) from missing
