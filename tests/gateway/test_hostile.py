"""Requests that nobody sends who means well: refused before long, and without a trace in what others are told."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from harness import eventually

from gateway.conftest import Served, serving
from holdfast.gateway import wire

HOST = b"host: localhost\r\n"
JOB = b'{"topic":"t"}'
LENGTH = b"content-length: %d\r\n" % len(JOB)
H2C = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
"""As Java's client and `curl --http2` send it with every request to a plain address."""


@asynccontextmanager
async def connected(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http.base_url.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def heard(reader: asyncio.StreamReader) -> bytes:
    """All that is said until the plane hangs up, which it must."""
    said = b""
    async with asyncio.timeout(10):
        # Who still sends when the other side hangs up finds out by a reset.
        with suppress(ConnectionResetError):
            while piece := await reader.read(1 << 16):
                said += piece
    return said


async def answer_to(served: Served, request: bytes) -> int:
    """The status, however the plane goes on."""
    async with connected(served) as (reader, writer), asyncio.timeout(10):
        writer.write(request)
        return int((await reader.readline()).split()[1])


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for anybody."""
    monkeypatch.setattr(wire, "HEAD_S", 0.2)
    monkeypatch.setattr(wire, "BODY_S", 0.4)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b"408"),
        (b"GET /livez HTTP/1.1\r\n", b"408"),
        (b"POST /v1/jobs HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + JOB[:5], b"408"),
        (b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n5\r\n", b"408"),
        (b"POST /v1/jobs HTTP/1.1\r\n" + HOST + LENGTH + b"expect: 100-continue\r\n\r\n", b"100"),
    ],
    ids=["nothing", "half a head", "half a body", "half a chunk", "no body after all"],
)
async def test_whoever_does_not_go_on_is_hung_up_on(served: Served, sent: bytes, status: bytes) -> None:
    async with connected(served) as (reader, writer):
        writer.write(sent)
        said = await heard(reader)

    assert said.startswith(b"HTTP/1.1 " + status)
    assert b"HTTP/1.1 408 " in said
    assert (await served.client.list()).items == []


@pytest.mark.usefixtures("hurried")
async def test_byte_by_byte_is_not_going_on(served: Served) -> None:
    async def drip() -> None:
        while True:
            writer.write(b"x: y\r\n")
            await asyncio.sleep(0.01)

    async with connected(served) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\n")
        dripping = asyncio.create_task(drip())
        said = await heard(reader)
        dripping.cancel()

    assert said.startswith(b"HTTP/1.1 408 ")


async def test_rest_of_what_was_refused_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal goes out before the body is read: whoever has no key could send without end."""
    monkeypatch.setattr(wire, "HEAD_S", 0.1)

    async def stream() -> None:
        while True:
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.01)

    async with serving(tmp_path, api_key="k") as served, connected(served) as (reader, writer):
        writer.write(b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n")
        streaming = asyncio.create_task(stream())
        said = await heard(reader)
        streaming.cancel()

    assert (said[:13], said.count(b"HTTP/1.1")) == (b"HTTP/1.1 401 ", 1)


@pytest.mark.usefixtures("hurried")
async def test_who_waits_for_an_answer_is_not_hurried(served: Served) -> None:
    job = await served.client.submit("t")
    async with connected(served) as (reader, writer), asyncio.timeout(10):
        writer.write(b"GET /v1/jobs/%b?wait=0.7 HTTP/1.1\r\n" % job.id.encode() + HOST + b"\r\n")
        first = await reader.readline()
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split()[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(length)
        writer.write(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")
        second = await reader.readline()

    assert (first, second) == (b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n")


async def test_whoever_does_not_read_is_not_kept_an_answer_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes each, for as long as they like: a process that is stopped is one of them."""
    for _ in range(8):
        await served.client.submit("t", "x" * 1_000_000)
    with monkeypatch.context() as impatient, socket.socket() as asking:
        impatient.setattr(wire, "READ_S", 0.05)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asking.connect(("127.0.0.1", served.http.base_url.port))
        asking.sendall(b"GET /v1/jobs HTTP/1.1\r\n" + HOST + b"\r\n")
        poll = select.poll()
        poll.register(asking, select.POLLHUP | select.POLLERR)

        async def is_reset() -> bool:
            return bool(poll.poll(0))  # the kernel tells, though nothing was read

        await eventually(is_reset)
    page = await served.http.get("/v1/jobs")

    assert len(page.content) > 7_000_000, "whoever reads is answered"


@pytest.mark.usefixtures("hurried")
async def test_half_a_head_behind_a_request_is_not_its_answer(served: Served) -> None:
    job = await served.client.submit("t")
    async with connected(served) as (reader, writer):
        writer.write(b"GET /v1/jobs/%b?wait=60 HTTP/1.1\r\n" % job.id.encode() + HOST + b"\r\nGET /livez HTTP/1.1\r\n")
        said = await heard(reader)

    assert said == b""


@pytest.mark.parametrize(
    "behind",
    [
        b"garbage\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + HOST + H2C + b"content-length: 1\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /livez HTTP/1.1\r\nx: " + b"y" * 8 * wire.HEAD_BYTES_MAX,
    ],
    ids=["no request", "another protocol", "no chunk", "head without end"],
)
@pytest.mark.parametrize("path", [b"/v1/jobs/%b?wait=60", b"/v1/events?job=%b"], ids=["long poll", "stream"])
async def test_refusal_of_what_comes_behind_a_request_is_not_its_answer(
    served: Served, path: bytes, behind: bytes
) -> None:
    """It may have been obeyed; and of a stream the refusal would be a part."""
    job = await served.client.submit("t")
    async with connected(served) as (reader, writer):
        writer.write(b"GET " + path % job.id.encode() + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        if b"events" in path:
            await reader.readuntil(b"\r\n\r\n")
        writer.write(behind)
        said = await heard(reader)

    assert b"HTTP/1.1" not in said


async def test_request_that_was_answered_before_it_was_whole_is_answered_once(served: Served) -> None:
    async with connected(served) as (reader, writer):
        writer.write(b"POST /nowhere HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n")
        said = await reader.readline()
        writer.write(b"zz\r\n")
        said += await heard(reader)

    assert (said[:13], said.count(b"HTTP/1.1")) == (b"HTTP/1.1 404 ", 1)


async def test_request_that_cannot_be_read_is_told_so_behind_one_that_was_answered(served: Served) -> None:
    async with connected(served) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")
        said = await reader.readuntil(b"alive\n")
        writer.write(b"garbage\r\n\r\n")
        said += await heard(reader)

    assert (said[:13], said.count(b"HTTP/1.1 400 ")) == (b"HTTP/1.1 200 ", 1)


@pytest.mark.parametrize("path", [b"/v1/jobs/%b?wait=60", b"/v1/events?job=%b"], ids=["long poll", "stream"])
async def test_whoever_hangs_up_with_more_requests_behind_is_not_waited_for(served: Served, path: bytes) -> None:
    """Whoever is served without a connection has a place until its time is over, and a traceback in the log then."""
    job = await served.client.submit("t")
    before = asyncio.all_tasks()

    async def is_forgotten() -> bool:
        return asyncio.all_tasks() <= before

    async with connected(served) as (_, writer):
        writer.write(b"GET " + path % job.id.encode() + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        writer.write(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n" * 2)
        await eventually(lambda: asyncio.sleep(0, not asyncio.all_tasks() <= before))
    await eventually(is_forgotten)


async def test_requests_that_wait_for_their_turn_are_not_kept_in_memory(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty megabytes of them, of somebody without a key, took seven hundred."""
    waiting: list[int] = []
    on_headers_complete = wire.Protocol.on_headers_complete

    def counted(protocol: wire.Protocol) -> None:
        on_headers_complete(protocol)
        waiting.append(len(protocol.pipeline))

    monkeypatch.setattr(wire.Protocol, "on_headers_complete", counted)
    request = b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n"
    async with connected(served) as (reader, writer), asyncio.timeout(30):
        writer.write(request * 10_000)
        for _ in range(10_000):
            await reader.readuntil(b"alive\n")

    assert len(waiting) == 10_000
    assert max(waiting) <= wire.PIECE_BYTES // len(request) + 1


@pytest.mark.parametrize(
    "before", [b"", b"GET /v1/events HTTP/1.1\r\n" + HOST + b"\r\n"], ids=["first", "behind another"]
)
async def test_head_without_end_is_not_kept(served: Served, before: bytes) -> None:
    sent = 0
    async with connected(served) as (reader, writer):
        writer.write(before)
        if before:
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /livez HTTP/1.1\r\n" + HOST)
        with pytest.raises(ConnectionError):  # in the middle of what it sends
            while sent < 64 << 20:
                writer.write(b"x-%d: %b\r\n" % (sent, b"y" * 10_000))
                sent += 10_000
                await writer.drain()

    assert sent < 64 << 20


@pytest.mark.parametrize(
    "piece",
    [b"x: y\r\n" * 2_000, b"x: " + b"y" * 10_000, b"1;x=" + b"y" * 10_000, b"0" * 10_000],
    ids=["trailers", "one trailer", "extension of a chunk", "length of a chunk"],
)
async def test_what_is_about_a_body_without_being_of_it_is_not_kept(served: Served, piece: bytes) -> None:
    """A hundred megabytes of it, of somebody without a key, took a gigabyte, or all the time of the plane."""
    sent = 0
    async with connected(served) as (_, writer):
        writer.write(
            b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(JOB) + JOB
        )
        writer.write(b"\r\n0\r\n" if piece.startswith(b"x") else b"\r\n")
        with pytest.raises(ConnectionError):  # in the middle of what it sends
            while sent < 8 << 20:
                writer.write(piece if not sent or piece.endswith(b"\n") else piece[-1:] * 10_000)
                sent += 10_000
                await writer.drain()

    assert (await served.client.list()).items == []


@pytest.mark.parametrize(
    "trailer", [b"authorization: Bearer k", b"holdfast-tenant: b", b"holdfast-actor: b", b"idempotency-key: b"]
)
async def test_what_comes_behind_a_body_is_no_header(tmp_path: Path, trailer: bytes) -> None:
    """Whoever stands before the plane, and takes away what callers say of themselves, has not looked there."""
    chunked = HOST + b"transfer-encoding: chunked\r\nconnection: close\r\n"
    body = b"\r\n%x\r\n" % len(JOB) + JOB + b"\r\n0\r\n" + trailer + b"\r\n\r\n"
    async with serving(tmp_path, api_key="k") as served:
        said = []
        for key in ([], [b"authorization: Bearer k\r\n"], [b"authorization: Bearer k\r\n"]):
            async with connected(served) as (reader, writer):
                writer.write(b"".join([b"POST /v1/jobs HTTP/1.1\r\n", chunked, *key, body]))
                said.append(int((await heard(reader)).split()[1]))
        jobs = (await served.client.list()).items

    assert said == [401, 202, 202]
    assert [job.actor for job in jobs] == ["", ""]


@pytest.mark.parametrize("upgrade", [H2C, b"connection: upgrade\r\nupgrade: websocket\r\n"], ids=["h2c", "websocket"])
@pytest.mark.parametrize("framing", [b"content-length: 19\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n13\r\n"])
async def test_body_of_who_wants_another_protocol_is_no_request_of_its_own(
    served: Served, upgrade: bytes, framing: bytes
) -> None:
    """The parser stops where the body begins: without it a run would be cancelled otherwise than was asked for, and what
    is in it be obeyed as the next request of whoever shares the connection."""
    job, other = await served.client.submit("t"), await served.client.submit("t")
    async with connected(served) as (reader, writer):
        writer.write(b"POST /v1/jobs/%b:cancel HTTP/1.1\r\n" % job.id.encode() + HOST + upgrade + framing)
        said = await reader.readline()  # the body comes as a piece of its own
        writer.write(b"POST /v1/jobs/%b:cancel HTTP/1.1\r\n" % other.id.encode() + HOST + b"\r\n")
        said += await heard(reader)

    assert (said[:13], said.count(b"HTTP/1.1")) == (b"HTTP/1.1 400 ", 1)
    assert {one.state for one in (await served.client.list()).items} == {"SCHEDULED"}


@pytest.mark.parametrize("upgrade", [H2C, b"connection: upgrade\r\nupgrade: websocket\r\n"], ids=["h2c", "websocket"])
async def test_other_protocols_are_not_spoken(served: Served, upgrade: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(served) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\n" + HOST + upgrade + b"\r\n")
        said = await heard(reader)

    assert said.startswith(b"HTTP/1.1 200 ")
    assert caplog.records == []


@pytest.mark.parametrize(
    "header",
    ["authorization: Bearer k", "holdfast-tenant: b", "holdfast-actor: b", "host: localhost", "idempotency-key: b"],
)
async def test_header_that_was_given_twice_is_not_chosen_from(tmp_path: Path, header: str) -> None:
    """Whoever stands before the plane, and looks at the first of two, must not have looked at the wrong one."""
    key = b"authorization: Bearer k\r\n"
    async with serving(tmp_path, api_key="k") as served:
        once = b"POST /v1/jobs HTTP/1.1\r\n" + HOST + key + LENGTH + b"holdfast-tenant: a\r\nholdfast-actor: a\r\n"
        once += b"idempotency-key: a\r\naccept: a\r\naccept: b\r\n"
        twice = once + header.encode() + b"\r\n"

        assert await answer_to(served, once + b"\r\n" + JOB) == 202
        assert await answer_to(served, twice + b"\r\n" + JOB) == 400


@pytest.mark.parametrize(
    "framing",
    [
        LENGTH + LENGTH,
        LENGTH + b"content-length: 5\r\n",
        LENGTH + b"transfer-encoding: chunked\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"content-length: -1\r\n",
        b"content-length: 1e1\r\n",
        LENGTH + b"a: b\r\n c\r\n",
        LENGTH + b"a: b\0c\r\n",
    ],
)
async def test_request_whose_end_is_doubtful_is_not_served(served: Served, framing: bytes) -> None:
    async with connected(served) as (reader, writer):
        writer.write(b"POST /v1/jobs HTTP/1.1\r\n" + HOST + framing + b"\r\n" + JOB)
        said = await heard(reader)

    assert (said[:13], said.count(b"HTTP/1.1")) == (b"HTTP/1.1 400 ", 1)
    assert (await served.client.list()).items == []
