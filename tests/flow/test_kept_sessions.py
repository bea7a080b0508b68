"""A session that is lent again is like a new one to whoever gets it."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.places import HERE

HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"


async def connected(runtime: VirtualRuntime, name: str) -> Any:
    """As a story connects: on virtual time, over its wires."""
    place = HERE[-1]
    if runtime.loop.dial is None:
        place.reach(runtime)
    return await asyncpg.connect(place.url, server_settings={"application_name": name})


@on_virtual_time
async def test_it_has_forgotten_what_the_one_before_did_with_it(runtime: VirtualRuntime) -> None:
    one = await connected(runtime, "test-forgets")
    backend = one.get_server_pid()
    await one.add_listener("heard", lambda *_: None)
    await one.execute("SET statement_timeout = 1234; SET search_path = pg_catalog; CREATE TEMP TABLE mine (n int)")
    await one.fetchval("SELECT pg_advisory_lock(7)")
    await one.execute("PREPARE mine AS SELECT 1")
    other = await connected(runtime, "test-forgets-too")
    await other.execute("NOTIFY heard")
    await one.close()

    again = await connected(runtime, "test-forgets")
    assert again.get_server_pid() == backend, "it was not lent again, and this test shows nothing"
    assert await again.fetchval("SHOW statement_timeout") == "0"
    assert await again.fetchval("SHOW search_path") != "pg_catalog"
    assert await again.fetchval(HELD) == 0
    assert await again.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
    assert await again.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name = 'mine'") == 0
    assert await again.fetchval("SELECT to_regclass('mine')") is None
    await again.close()
    await other.close()


@on_virtual_time
async def test_it_is_lent_to_those_alone_who_introduce_themselves_alike(runtime: VirtualRuntime) -> None:
    one = await connected(runtime, "test-one")
    backend = one.get_server_pid()
    await one.close()

    other = await connected(runtime, "test-another")
    assert other.get_server_pid() != backend
    assert await other.fetchval("SHOW application_name") == "test-another"
    await other.close()


@pytest.mark.parametrize("cut_off", [False, True])
@on_virtual_time
async def test_it_ends_if_it_was_left_in_the_middle_of_something(runtime: VirtualRuntime, cut_off: bool) -> None:
    one = await connected(runtime, "test-middle")
    backend = one.get_server_pid()
    await one.execute("BEGIN")
    if cut_off:
        one.terminate()
    else:
        await one.close()

    again = await connected(runtime, "test-middle")
    assert again.get_server_pid() != backend
    await again.close()


@on_virtual_time
async def test_one_that_its_server_has_ended_is_not_lent_again(runtime: VirtualRuntime) -> None:
    one = await connected(runtime, "test-ended")
    backend = one.get_server_pid()
    await one.close()
    other = await connected(runtime, "test-ender")
    assert await other.fetchval(f"SELECT pg_terminate_backend({backend}, 10000)")

    again = await connected(runtime, "test-ended")
    assert again.get_server_pid() != backend
    await again.close()
    await other.close()
