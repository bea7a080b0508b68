"""Postgres with TLS and a password: both are asked for, neither is done without, and no password is ever shown.

The server that the tests bring along is built without TLS, so a door in front of it speaks it (`tls_door`): it opens
to nobody who does not ask for TLS first, as a server with `hostssl` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
import servers
from tls_door import MAKERS, POSTGRES_ASKS, certified, tls_door

from holdfast.errors import Invalid, StoreUnavailable
from holdfast.locks import LockClass, Locks, StoreRefused, SyncLocks
from plane.jobs import submitted
from plane.postgres_schemas import opened

SECRET = "s3cret-w0rd"
LOCK = LockClass("payout", ttl=10)
HBA = "host all ann 127.0.0.1/32 scram-sha-256\nhost all test 127.0.0.1/32 trust\n"


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    """With `ann`, who may come with her password alone."""
    server = servers.postgres_server()
    (server.directory / "data/pg_hba.conf").write_text(HBA)
    server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE ann LOGIN PASSWORD '{SECRET}'".encode())
        connection.execute("CREATE SCHEMA ann AUTHORIZATION ann")
    yield server
    server.remove()


@pytest.fixture
async def door(server: servers.Server, tmp_path: Path) -> AsyncIterator[int]:
    """The port at which the server is reached over TLS."""
    async with tls_door(server.port, certified(tmp_path, "right"), asks=POSTGRES_ASKS) as port:
        yield port


def url_of(port: int, password: str, mode: str, ca: Path) -> str:
    return f"postgresql://ann:{password}@127.0.0.1:{port}/postgres?sslmode={mode}&sslrootcert={ca}"


async def test_store_speaks_tls_with_an_authority_of_ones_own(door: int, tmp_path: Path) -> None:
    async with opened(url_of(door, SECRET, "verify-full", tmp_path / "right.pem")) as store:
        job = await submitted(store)
        assert [found.id for found in await store.list_dispatchable(limit=1)] == [job.id]


@pytest.mark.parametrize(
    ("password", "mode", "ca", "why"),
    [
        ("wr0ng-w0rd", "verify-full", "right", "password"),
        (SECRET, "disable", "right", "127.0.0.1"),
        (SECRET, "verify-full", "other", "sslrootcert"),
    ],
    ids=["wrong password", "no TLS", "nobody vouches for its certificate"],
)
async def test_what_does_not_fit_is_refused_and_told_without_the_password(
    door: int, tmp_path: Path, password: str, mode: str, ca: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    certified(tmp_path, "other")
    caplog.set_level(logging.DEBUG)
    with pytest.raises((StoreUnavailable, Invalid), match=why) as refused:
        async with opened(url_of(door, password, mode, tmp_path / f"{ca}.pem")):
            raise AssertionError("it must not open")
    assert password not in f"{refused.value!r} {refused.value} {caplog.text}"


async def test_locks_speak_tls_with_an_authority_of_ones_own_in_a_loop_and_in_threads(
    door: int, tmp_path: Path
) -> None:
    url = url_of(door, SECRET, "verify-full", tmp_path / "right.pem")
    async with Locks(url) as locks, locks.hold(LOCK, "k") as lease:
        assert lease.fence > 0
    await asyncio.to_thread(hold_in_a_thread, url)


async def test_locks_name_the_authority_that_is_missing_and_no_password(door: int, tmp_path: Path) -> None:
    url = url_of(door, SECRET, "verify-full", certified(tmp_path, "other"))
    with pytest.raises(StoreRefused, match="sslrootcert=FILE") as refused:
        async with Locks(url) as locks:
            await locks.acquire(LOCK, "k")
    with pytest.raises(StoreRefused, match="sslrootcert=FILE") as refused_too:
        await asyncio.to_thread(hold_in_a_thread, url)

    assert SECRET not in f"{refused.value!r} {refused_too.value!r}"


@pytest.mark.parametrize(("kind", "step"), MAKERS)
async def test_certificate_that_no_authority_could_mend_is_told_with_what_does(
    server: servers.Server, tmp_path: Path, kind: str, step: str
) -> None:
    certificate = MAKERS[kind, step](tmp_path, "right")
    async with tls_door(server.port, certificate, asks=POSTGRES_ASKS) as port:
        url = url_of(port, SECRET, "verify-full", certificate)
        with pytest.raises(Invalid, match=step):
            async with opened(url):
                raise AssertionError("it must not open")
        with pytest.raises(StoreRefused, match=step):
            async with Locks(url) as locks:
                await locks.acquire(LOCK, "k")


def hold_in_a_thread(url: str) -> None:
    with SyncLocks(url) as locks, locks.hold(LOCK, "k") as lease:
        assert lease.fence > 0
