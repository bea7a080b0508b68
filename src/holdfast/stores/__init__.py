"""Where jobs are kept. A backend is imported only when its URL names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from holdfast.core.topic import Topics
from holdfast.ports import Delivery, Store

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

TIMEOUT_S = 2.0

_BACKENDS = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres"}


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
    backend = _BACKENDS.get(_scheme_of(url))
    if backend is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_BACKENDS))
        raise ValueError(f"no store serves this URL; use one of {known}")
    try:
        module = import_module(f"holdfast.stores.{backend}")
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"this store needs the package {missing.name!r}: pip install 'holdfast[{backend}]'"
        ) from missing
    store: StoreWithBus = module.open_store(url, topics=topics, runtime=runtime, timeout_s=timeout_s)
    return store


def _scheme_of(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("the store's URL cannot be read; check its brackets") from None
    # What follows an unescaped "/" of a password would be taken for a path, and shown as one.
    if parts.netloc and "@" not in parts.netloc and "@" in url:
        raise ValueError("write '/', '?', '#' and '@' in user and password percent-encoded, as %2F, %3F, %23, %40")
    return parts.scheme
