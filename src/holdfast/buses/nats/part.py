"""A namespace for one plane alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import nats
from nats.js.errors import NotFoundError

from holdfast.buses.nats.options import parse
from holdfast.buses.nats.stream import Names


@asynccontextmanager
async def own_part(url: str, name: str) -> AsyncIterator[str]:
    own = f"{url}{'&' if '?' in url else '?'}namespace={name}"  # the last word on it counts
    options = parse(own)
    try:
        yield own
    finally:
        client = await nats.connect(list(options.servers), allow_reconnect=False, **options.access)
        try:
            with suppress(NotFoundError):
                await client.jetstream().delete_stream(Names.of(options.namespace).stream)
        finally:
            await client.close()
