"""A namespace for one plane alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio

from holdfast.stores import with_options


@asynccontextmanager
async def own_part(url: str, name: str) -> AsyncIterator[str]:
    try:
        yield with_options(url, namespace=name)
    finally:
        scheme, _, rest = with_options(url, namespace=None).partition("://")
        client = redis.asyncio.from_url(f"{scheme.replace('valkey', 'redis')}://{rest}")
        # Of the plane, and of its locks.
        for pattern in (f"{{{name}}}:*", f"{name}:*"):
            left = [key async for key in client.scan_iter(match=pattern, count=1000)]
            if left:
                await client.unlink(*left)
        await client.aclose()
