"""Redis with TLS and a password: the plane's store and the locks, in a loop and in threads; and no password is ever shown.

The server that the tests bring along is built without TLS (`valkey-server --tls-port` says so), so a door in front of it
speaks it (`tls_door`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import servers
from tls_door import certified, tls_door

from holdfast.errors import StoreUnavailable
from holdfast.locks import LockClass, Locks, StoreRefused, SyncLocks
from plane.jobs import submitted
from plane.redis_namespaces import opened

SECRET = "s3cret-w0rd"
LOCK = LockClass("payout", ttl=10)

Use: TypeAlias = Callable[[str], Awaitable[None]]


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    server = servers.redis_server("--requirepass", SECRET)
    server.ready = lambda server: servers._exchange(server.port, b"PING\r\n").startswith(b"-NOAUTH")
    yield server.start()
    server.remove()


@pytest.fixture
async def door(server: servers.Server, tmp_path: Path) -> AsyncIterator[int]:
    """The port at which the server is reached over TLS."""
    async with tls_door(server.port, certified(tmp_path, "right")) as port:
        yield port


def url_of(port: int, password: str, ca: Path) -> str:
    return f"rediss://:{password}@127.0.0.1:{port}/0?ssl_ca_certs={ca}"


async def use_store(url: str) -> None:
    async with opened(f"{url}&namespace=access") as store:
        job = await submitted(store)
        assert [found.id for found in await store.find_jobs([job.id]) if found] == [job.id]


async def use_locks(url: str) -> None:
    async with Locks(url) as locks, locks.hold(LOCK, "k") as lease:
        assert lease.fence > 0


async def use_locks_in_a_thread(url: str) -> None:
    def hold() -> None:
        with SyncLocks(url) as locks, locks.hold(LOCK, "k") as lease:
            assert lease.fence > 0

    await asyncio.to_thread(hold)


every_use = pytest.mark.parametrize("use", [use_store, use_locks, use_locks_in_a_thread])


@every_use
async def test_tls_is_spoken_with_an_authority_of_ones_own(door: int, tmp_path: Path, use: Use) -> None:
    await use(url_of(door, SECRET, tmp_path / "right.pem"))


@pytest.mark.parametrize(
    ("password", "ca", "why"),
    [(SECRET, "other", "ssl_ca_certs=FILE"), ("wr0ng-w0rd", "right", "Check user and password")],
    ids=["nobody vouches for its certificate", "wrong password"],
)
@every_use
async def test_what_does_not_fit_is_refused_with_the_next_step_and_without_the_password(
    door: int,
    tmp_path: Path,
    use: Use,
    password: str,
    ca: str,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    certified(tmp_path, "other")
    caplog.set_level(logging.DEBUG)
    with pytest.raises((StoreUnavailable, StoreRefused), match=why) as refused:
        await use(url_of(door, password, tmp_path / f"{ca}.pem"))

    assert password not in f"{refused.value!r} {refused.value} {caplog.text}"
