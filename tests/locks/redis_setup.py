"""What the tests of the Redis store share: servers of every kind, and stores opened on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager

import redis
import servers
from harness import sooner_or_later

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import BlockingStore, Grant, LockStore
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from holdfast.locks.stores.redis.store import open_blocking_store

A, B, C = "a" * 32, "b" * 32, "c" * 32
LONG = 60_000
FORMED_S_MAX = 20.0
"""Of a cluster: until all of its nodes know of each other."""


@asynccontextmanager
async def opened(url: str, prefix: str, *, timeout_s: float = 2.0, holder: str = "host:1") -> AsyncIterator[LockStore]:
    store = open_store(url, holder=holder, prefix=prefix, runtime=SYSTEM, timeout_s=timeout_s)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def blocking(url: str, prefix: str, *, timeout_s: float = 2.0) -> closing[BlockingStore]:
    return closing(open_blocking_store(url, holder="host:1", prefix=prefix, runtime=SYSTEM, timeout_s=timeout_s))


async def granted(store: LockStore, key: str, token: str, **options: int) -> int:
    reply = await store.acquire(key, token, **{"ttl_ms": LONG, **options})
    assert isinstance(reply, Grant), reply
    return reply.fence


def client(server: servers.Server) -> redis.Redis:
    return redis.Redis(port=server.port, decode_responses=True)


def replicated(primary: redis.Redis) -> None:
    """Wait until a replica has everything written so far. WAIT counts from its own connection's last
    write: without one it looks at nothing, and a replica that is still being synchronised passes."""
    primary.set("replicated", "yes")
    assert primary.wait(1, 20_000) == 1, "no replica has followed"


async def granted_yet(store: LockStore, key: str) -> bool:
    try:
        return isinstance(await store.acquire(key, A, ttl_ms=LONG), Grant)
    except Unavailable:
        return False


@asynccontextmanager
async def dropping_replies(port: int, *, to: bytes = b"") -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A proxy that passes everything on while the event is set; else it hangs up in place of a reply.

    It does so too, once, in place of the reply to a request that contains `to`.
    """
    passing = asyncio.Event()
    passing.set()
    serving: set[asyncio.Task[None]] = set()
    wanted = [to] if to else []

    async def copy(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hang_up: asyncio.Event, *, replies: bool
    ) -> None:
        try:
            while data := await reader.read(65536):
                if replies and (hang_up.is_set() or not passing.is_set()):
                    break
                if not replies and wanted and wanted[0] in data:
                    wanted.clear()
                    hang_up.set()
                writer.write(data)
        except ConnectionError:
            pass  # whoever goes may reset its connection
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())  # type: ignore[arg-type]
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", port)
        hang_up = asyncio.Event()
        await asyncio.gather(
            copy(reader, upstream, hang_up, replies=False), copy(upstream_reader, writer, hang_up, replies=True)
        )
        await asyncio.gather(writer.wait_closed(), upstream.wait_closed(), return_exceptions=True)

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with proxy:
        yield proxy.sockets[0].getsockname()[1], passing
    await asyncio.gather(*serving)


def sentinel_server(primary_port: int) -> servers.Server:
    server = servers.redis_server()
    config = server.directory / "sentinel.conf"
    config.write_text(
        f"port {server.port}\nbind 127.0.0.1\ndir {server.directory}\n"
        f"sentinel monitor payments 127.0.0.1 {primary_port} 1\n"
        "sentinel down-after-milliseconds payments 300\nsentinel failover-timeout payments 2000\n"
    )
    server.command = [server.command[0], str(config), "--sentinel"]
    return server


@contextmanager
def formed_cluster() -> Iterator[list[servers.Server]]:
    """Two primaries, half of the slots each, that a test may kill."""
    buses = [servers.free_port(), servers.free_port()]
    nodes = [servers.redis_server("--cluster-enabled", "yes", "--cluster-port", str(bus)).start() for bus in buses]
    try:
        with client(nodes[0]) as first, client(nodes[1]) as second:
            first.cluster("ADDSLOTSRANGE", 0, 8191)
            second.cluster("ADDSLOTSRANGE", 8192, 16383)
            first.cluster("MEET", "127.0.0.1", nodes[1].port, buses[1])
            sooner_or_later(
                lambda: all(node.cluster("INFO")["cluster_state"] == "ok" for node in (first, second)),
                within_s=FORMED_S_MAX,
            )
        yield nodes
    finally:
        for started in nodes:
            started.remove()


@contextmanager
def replica_of(primary: servers.Server) -> Iterator[servers.Server]:
    """A node that joins a cluster, and has all that one of its primaries has."""
    bus = servers.free_port()
    joining = servers.redis_server("--cluster-enabled", "yes", "--cluster-port", str(bus)).start()
    try:
        with client(primary) as at_primary, client(joining) as at_replica:
            of = at_primary.cluster("MYID")
            at_primary.cluster("MEET", "127.0.0.1", joining.port, bus)
            sooner_or_later(lambda: of in str(at_replica.cluster("NODES")), within_s=FORMED_S_MAX)
            at_replica.cluster("REPLICATE", of)
            replicated(at_primary)
        yield joining
    finally:
        joining.remove()
