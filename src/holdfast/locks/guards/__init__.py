"""Guards: resources that refuse whoever holds an older fence.

`guard` serves databases by the type of the connection, without importing any driver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, overload

from holdfast.locks.guards.fenced import Fenced
from holdfast.locks.guards.sql import Guard, Session, SessionGuard

if TYPE_CHECKING:
    from holdfast.locks.guards.redis import AsyncClient, AsyncRedisGuard, Client, RedisGuard

__all__ = ["Fenced", "Guard", "guard"]

C = TypeVar("C")

# The package and the name of each class that is served, and what serves it; its subclasses are, too.
_GUARDS = {
    "asyncpg.Connection": ("postgres", "AsyncpgGuard"),
    "asyncpg.PoolConnectionProxy": ("postgres", "AsyncpgGuard"),
    "sqlite3.Connection": ("sqlite", "Sqlite3Guard"),
    "apsw.Connection": ("sqlite", "ApswGuard"),
}
_SESSIONS = {
    "psycopg.Connection": ("postgres", "PsycopgSession"),
    "psycopg.AsyncConnection": ("postgres", "PsycopgSession"),
    "sqlalchemy.Connection": ("sqlalchemy", "SqlalchemySession"),
    "sqlalchemy.Session": ("sqlalchemy", "SqlalchemySession"),
    "sqlalchemy.AsyncConnection": ("sqlalchemy", "SqlalchemySession"),
    "sqlalchemy.AsyncSession": ("sqlalchemy", "SqlalchemySession"),
}
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
    made: Guard[Any] | AsyncRedisGuard | RedisGuard = maker(conn.__class__)(lease, conn, resource, seq, once_per_fence)
    return made


@cache
def maker(connection: type[object]) -> Callable[[Fenced, Any, str, int | None, bool], Any]:
    """What makes the guards for a type of connection: called with the lease, a connection, the resource, `seq` and
    `once_per_fence`. For whoever guards so often that the way here is felt."""
    names = [f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in connection.__mro__]
    for name in names:
        if name in _GUARDS:
            return _imported(*_GUARDS[name])
        if name in _SESSIONS:
            return _through(_imported(*_SESSIONS[name]))
    # A pipeline is a Redis client, too, but one that answers later.
    if not _REDIS.isdisjoint(names) and _REDIS_PIPELINES.isdisjoint(names):
        return _redis(_imported("redis", "AsyncRedisGuard" if hasattr(connection, "aclose") else "RedisGuard"))
    served = ", ".join(sorted({*_GUARDS, *_SESSIONS, *_REDIS}))
    raise TypeError(f"cannot guard through {names[0]}; these connections are served, and their subclasses: {served}")


def _imported(module: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(f"holdfast.locks.guards.{module}"), name)
    return found


def _through(session: Callable[[Any], Session]) -> Callable[[Fenced, Any, str, int | None, bool], SessionGuard[Any]]:
    return lambda lease, conn, resource, *options: SessionGuard(session(conn), lease, conn, resource, *options)


def _redis(kind: Callable[..., Any]) -> Callable[[Fenced, Any, str, int | None, bool], Any]:
    def make(lease: Fenced, client: Any, resource: str, seq: int | None, once_per_fence: bool) -> Any:  # noqa: FBT001
        if seq is not None:
            raise ValueError("a Redis guard repeats single calls: pass seq to call()")
        return kind(lease, client, resource, once_per_fence=once_per_fence)

    return make
