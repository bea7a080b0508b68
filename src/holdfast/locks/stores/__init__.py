"""Where locks are kept. A backend is imported only when its URL names it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType
    from urllib.parse import SplitResult

    from holdfast.locks.port import BlockingStore, LockStore
    from holdfast.locks.runtime import Runtime

TIMEOUT_S = 2.0

_BACKENDS = {
    "sqlite": "sqlite",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "redis+sentinel": "redis",
    "rediss+sentinel": "redis",
    "redis+cluster": "redis",
    "rediss+cluster": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "postgresql": "postgres",
    "postgres": "postgres",
    "etcd": "etcd",
    "etcds": "etcd",
}


def open_store(url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float = TIMEOUT_S) -> LockStore:
    """The store a URL names, not yet connected. Raises `ValueError` for a URL nobody serves.

    `prefix` starts every name the store creates beside the lock keys themselves (which arrive
    with it). `holder` is what other processes are told about who holds a lock.
    """
    store: LockStore = _backend(url).open_store(url, holder=holder, prefix=prefix, runtime=runtime, timeout_s=timeout_s)
    return store


def blocking_store(
    url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float = TIMEOUT_S
) -> BlockingStore | None:
    """The blocking form of the same store, where its client has one of its own; else None."""
    open_blocking = getattr(_backend(url), "open_blocking_store", None)
    if open_blocking is None:
        return None
    store: BlockingStore | None = open_blocking(url, holder=holder, prefix=prefix, runtime=runtime, timeout_s=timeout_s)
    return store


def _backend(url: str) -> ModuleType:
    try:
        parts = _split(url)
    except ValueError:
        raise ValueError("the store's URL cannot be read; check its brackets and its port") from None
    # What follows an unescaped "/" of a password would be taken for a path, and shown as one.
    if parts.netloc and "@" not in parts.netloc and "@" in url:
        raise ValueError("write '/', '?', '#' and '@' in user and password percent-encoded, as %2F, %3F, %23, %40")
    scheme = parts.scheme
    backend = _BACKENDS.get(scheme)
    if backend is None:
        known = ", ".join(sorted(_BACKENDS))
        if not scheme:
            raise ValueError(f"a lock store is named by a URL: sqlite:///locks.db for a file, or one of {known}")
        raise ValueError(f"no lock store serves {scheme}:// URLs; use one of {known}")
    try:
        return import_module(f"holdfast.locks.stores.{backend}.store")
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"{scheme}:// needs the package {missing.name!r}: pip install 'holdfast[{backend}]'"
        ) from missing


def shown(url: str) -> str:
    """The URL as it may be shown: without user, password, or query."""
    parts = _split(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def _split(url: str) -> SplitResult:
    from urllib.parse import urlsplit  # noqa: PLC0415  (a tenth of our import, and not needed before there is a URL)

    return urlsplit(url)
