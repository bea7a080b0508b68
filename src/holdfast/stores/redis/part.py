"""A namespace for one plane alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores.redis.cluster import slot_of
from holdfast.locks.stores.redis.wire import Caller, parse_url
from holdfast.stores import TIMEOUT_S, with_options
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.link import PlaneLink


@asynccontextmanager
async def own_part(url: str, name: str) -> AsyncIterator[str]:
    own = with_options(url, namespace=name)
    try:
        yield own
    finally:
        keys = Keys(name)
        caller = Caller(own, holder="part", prefix=keys.prefix, runtime=SYSTEM, timeout_s=TIMEOUT_S)
        link = PlaneLink(parse_url(own), caller, slot=slot_of(keys.head))
        link.open()
        try:
            # Of the plane, and of its locks.
            for pattern in (f"{{{name}}}:*", f"{name}:*"):
                await _remove(link, pattern)
        finally:
            await link.close()


async def _remove(link: PlaneLink, pattern: str) -> None:
    cursor = None
    while cursor != b"0":
        [(cursor, left)] = await link.ask(("SCAN", cursor or "0", "MATCH", pattern, "COUNT", "1000"))
        if left:
            await link.ask(("UNLINK", *left))
