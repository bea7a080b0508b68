"""What leaves the plane's sockets, and in how many pieces."""

from __future__ import annotations

import asyncio

import pytest

from gateway.conftest import Served
from holdfast.gateway.wire import HEAD_BYTES_MAX, Gathering


class Recorded(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.did: list[object] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.did.append(bytes(data))

    def close(self) -> None:
        self.did.append("close")

    def is_closing(self) -> bool:
        return "close" in self.did


async def test_what_is_written_in_one_turn_leaves_in_one_piece() -> None:
    inner = Recorded()
    transport = Gathering(inner)

    transport.write(b"head ")
    transport.write(b"body")
    assert inner.did == []
    await asyncio.sleep(0)
    transport.write(b"more")
    await asyncio.sleep(0)

    assert inner.did == [b"head body", b"more"]


async def test_what_is_written_leaves_at_once_where_that_is_asked_for() -> None:
    inner = Recorded()
    transport = Gathering(inner)

    transport.write(b"head ")
    transport.write(b"body")
    transport.flush()
    assert inner.did == [b"head body"]
    await asyncio.sleep(0)

    assert inner.did == [b"head body"], "once"


async def test_nothing_is_lost_by_closing() -> None:
    inner = Recorded()
    transport = Gathering(inner)

    transport.write(b"last words")
    transport.close()
    await asyncio.sleep(0)

    assert inner.did == [b"last words", "close"]
    assert transport.is_closing()


@pytest.mark.parametrize("many", [20, 5 * HEAD_BYTES_MAX // 40], ids=["some", "more than a head may have"])
async def test_answer_is_whole_for_a_caller_who_asks_for_many_at_once(served: Served, many: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http.base_url.port)
    writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" * many)
    writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")

    everything = await asyncio.wait_for(reader.read(), 30)
    writer.close()

    assert everything.count(b"HTTP/1.1 200 OK") == many + 1


async def test_answer_that_is_written_whole_looks_like_any_other(served: Served) -> None:
    port = served.http.base_url.port
    ask = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n%b\r\n"

    kept, closed = await _answer(port, ask % b""), await _answer(port, ask % b"connection: close\r\n")
    head = await _answer(port, b"HEAD /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")

    assert kept == [line for line in closed if line != b"connection: close"]
    assert kept[0] == b"HTTP/1.1 200 OK"
    assert head == [*kept[:-1], b""], "no body, and the length of the one that there would be"


async def _answer(port: int | None, request: bytes) -> list[bytes]:
    """Its lines, without the time of day."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split()[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    body = b"" if request.startswith(b"HEAD") else await reader.readexactly(length)
    writer.close()
    return [*(line for line in head.split(b"\r\n")[:-2] if not line.startswith(b"date:")), body]
