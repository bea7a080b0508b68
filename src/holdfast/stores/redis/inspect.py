"""What a Redis or Valkey server says of itself: the one that the plane's keys are on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.inspection import Aspect, Eviction, Fact, Inspection, Replicas, Sync, Writes
from holdfast.locks.errors import LockError
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
        # First what may be refused, one way or the other: if the server is away, the last question says so.
        writes = await _writes(link, keys)
        appendfsync = await _configured(link, "appendfsync")
        is_paused = await _configured(link, "no-appendfsync-on-rewrite") == "yes"
        said, clock = await link.ask(("INFO",), ("TIME",))
        told = info(said)
    except LockError as error:
        raise translated(error, caller.subject, applied=False) from None
    finally:
        await link.close()
    seconds, microseconds = (int(part) for part in clock)
    return Inspection(
        engine="Valkey" if "valkey_version" in told else "Redis",
        version=told.get("valkey_version") or told["redis_version"],
        place=caller.subject,
        facts=(_sync(told, appendfsync, is_paused=is_paused), _replicas(told), _eviction(told), writes),
        settings={
            "mode": told.get("redis_mode") or told.get("server_mode", ""),
            "maxmemory": told.get("maxmemory_human", "0"),
        },
        clock=seconds + microseconds / 1e6,
    )


async def _configured(link: PlaneLink, name: str) -> str:
    try:
        [found] = await link.ask(("CONFIG", "GET", name))
    except LockError:
        return UNTOLD
    return text(found[1]) if found else UNTOLD


async def _writes(link: PlaneLink, keys: Keys) -> Fact:
    """The server's own word: a replica, one that lacks some, one that is full and one whose disk is refuse it alike."""
    step = "do what it says; holdfast up would be told the same"
    fact = Fact(aspect=Aspect.WRITES, value=Writes.TAKEN, setting="a write", found="taken", fix=step)
    try:
        await link.ask(("SET", f"{keys.prefix}doctor", "", "XX"))  # of a key that there is not: it changes nothing
    except LockError as refused:
        _, _, why = str(refused).partition(": ")
        return replace(fact, value=Writes.REFUSED, found=why)
    return fact


def _sync(told: dict[str, str], appendfsync: str, *, is_paused: bool = False) -> Fact:
    fix = "CONFIG SET appendonly yes; CONFIG SET appendfsync always; and write both into its configuration"
    if told.get("aof_enabled") != "1":
        return Fact(aspect=Aspect.SYNC, value=Sync.NOTHING, setting="appendonly", found="no", fix=fix)
    if appendfsync == "always" and is_paused:
        setting, fix = "no-appendfsync-on-rewrite", "CONFIG SET no-appendfsync-on-rewrite no; and write it there, too"
        return Fact(aspect=Aspect.SYNC, value=Sync.INTERVAL, setting=setting, found="yes", fix=fix)
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
