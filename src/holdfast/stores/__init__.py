"""Where jobs are kept. A backend is imported only when its URL names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

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


class Backend(NamedTuple):
    """What others must know of a backend without importing it: nobody asks for a scheme elsewhere."""

    package: str
    """Here: its modules `store`, `inspect` and `portable` are asked for by name."""
    port: int = 0
    """Of a server whose URL names none."""
    is_file: bool = False
    """One file, of one process at a time. Others are servers, where each process hears of what the others have committed."""
    has_parts: bool = False
    """Whether several planes can be in it, each in a part of its own: its module `part`."""


_SQLITE = Backend("sqlite", is_file=True)
_POSTGRES = Backend("postgres", port=5432, has_parts=True)
_REDIS = Backend("redis", port=6379, has_parts=True)
_REDIS_ELSEWHERE = Backend("redis")

_BACKENDS = {
    "sqlite": _SQLITE,
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "redis": _REDIS,
    "rediss": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
    "unix": _REDIS_ELSEWHERE,
    "redis+sentinel": _REDIS_ELSEWHERE,
    "rediss+sentinel": _REDIS_ELSEWHERE,
    "redis+cluster": _REDIS_ELSEWHERE,
    "rediss+cluster": _REDIS_ELSEWHERE,
}


class StoreWithBus(Store, Protocol):
    """A store that keeps deliveries beside its jobs: what `buses.embedded` stands on."""

    async def list_deliveries(self, worker: str, *, limit: int) -> list[Delivery]:
        """What was sent to the worker and not settled, oldest first."""

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Remove them, if they are still there."""

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        """Call `callback(worker)`, in the store's loop, after a commit that sent it something; with an empty name when
        other planes are heard again: they may have sent something to anybody."""


def open_store(url: str, *, topics: Topics, runtime: Runtime, timeout_s: float = TIMEOUT_S) -> StoreWithBus:
    """The store a URL names, not yet open. Raises `ValueError` for a URL nobody serves.

    `topics` tell when a job may need recovery (`recovery.next_look`): they must be those of the
    reconciler.
    """
    module = _backend(url, "store")
    store: StoreWithBus = module.open_store(url, topics=topics, runtime=runtime, timeout_s=timeout_s)
    return store


async def inspect_store(url: str, *, runtime: Runtime, timeout_s: float = TIMEOUT_S) -> Inspection:
    """What the store that a URL names says of itself; changes nothing in it. Raises as `open_store` and `Store.open`."""
    found: Inspection = await _backend(url, "inspect").inspect(url, runtime=runtime, timeout_s=timeout_s)
    return found


def open_portable(url: str, *, runtime: Runtime) -> Portable:
    """The store a URL names, to be read or filled as a whole. Raises as `open_store`."""
    portable: Portable = _backend(url, "portable").open_portable(url, runtime=runtime)
    return portable


def is_shared(url: str) -> bool:
    """Whether several processes may work on the store, because each hears of what the others have committed."""
    backend = _BACKENDS.get(_scheme_of(url))
    return backend is None or not backend.is_file


def file_of(url: str) -> Path | None:
    """The file that a URL names, also one of a lock store; None: it is no file."""
    backend = _BACKENDS.get(_scheme_of(url))
    path = unquote(urlsplit(url).path).removeprefix("/")
    return Path(path) if backend is not None and backend.is_file and path else None


def port_of(url: str) -> int:
    """Of the store's server; 0: it has none that anybody knows."""
    backend = _BACKENDS.get(_scheme_of(url))
    return urlsplit(url).port or (0 if backend is None else backend.port)


def own_part(url: str, name: str) -> AbstractAsyncContextManager[str]:
    """A part of the store for one plane alone, as a URL; removed afterwards with all that is in it. Where a store has no
    parts it is the whole of it, and nothing is removed."""
    backend = _BACKENDS.get(_scheme_of(url))
    if backend is None or not backend.has_parts:
        return nullcontext(url)
    part: AbstractAsyncContextManager[str] = _backend(url, "part").own_part(url, name)
    return part


def with_options(url: str, **options: str | None) -> str:
    """The URL with other options; None takes one away."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query)) | options
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return urlunsplit(parts._replace(query=query))


def _backend(url: str, part: str) -> ModuleType:
    backend = _BACKENDS.get(_scheme_of(url))
    if backend is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_BACKENDS))
        if not _scheme_of(url):
            raise ValueError(f"a store is named by a URL: sqlite:///holdfast.db for a file, or one of {known}")
        raise ValueError(f"no store serves this URL; use one of {known}")
    try:
        return import_module(f"holdfast.stores.{backend.package}.{part}")
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"this store needs the package {missing.name!r}: pip install 'holdfast[{backend.package}]'"
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
