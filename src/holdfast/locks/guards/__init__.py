"""Guards: resources that refuse whoever holds an older fence.

`guard` serves databases by the type of the connection, without importing any driver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, overload

from holdfast.locks.guards.fenced import Fenced
from holdfast.locks.guards.redis import AsyncClient, AsyncRedisGuard, Client, RedisGuard
from holdfast.locks.guards.sql import Guard, Session, SessionGuard

__all__ = ["AsyncRedisGuard", "Fenced", "Guard", "RedisGuard", "guard"]

C = TypeVar("C")

# The package and the name of each class that is served; its subclasses are, too.
_SESSIONS = {
    "asyncpg.Connection": ("postgres", "AsyncpgSession"),
    "asyncpg.PoolConnectionProxy": ("postgres", "AsyncpgSession"),
    "psycopg.Connection": ("postgres", "PsycopgSession"),
    "psycopg.AsyncConnection": ("postgres", "PsycopgSession"),
    "sqlalchemy.Connection": ("sqlalchemy", "SqlalchemySession"),
    "sqlalchemy.Session": ("sqlalchemy", "SqlalchemySession"),
    "sqlalchemy.AsyncConnection": ("sqlalchemy", "SqlalchemySession"),
    "sqlalchemy.AsyncSession": ("sqlalchemy", "SqlalchemySession"),
}
_SQLITE = frozenset({"sqlite3.Connection", "apsw.Connection"})
_REDIS = frozenset({"redis.Redis", "redis.RedisCluster"})
_REDIS_PIPELINES = frozenset({"redis.Pipeline", "redis.ClusterPipeline"})


@overload
def guard(  # type: ignore[overload-overlap]  # a Redis client is also any C; the first match is meant
    lease: Fenced, conn: AsyncClient, resource: str, *, seq: None = None, once_per_fence: bool = False
) -> AsyncRedisGuard: ...


@overload
def guard(  # type: ignore[overload-overlap]
    lease: Fenced, conn: Client, resource: str, *, seq: None = None, once_per_fence: bool = False
) -> RedisGuard: ...


@overload
def guard(
    lease: Fenced, conn: C, resource: str, *, seq: int | None = None, once_per_fence: bool = False
) -> Guard[C]: ...


def guard(
    lease: Fenced, conn: Any, resource: str, *, seq: int | None = None, once_per_fence: bool = False
) -> Guard[Any] | AsyncRedisGuard | RedisGuard:
    """Claim `resource` for the lease, in the database behind `conn`, while the guard is entered.

    What is promised stands at `Guard` and `AsyncRedisGuard`. `seq` repeats an earlier operation of
    this lease (on Redis that is an argument of `call`). `once_per_fence` accepts one guard per
    fence and resource: a second one of the same holder is refused like a stale one.

    Raises `TypeError` for a connection nobody serves, and `ValueError` for a lease without a
    fence (a local fallback: there is nothing a resource could check).
    """
    if lease.fence <= 0:
        raise ValueError(f"a lease without a fence cannot guard {resource!r}: {lease.key!r} is held locally only")
    if not resource:
        raise ValueError("a guarded resource needs a name")
    make, makes_redis = _served_by(conn.__class__)
    if not makes_redis:
        made: Guard[Any] = make(lease, conn, resource, seq=seq, once_per_fence=once_per_fence)
        return made
    if seq is not None:
        raise ValueError("a Redis guard repeats single calls: pass seq to call()")
    redis_guard: AsyncRedisGuard | RedisGuard = make(lease, conn, resource, once_per_fence=once_per_fence)
    return redis_guard


@cache
def _served_by(connection: type[object]) -> tuple[Callable[..., Any], bool]:
    """What makes the guard for a type of connection, and whether that is a Redis client."""
    names = [f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in connection.__mro__]
    if not _SQLITE.isdisjoint(names):
        return import_module("holdfast.locks.guards.sqlite").SqliteGuard, False
    for name in names:
        if name in _SESSIONS:
            module, session = _SESSIONS[name]
            return _through(getattr(import_module(f"holdfast.locks.guards.{module}"), session)), False
    # A pipeline is a Redis client, too, but one that answers later.
    if not _REDIS.isdisjoint(names) and _REDIS_PIPELINES.isdisjoint(names):
        return AsyncRedisGuard if hasattr(connection, "aclose") else RedisGuard, True
    served = ", ".join(sorted({*_SQLITE, *_SESSIONS, *_REDIS}))
    raise TypeError(f"cannot guard through {names[0]}; these connections are served, and their subclasses: {served}")


def _through(session: Callable[[Any], Session]) -> Callable[..., SessionGuard[Any]]:
    def make(lease: Fenced, conn: Any, resource: str, *, seq: int | None, once_per_fence: bool) -> SessionGuard[Any]:
        return SessionGuard(session(conn), lease, conn, resource, seq=seq, once_per_fence=once_per_fence)

    return make
