"""A schema for one plane alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg

from holdfast.stores import with_options


@asynccontextmanager
async def own_part(url: str, name: str) -> AsyncIterator[str]:
    connection = await asyncpg.connect(with_options(url, search_path=None))
    try:
        await connection.execute(f"CREATE SCHEMA {name}")
        yield with_options(url, search_path=name)
    finally:
        with suppress(Exception):
            await connection.execute(f"DROP SCHEMA {name} CASCADE")
        await connection.close()
