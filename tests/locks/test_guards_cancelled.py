"""Guards whose task is cancelled: the connection is the caller's, and stays one that can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from fenced_lease import Lease
from guarding import Driver

from holdfast.locks.guards import guard

R = "accounts/42"


async def test_cancelled_claim_leaves_the_connection_usable(make_driver: Callable[[str], Driver]) -> None:
    driver = make_driver("asyncpg")
    await driver.prepare()
    async with driver.connect() as conn, driver.connect() as other:
        async with guard(Lease(1), conn, R):
            pass
        async with guard(Lease(2), other, R) as db:
            await driver.add(db, 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), guard(Lease(3), conn, R):
                    pytest.fail("claimed what another transaction holds")

        async with guard(Lease(3), conn, R) as db:
            await driver.add(db, 10)

    assert await driver.balance() == 11


@pytest.mark.parametrize("name", ["asyncpg", "asyncpg-pool"])
async def test_guard_that_is_cancelled_twice_leaves_nobody_in_its_transaction(
    name: str, make_driver: Callable[[str], Driver]
) -> None:
    driver = make_driver(name)
    await driver.prepare()
    begun = asyncio.Event()

    async def work(conn: Any) -> None:
        async with guard(Lease(2), conn, R) as db:
            begun.set()
            await driver.run(db, "SELECT pg_sleep(20)")

    async with driver.connect() as conn:
        working = asyncio.create_task(work(conn))
        await begun.wait()
        working.cancel()
        await asyncio.sleep(0)  # the rollback waits until the server has given up the statement
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

        with suppress(asyncpg.InterfaceError):  # of a pool, which has taken it back
            assert conn.is_closed() or not conn.is_in_transaction()
