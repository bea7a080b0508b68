"""Where jobs are kept. A backend is imported only when its URL names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs, urlsplit

from holdfast.core.inspection import Inspection
from holdfast.core.topic import Topics
from holdfast.ports import Delivery, Store

if TYPE_CHECKING:
    from types import ModuleType

    from holdfast.locks.runtime import Runtime
    from holdfast.stores.portable import Portable

TIMEOUT_S = 2.0

NAMESPACE = "holdfast"
"""Of a plane whose URL names none (`?namespace=…`)."""

_BACKENDS = {
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "postgres": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "redis+sentinel": "redis",
    "rediss+sentinel": "redis",
    "redis+cluster": "redis",
    "rediss+cluster": "redis",
    "valkey": "redis",
    "valkeys": "redis",
}

_OF_ONE_PROCESS = {"sqlite"}


class StoreWithBus(Store, Protocol):
    """A store that keeps deliveries beside its jobs: what `buses.embedded` stands on."""

    async def list_deliveries(self, worker: str, *, limit: int) -> list[Delivery]:
        """What was sent to the worker and not settled, oldest first."""

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Remove them, if they are still there."""

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        """Call `callback(worker)`, in the store's loop, after a commit that sent it something."""


def open_store(url: str, *, topics: Topics, runtime: Runtime, timeout_s: float = TIMEOUT_S) -> StoreWithBus:
    """The store a URL names, not yet open. Raises `ValueError` for a URL nobody serves.

    `topics` tell when a job may need recovery (`recovery.next_look`): they must be those of the
    reconciler.
    """
    module = _backend(url)
    store: StoreWithBus = module.open_store(url, topics=topics, runtime=runtime, timeout_s=timeout_s)
    return store


async def inspect_store(url: str, *, runtime: Runtime, timeout_s: float = TIMEOUT_S) -> Inspection:
    """What the store that a URL names says of itself; changes nothing in it. Raises as `open_store` and `Store.open`."""
    found: Inspection = await _backend(url, "_inspect").inspect(url, runtime=runtime, timeout_s=timeout_s)
    return found


def open_portable(url: str, *, runtime: Runtime) -> Portable:
    """The store a URL names, to be read or filled as a whole. Raises as `open_store`."""
    portable: Portable = _backend(url, "_portable").open_portable(url, runtime=runtime)
    return portable


def is_shared(url: str) -> bool:
    """Whether several processes may work on the store, because each hears of what the others have committed."""
    return _scheme_of(url) not in _OF_ONE_PROCESS


def _backend(url: str, part: str = "") -> ModuleType:
    backend = _BACKENDS.get(_scheme_of(url))
    if backend is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_BACKENDS))
        raise ValueError(f"no store serves this URL; use one of {known}")
    try:
        return import_module(f"holdfast.stores.{backend}{part}")
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"this store needs the package {missing.name!r}: pip install 'holdfast[{backend}]'"
        ) from missing


def lock_prefix(url: str) -> str:
    """What the keys of the locks begin with, of a plane that this URL names: two in one server share none."""
    [namespace] = parse_qs(urlsplit(url).query).get("namespace", [NAMESPACE])
    return f"{namespace}:"


def _scheme_of(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("the store's URL cannot be read; check its brackets") from None
    # What follows an unescaped "/" of a password would be taken for a path, and shown as one.
    if parts.netloc and "@" not in parts.netloc and "@" in url:
        raise ValueError("write '/', '?', '#' and '@' in user and password percent-encoded, as %2F, %3F, %23, %40")
    return parts.scheme
