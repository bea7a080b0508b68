"""What is known of a store by its URL alone: its file, its port, and parts of it for one plane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import redis
import servers

from holdfast import buses
from holdfast.core.topic import Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.stores import (
    StoreWithBus,
    file_of,
    inspect_store,
    is_shared,
    open_portable,
    open_store,
    own_part,
    port_of,
)
from plane import redis_namespaces
from plane.jobs import submitted
from plane.store_fixtures import FRESH, TIMEOUT_S


@pytest.fixture(params=list(FRESH))
def url(request: pytest.FixtureRequest, running: dict[str, servers.Server | None]) -> Iterator[str]:
    with FRESH[request.param](running) as url:
        yield url


async def opened(url: str) -> StoreWithBus:
    store = open_store(url, topics=Topics(), runtime=SYSTEM, timeout_s=TIMEOUT_S)
    await store.open()
    return store


async def test_part_of_a_server_is_empty_and_leaves_nothing_behind(url: str) -> None:
    for _ in range(2):
        async with own_part(url, "holdfast_part") as own:
            store = await opened(own)
            assert await store.count_jobs() == {}
            await submitted(store)
            assert await store.count_jobs() != {}
            await store.close()

    whole = await opened(url)
    assert await whole.count_jobs() == {}
    await whole.close()


async def test_part_is_removed_whatever_else_in_the_url_is_called_valkey(
    running: dict[str, servers.Server | None],
) -> None:
    server = redis_namespaces.server_url(running)
    with redis.Redis.from_url(server) as admin:
        admin.acl_setuser("valkey", enabled=True, nopass=True, keys=["*"], channels=["*"], categories=["+@all"])
        async with own_part(server.replace("://", "://valkey:x@"), "holdfast_part") as own:
            store = await opened(own)
            await submitted(store)
            await store.close()

        assert not list(admin.scan_iter(match="{holdfast_part}:*"))
        admin.acl_deluser("valkey")


@pytest.mark.parametrize("url", ["sqlite:///plane.db", "redis+sentinel://a,b/main", "etcd://127.0.0.1"])
async def test_store_without_parts_is_its_own(url: str) -> None:
    async with own_part(url, "holdfast_part") as own:
        assert own == url


@pytest.mark.parametrize(
    ("url", "file", "port"),
    [
        ("sqlite:///plane%20b.db", Path("plane b.db"), 0),
        ("sqlite:////srv/plane.db", Path("/srv/plane.db"), 0),
        ("postgresql://ann@db/jobs", None, 5432),
        ("postgres://ann@db:5433/jobs", None, 5433),
        ("rediss://cache/0", None, 6379),
        ("valkey://cache", None, 6379),
        ("redis+cluster://a:1,b:2", None, 0),
        ("etcd://a", None, 0),
    ],
)
def test_url_tells_a_file_from_a_server_and_its_port(url: str, file: Path | None, port: int) -> None:
    assert (file_of(url), is_shared(url)) == (file, file is None)
    if "," not in url:
        assert port_of(url) == port


@pytest.mark.parametrize(
    "url",
    [
        "redis://ann:s3cret@127.0.0.1:99999/0",
        "rediss://ann:s3cret@127.0.0.1:1/0?ssl_ca_certs=/nowhere/ca.pem",
        "rediss://ann:s3cret@127.0.0.1:1/0?ssl_certfile=/nowhere/me.pem",
        "postgresql://ann:s3cret@127.0.0.1:99999/db",
        "postgresql://ann:s3cret@127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/nowhere/ca.pem",
        "postgresql://ann:s3cret@127.0.0.1:1/db?sslmode=require&sslcert=/nowhere/me.pem&sslkey=/nowhere/me.key",
    ],
)
async def test_port_that_is_none_and_file_that_is_not_there_are_mistakes_in_the_url(url: str) -> None:
    """Not an outage, which would be waited for; and nothing else that could not be found."""

    async def opening() -> None:
        await opened(url)

    async def inspecting() -> None:
        await inspect_store(url, runtime=SYSTEM)

    async def reading() -> None:
        async with aclosing(open_portable(url, runtime=SYSTEM).dump(alone=False)) as pages:
            async for _ in pages:
                pass

    for use in (opening, inspecting, reading):
        with pytest.raises(ValueError, match=r"port|readable|what follows its '\?'") as refused:
            await use()
        assert "s3cret" not in str(refused.value)


def test_bus_has_a_port() -> None:
    assert [buses.port_of(url) for url in ("nats://a", "tls://a:1", "nowhere://a")] == [4222, 1, 0]
