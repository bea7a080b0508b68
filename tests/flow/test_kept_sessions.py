"""A session that is lent again is like a new one to whoever gets it."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from backends.postgres import PostgresTurns, ready
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.kept_sessions import KEPT_MAX
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


@on_virtual_time
async def test_only_so_many_are_kept_and_the_latest_are(runtime: VirtualRuntime) -> None:
    for n in range(KEPT_MAX + 2):
        one = await connected(runtime, f"test-many-{n}")
        await one.close()
    latest = one.get_server_pid()

    again = await connected(runtime, f"test-many-{KEPT_MAX + 1}")
    assert again.get_server_pid() == latest
    kept = await again.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'test-many-%'")
    assert kept <= KEPT_MAX
    await again.close()


def test_server_is_ready_though_news_come_right_behind() -> None:
    answer, news = b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\5", b"A\0\0\0\x0c\0\0\0\7a\0b\0"
    for state in (b"I", b"T"):
        assert ready(answer + state) == ready(answer + state + news) == ready(answer + state + news + news[:3]) == state
    assert ready(answer) is None, "half of it"
    assert ready(answer + b"I" + answer[:-5]) is None, "the next answer has begun"
    assert ready(news) is None


def test_server_is_ready_however_its_words_are_cut() -> None:
    answer = b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\5I"
    for at in range(1, len(answer)):
        turns = PostgresTurns()
        turns.sent(b"Q")
        turns.received(answer[:at])
        assert turns.is_owed
        turns.received(answer[at:])
        assert not turns.is_owed
