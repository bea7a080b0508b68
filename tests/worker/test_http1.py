"""What a worker posts to servers that answer well, badly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from holdfast.http1 import links
from holdfast.http1.answer import BrokenExchange, Reply
from holdfast.http1.links import UNREAD_MAX, Link
from holdfast.worker.http1 import Address

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request with what `answer` makes of its number; None hangs."""

    def __init__(self, answer: Callable[[int], bytes | None]) -> None:
        self._answer = answer
        self.connections = 0
        self.requests: list[bytes] = []
        self.hung_up = asyncio.Event()
        self.serving: set[asyncio.Task[None]] = set()

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.create_task(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError):
            while request := await reader.read(65536):
                self.requests.append(request)
                answer = self._answer(len(self.requests))
                if answer == b"":
                    break
                for byte in answer or b"":  # in the smallest pieces
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0)
        self.hung_up.set()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def served(answer: Callable[[int], bytes | None]) -> AsyncIterator[tuple[Server, Address]]:
    server = Server(answer)
    listener = await asyncio.start_server(server.connect, "127.0.0.1", 0)
    address = Address("127.0.0.1", listener.sockets[0].getsockname()[1], tls=None)
    yield server, address
    address.close()
    listener.close()
    await asyncio.gather(*server.serving)


async def post(address: Address, *, within_s: float = 5.0) -> Reply:
    return await address.post("/v1/work/claim", b"{}", login="Bearer key", within_s=within_s)


async def test_connection_is_kept() -> None:
    async with served(lambda _: OK) as (server, address):
        assert [await post(address), await post(address)] == [Reply(200, b"ok", "OK"), Reply(200, b"ok", "OK")]

    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /v1/work/claim HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer key\r\n" in server.requests[0]


@pytest.mark.parametrize("first", ["100 Continue", "103 Early Hints\r\nLink: </x>"])
async def test_word_that_comes_before_the_answer_is_none(first: str) -> None:
    """A proxy may send some unasked, and has not heard the plane yet."""
    async with served(lambda _: f"HTTP/1.1 {first}\r\n\r\n".encode() + OK) as (server, address):
        assert [await post(address), await post(address)] == [Reply(200, b"ok", "OK"), Reply(200, b"ok", "OK")]

    assert server.connections == 1


async def test_answer_in_chunks_and_a_connection_that_is_not_to_be_kept() -> None:
    chunked = b"HTTP/1.1 409 No\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nn\r\n1\r\no\r\n0\r\n\r\n"
    async with served(lambda _: chunked) as (server, address):
        assert [await post(address), await post(address)] == [Reply(409, b"no", "No"), Reply(409, b"no", "No")]

    assert server.connections == 2


@pytest.mark.parametrize("answer", [b"", b"not HTTP at all\r\n\r\n"])
async def test_exchange_without_a_whole_answer_is_broken_and_the_next_one_has_a_fresh_connection(answer: bytes) -> None:
    async with served(lambda number: answer if number == 1 else OK) as (server, address):
        with pytest.raises(BrokenExchange):
            await post(address)
        assert await post(address) == Reply(200, b"ok", "OK")

    assert server.connections == 2


async def test_caller_who_is_out_of_time_hangs_up() -> None:
    """The plane must not start a job for somebody who does not wait any more."""
    async with served(lambda number: None if number == 1 else OK) as (server, address):
        with pytest.raises(TimeoutError):
            await post(address, within_s=0.05)
        await asyncio.wait_for(server.hung_up.wait(), 10)
        assert await post(address) == Reply(200, b"ok", "OK")


async def test_closing_ends_an_exchange() -> None:
    async with served(lambda _: None) as (server, address):
        waiting = asyncio.create_task(post(address))
        while not server.requests:
            await asyncio.sleep(0.001)
        address.close()

        with pytest.raises(BrokenExchange):
            await waiting
        with pytest.raises(BrokenExchange):
            await post(address)


async def test_no_more_connections_are_kept_than_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "IDLE_MAX", 2)
    async with served(lambda _: OK) as (server, address):
        for _ in range(2):
            await asyncio.gather(*(post(address) for _ in range(3)))

    assert server.connections == 4, "two of the first three are used again"


async def test_nobody_there_is_an_os_error() -> None:
    with pytest.raises(OSError):  # noqa: PT011  (refused, or unreachable, as the system says)
        await Address("127.0.0.1", 1, tls=None).post("/", b"", login="", within_s=2)


class Sluice(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_open = True

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def pause_reading(self) -> None:
        assert self.is_open
        self.is_open = False

    def resume_reading(self) -> None:
        assert not self.is_open
        self.is_open = True


async def test_who_reads_slowly_lets_the_other_side_wait() -> None:
    link, sluice = Link(asyncio.get_running_loop()), Sluice()
    link.connection_made(sluice)
    link.send(b"GET / HTTP/1.1\r\n\r\n")
    link.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    while sluice.is_open:
        link.data_received(b"%x\r\n%s\r\n" % (UNREAD_MAX // 4, b"x" * (UNREAD_MAX // 4)))
    assert len(link.answer.take()) <= 2 * UNREAD_MAX
    more = link.news()
    assert sluice.is_open
    link.data_received(b"1\r\ny\r\n")
    await more
    assert link.answer.take() == b"y"
