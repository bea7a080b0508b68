"""How the etcd store connects and logs in, and what it says when an answer does not come."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import servers
from etcd_stores import LONG, answered, granted, make, own_server, post
from harness import SOON_S, eventually

from holdfast.locks.errors import StoreRefused, Unavailable
from holdfast.locks.port import Busy, Grant, LockStore, Renewal, Standing
from holdfast.locks.stores.etcd.api import Gateway

A, B = "a" * 32, "b" * 32


@pytest.fixture
def server() -> Iterator[servers.Server]:
    with own_server() as started:
        yield started


async def enable_logins(server: servers.Server) -> None:
    await post(server, "/v3/auth/user/add", name="root", password="s3cret")
    await post(server, "/v3/auth/role/add", name="root")
    await post(server, "/v3/auth/user/grant", user="root", role="root")
    await post(server, "/v3/auth/enable")


async def test_next_endpoint_is_tried_where_none_listens(server: servers.Server) -> None:
    store = make(f"etcd://127.0.0.1:{servers.free_port()},127.0.0.1:{server.port}")
    await store.open()
    try:
        fence = await granted(store, "p:k", A)
        holder = await store.find_holder("p:k")
    finally:
        await store.close()

    assert holder is not None
    assert holder.fence == fence


async def test_nobody_listening_means_not_applied() -> None:
    store = make(f"etcd://127.0.0.1:{servers.free_port()}")

    with pytest.raises(Unavailable) as caught:
        await store.open()

    assert caught.value.applied is False


async def test_url_must_name_a_server() -> None:
    with pytest.raises(ValueError, match="names no server"):
        make("etcd://")


async def test_hung_server_is_unavailable_with_unknown_outcome_and_in_time(server: servers.Server) -> None:
    store = make(server.url, timeout_s=0.5)
    await store.open()
    await granted(store, "p:k", A)
    server.pause()
    began = time.monotonic()

    with pytest.raises(Unavailable) as caught:
        await store.acquire("p:other", B, ttl_ms=LONG)

    assert caught.value.applied is None
    assert time.monotonic() - began < SOON_S
    server.resume()
    assert await eventually(lambda: answered(store, "p:k", A))
    await store.close()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
async def test_watch_of_a_server_that_falls_silent_ends_in_time(said: bytes) -> None:
    """Else waiters would be left to polling, although the next endpoint is well."""
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        with suppress(OSError):
            await reader.read()  # to the end, which is the client's
            writer.close()
            await writer.wait_closed()
        left.set()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    gateway = Gateway(f"etcd://127.0.0.1:{listener.sockets[0].getsockname()[1]}", timeout_s=0.1)
    await gateway.open()

    with pytest.raises(Unavailable):
        async with asyncio.timeout(5):
            await gateway.watch_deletes(
                b"a", b"b", created=lambda: pytest.fail("nobody said so"), deleted=lambda _: None
            )

    await gateway.close()
    await left.wait()
    listener.close()


async def test_login_is_required_checked_and_never_shown(server: servers.Server) -> None:
    await enable_logins(server)
    address = f"127.0.0.1:{server.port}"
    for url in [f"etcd://{address}", f"etcd://root:wr0ng@{address}", f"etcd://nobody:wr0ng@{address}"]:
        store = make(url)
        with pytest.raises(StoreRefused, match="user and the password") as caught:
            await store.open()
        assert "wr0ng" not in str(caught.value)

    store = make(f"etcd://root:s3cret@{address}")
    await store.open()
    await granted(store, "p:k", A)
    await store.close()


async def test_user_needs_the_prefix_and_no_more(server: servers.Server) -> None:
    await post(server, "/v3/auth/user/add", name="locker", password="s3cret")
    await post(server, "/v3/auth/role/add", name="locks")
    everything = {"permType": "READWRITE", "key": base64.b64encode(b"p:").decode(), "range_end": "cDs="}
    await post(server, "/v3/auth/role/grant", name="locks", perm=everything)
    await post(server, "/v3/auth/user/grant", user="locker", role="locks")
    await enable_logins(server)
    store = make(f"etcd://locker:s3cret@127.0.0.1:{server.port}")
    await store.open()
    woken = asyncio.Event()
    store.on_wake(lambda k, t: woken.set() if t == B else None)

    fence = await granted(store, "p:k", A)
    await store.acquire("p:k", B, ttl_ms=LONG, queue_ms=LONG)
    assert await store.renew([Renewal("p:k", A, LONG)]) == [Standing.OWNED]
    assert [holder.fence for holder in await store.list_holders("p:")] == [fence]
    assert await store.release("p:k", A)
    await asyncio.wait_for(woken.wait(), 5)
    assert len(await store.list_history("p:k")) == 2
    with pytest.raises(StoreRefused, match="Grant the user"):
        await store.acquire("q:k", A, ttl_ms=LONG)

    await store.close()


async def test_forgotten_login_is_repeated(server: servers.Server) -> None:
    await enable_logins(server)
    store = make(f"etcd://root:s3cret@127.0.0.1:{server.port}")
    await store.open()
    await granted(store, "p:k", A)
    server.kill()
    server.start()  # a server keeps its login tokens in memory

    assert await eventually(lambda: answered(store, "p:k", A))

    await store.close()


async def test_server_without_gateway_is_refused() -> None:
    server = servers.etcd_server()
    server.command = [*server.command, "--enable-grpc-gateway=false"]
    server.start()
    store = make(server.url)
    try:
        with pytest.raises(StoreRefused, match="gRPC gateway"):
            await store.open()
    finally:
        server.remove()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
async def test_tls_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    server = servers.etcd_server()
    tls = [
        str(part).replace(f"http://127.0.0.1:{server.port}", f"https://127.0.0.1:{server.port}")
        for part in server.command
    ]
    server.command = [*tls, "--cert-file", str(certificate), "--key-file", str(key)]
    server.ready = lambda server: servers._accepts(server.port)
    server.start()
    address = f"etcds://127.0.0.1:{server.port}"
    try:
        distrusting = make(address)
        with pytest.raises(StoreRefused, match=r"not trusted.*ca=FILE"):
            await distrusting.open()
        store = make(f"{address}?ca={certificate}")
        assert await eventually(lambda: opened(store))
        await granted(store, "p:k", A)
        await store.close()
    finally:
        server.remove()


async def opened(store: LockStore) -> bool:
    try:
        await store.open()
    except Unavailable:
        return False
    return True


class Passing:
    """A proxy that hands on what it gets, both ways, until one side ends."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.serving: list[asyncio.Task[None] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        upstream, out = await asyncio.open_connection("127.0.0.1", self._port)
        answering = asyncio.create_task(self._answer(upstream, writer))
        with suppress(OSError):  # a client that goes may reset its connection
            while request := await reader.read(65536):
                await self.let_pass(request)
                out.write(request)
        with suppress(OSError):
            out.write_eof()  # else the other side would wait for more, and so would we
        await asyncio.wait([answering])
        out.close()
        await asyncio.gather(answering, out.wait_closed(), writer.wait_closed(), return_exceptions=True)

    async def _answer(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (part := await upstream.read(65536)) and self.answers():
                writer.write(part)
        finally:
            writer.close()

    async def let_pass(self, request: bytes) -> None:
        """Return when it may go on."""

    def answers(self) -> bool:
        return True


class Lossy(Passing):
    """From the `lose`-th request on, it ends the connection instead of answering."""

    lose = sys.maxsize

    async def let_pass(self, request: bytes) -> None:
        del request
        self.lose -= 1

    def answers(self) -> bool:
        return self.lose >= 0


@pytest.fixture
async def lossy(server: servers.Server) -> AsyncIterator[tuple[Lossy, LockStore]]:
    proxy = Lossy(server.port)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    store = make(f"etcd://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    await store.open()
    yield proxy, store
    await store.close()
    listener.close()
    await asyncio.wait([task for task in proxy.serving if task])


@pytest.mark.parametrize("verb", ["acquire", "wait", "release"])
async def test_verb_may_be_repeated_whichever_reply_was_lost(lossy: tuple[Lossy, LockStore], verb: str) -> None:
    proxy, store = lossy

    async def run(key: str) -> Grant | Busy | bool:
        if verb == "release":
            return await store.release(key, A)
        return await store.acquire(key, A, ttl_ms=LONG, queue_ms=LONG if verb == "wait" else 0)

    for lost in range(8):
        key = f"p:{lost}"
        fence = await granted(store, key, A if verb == "release" else B) if verb != "acquire" else 0
        proxy.lose = lost
        try:
            first = await run(key)
        except Unavailable:
            first = None
        proxy.lose = sys.maxsize
        again = await run(key)

        if verb == "acquire":
            assert isinstance(again, Grant)
            assert first in (None, again)
        elif verb == "wait":
            await store.release(key, B)
            assert await granted(store, key, A) > fence
        else:
            assert first in (None, True)
            assert await store.find_holder(key) is None
        lines = [line.event for line in await store.list_history(key)]
        assert lines == {"acquire": ["granted"], "wait": ["granted", "released", "granted"]}.get(
            verb, ["granted", "released"]
        )


async def test_closing_ends_what_is_under_way(server: servers.Server) -> None:
    store = make(server.url)
    await store.open()
    server.pause()
    call = asyncio.ensure_future(store.acquire("p:k", A, ttl_ms=LONG))
    await asyncio.sleep(0.05)

    await store.close()

    with pytest.raises(Unavailable):
        await call
    server.resume()


async def test_closing_leaves_no_task_behind(server: servers.Server) -> None:
    store = make(server.url)
    await store.open()
    server.pause()
    call = asyncio.ensure_future(store.acquire("p:k", A, ttl_ms=LONG, queue_ms=LONG))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.wait([call])

    await store.close()

    assert asyncio.all_tasks() == {asyncio.current_task()}
    server.resume()


async def test_clients_that_vanish_in_the_middle_leave_the_server_alive(server: servers.Server) -> None:
    """etcd before 3.4.20 and 3.5.5 panics if it loses the client of a read-only transaction."""
    keys = [f"p:{n}" for n in range(20)]
    for n in range(50):
        store = make(server.url)
        await store.open()
        verbs = [
            store.renew([Renewal(key, A, LONG) for key in keys]),
            store.list_holders("p:"),
            *(store.acquire(key, A, ttl_ms=LONG, queue_ms=LONG) for key in keys),
            *(store.find_holder(key) for key in keys),
            *(store.release(key, B) for key in keys),
        ]
        calls = asyncio.gather(*verbs, return_exceptions=True)
        await asyncio.sleep(n % 10 / 1000)
        await store.close()
        await calls

    assert server.process is not None
    assert server.process.poll() is None


class Delaying(Passing):
    """It keeps transactions back while `passing` is not set."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.passing = asyncio.Event()
        self.kept = asyncio.Event()

    async def let_pass(self, request: bytes) -> None:
        if b" /v3/kv/txn " in request and not self.passing.is_set():
            self.kept.set()
            await self.passing.wait()


@pytest.mark.parametrize("cause", ["cancelled", "timeout"])
async def test_release_undoes_an_acquire_that_arrives_after_it(server: servers.Server, cause: str) -> None:
    proxy = Delaying(server.port)
    proxy.passing.set()
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    store = make(f"etcd://127.0.0.1:{listener.sockets[0].getsockname()[1]}", timeout_s=1.0)
    await store.open()
    await granted(store, "p:warm", A)
    proxy.passing.clear()
    call = asyncio.ensure_future(store.acquire("p:k", A, ttl_ms=LONG))
    await proxy.kept.wait()
    if cause == "cancelled":
        call.cancel()
    await asyncio.wait([call])
    with pytest.raises(Unavailable if cause == "timeout" else asyncio.CancelledError):
        call.result()

    assert not await store.release("p:k", A)
    proxy.passing.set()
    await granted(store, "p:later", A)

    assert [holder.key for holder in await store.list_holders("p:")] == ["p:later", "p:warm"]
    assert [line.event for line in await store.list_history("p:k")] == []
    await store.close()
    listener.close()
    await asyncio.wait([task for task in proxy.serving if task])
