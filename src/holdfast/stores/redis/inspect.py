"""What a Redis or Valkey server says of itself: the one that the plane's keys are on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.inspection import Aspect, Eviction, Fact, Inspection, Replicas, Sync
from holdfast.locks.errors import LockError, StoreRefused
from holdfast.locks.stores.redis.cluster import slot_of
from holdfast.locks.stores.redis.wire import Caller, parse_url
from holdfast.stores.redis.database import namespace_of
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.link import PlaneLink, translated
from holdfast.stores.redis.load import text
from holdfast.stores.redis.writer import info

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

UNTOLD = "not told"
"""Many hosted servers do not let anybody read their configuration."""
_SYNC = {"always": Sync.COMMIT, "everysec": Sync.INTERVAL, "no": Sync.NEVER, UNTOLD: Sync.INTERVAL}


async def inspect(url: str, *, runtime: Runtime, timeout_s: float) -> Inspection:
    """Raises `StoreUnavailable` or `Invalid`."""
    keys = Keys(namespace_of(url))
    caller = Caller(url, holder="doctor", prefix=keys.prefix, runtime=runtime, timeout_s=timeout_s)
    link = PlaneLink(parse_url(url), caller, slot=slot_of(keys.head))
    link.open()
    try:
        said, clock = await link.ask(("INFO",), ("TIME",))
        told = info(said)
        appendfsync = await _configured(link, "appendfsync")
    except LockError as error:
        raise translated(error, caller.subject, applied=False) from None
    finally:
        await link.close()
    seconds, microseconds = (int(part) for part in clock)
    return Inspection(
        engine="Valkey" if "valkey_version" in told else "Redis",
        version=told.get("valkey_version") or told["redis_version"],
        place=caller.subject,
        facts=(_sync(told, appendfsync), _replicas(told), _eviction(told)),
        settings={"mode": told.get("redis_mode", ""), "maxmemory": told.get("maxmemory_human", "0")},
        clock=seconds + microseconds / 1e6,
    )


async def _configured(link: PlaneLink, name: str) -> str:
    try:
        [found] = await link.ask(("CONFIG", "GET", name))
    except StoreRefused:
        return UNTOLD
    return text(found[1]) if found else UNTOLD


def _sync(told: dict[str, str], appendfsync: str) -> Fact:
    fix = "CONFIG SET appendonly yes; CONFIG SET appendfsync always; and write both into its configuration"
    if told.get("aof_enabled") != "1":
        return Fact(aspect=Aspect.SYNC, value=Sync.NOTHING, setting="appendonly", found="no", fix=fix)
    return Fact(aspect=Aspect.SYNC, value=_SYNC[appendfsync], setting="appendfsync", found=appendfsync, fix=fix)


def _replicas(told: dict[str, str]) -> Fact:
    # Redis acknowledges before its replicas have it, whatever is set: WAIT makes that rarer, never impossible.
    copies = int(told.get("connected_slaves", "0"))
    return Fact(
        aspect=Aspect.REPLICAS,
        value=Replicas.ASYNCHRONOUS if copies else Replicas.NONE,
        setting="connected replicas",
        found=str(copies),
        fix="nothing makes them synchronous: guard writes by their fence, or keep the plane in Postgres",
    )


def _eviction(told: dict[str, str]) -> Fact:
    policy = told.get("maxmemory_policy", "noeviction")
    return Fact(
        aspect=Aspect.EVICTION,
        value=Eviction.NONE if policy == "noeviction" else Eviction.EVICTS,
        setting="maxmemory-policy",
        found=policy,
        fix="CONFIG SET maxmemory-policy noeviction; and write it into its configuration",
    )
