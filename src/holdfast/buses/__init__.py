"""What carries deliveries to workers. The store is the truth; a bus is a wake-up. Imported when its URL names it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.buses.embedded import DeliveryStore, EmbeddedBus
from holdfast.ports import Bus

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

_BACKENDS = {"nats": "nats", "tls": "nats"}


@asynccontextmanager
async def open_bus(url: str, *, store: DeliveryStore, runtime: Runtime) -> AsyncIterator[Bus]:
    """The bus a URL names, open; without a URL the one in the store. Raises `ValueError` for one nobody serves,
    `Invalid` for a server that will not do."""
    if not url:
        yield EmbeddedBus(store)
        return
    backend = _BACKENDS.get(urlsplit(url).scheme)
    if backend is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_BACKENDS))
        raise ValueError(f"no bus serves this URL; use one of {known}, or leave it out for the bus in the store")
    try:
        module = import_module(f"holdfast.buses.{backend}")
    except ModuleNotFoundError as missing:
        raise ValueError(f"this bus needs the package {missing.name!r}: pip install 'holdfast[{backend}]'") from missing
    bus = module.open_bus(url, runtime=runtime)
    await bus.open()
    try:
        yield bus
    finally:
        await bus.close()
