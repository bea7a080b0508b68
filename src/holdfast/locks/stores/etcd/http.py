"""HTTP/1.1 as far as etcd's gateway needs it: POSTs on kept connections, and one answer that streams.

A general client takes twelve times as much processor time for one exchange (1.4 against 0.11 ms
with httpx), and a lock takes five of them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple

CONNECTIONS_MAX = 32


class BrokenExchange(Exception):
    """The request may have arrived, but no whole answer came back."""


class Reply(NamedTuple):
    status: int
    body: bytes


class Endpoint:
    """Connections to one address. All raise `OSError` while connecting, and `BrokenExchange` after that."""

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None, connect_s: float, exchange_s: float
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_s = connect_s
        self._exchange_s = exchange_s
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)
        self._connections: set[_Connection] = set()
        self._idle: list[_Connection] = []
        self._exchanges: set[asyncio.Task[Reply]] = set()
        self._closed = False

    def open(self) -> None:
        self._closed = False

    async def post(self, path: str, body: bytes, *, login: str = "") -> Reply:
        """One exchange. It goes on without a caller who is cancelled: cutting it off would cancel
        the request inside of the server, at any point, and cost the connection."""
        await self._room.acquire()
        try:
            connection = await self._take()
        except BaseException:
            self._room.release()
            raise
        exchange = asyncio.create_task(self._exchange(connection, self._request(path, body, login)))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._ended)
        await asyncio.wait([exchange])  # which, unlike a plain await, leaves the task alone when cancelled
        return exchange.result()

    @asynccontextmanager
    async def stream(self, path: str, body: bytes, *, login: str = "") -> AsyncIterator[_Connection]:
        """A connection of its own whose answer is read by `line()`. Raises if that is not a stream."""
        connection = await self._take()
        try:
            await connection.begin_stream(self._request(path, body, login), within_s=self._exchange_s)
            yield connection
        finally:
            self._drop(connection)

    async def close(self) -> None:
        """Drop every connection; whoever still waits for an answer gets `BrokenExchange`."""
        self._closed = True
        self._idle.clear()
        connections = list(self._connections)
        for connection in connections:
            self._drop(connection)
        for connection in connections:
            await connection.wait_dropped()
        if self._exchanges:
            await asyncio.wait(self._exchanges)  # their connections are gone, so they end at once

    async def _exchange(self, connection: _Connection, request: bytes) -> Reply:
        try:
            reply = await connection.exchange(request, within_s=self._exchange_s)
        except BaseException:
            # The answer may still come, and would be taken for the next request's.
            self._drop(connection)
            raise
        finally:
            self._room.release()
        if connection.reusable:
            self._idle.append(connection)
        else:
            self._drop(connection)
        return reply

    def _ended(self, exchange: asyncio.Task[Reply]) -> None:
        self._exchanges.discard(exchange)
        if not exchange.cancelled():
            exchange.exception()  # seen, even if the caller has gone

    async def _take(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                return connection
            self._drop(connection)
        self._check_open()  # for those who had to wait for room
        async with asyncio.timeout(self._connect_s):
            connection = _Connection(*await asyncio.open_connection(self._host, self._port, ssl=self._tls))
        self._connections.add(connection)
        try:
            self._check_open()
        except BrokenExchange:
            self._drop(connection)
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise BrokenExchange("the store was closed")

    def _drop(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        connection.drop()

    def _request(self, path: str, body: bytes, login: str) -> bytes:
        authorization = f"Authorization: {login}\r\n" if login else ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}:{self._port}\r\n{authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._headers: dict[str, str] = {}
        self._rest = b""

    def usable(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    @property
    def reusable(self) -> bool:
        return self._headers.get("connection", "").lower() != "close" and self.usable()

    async def exchange(self, request: bytes, *, within_s: float) -> Reply:
        # A timeout is an OSError, hence a broken exchange: the request has been sent.
        with _broken():
            async with asyncio.timeout(within_s):
                return await self._exchange(request)

    async def _exchange(self, request: bytes) -> Reply:
        status = await self._begin(request)
        if not self._chunked:
            return Reply(status, await self._reader.readexactly(int(self._headers["content-length"])))
        body = b""
        while chunk := await self._chunk():
            body += chunk
        return Reply(status, body)

    async def begin_stream(self, request: bytes, *, within_s: float) -> None:
        with _broken():
            async with asyncio.timeout(within_s):
                status = await self._begin(request)
        if status != 200 or not self._chunked:
            raise BrokenExchange(f"HTTP status {status} instead of a stream")

    async def line(self) -> bytes:
        """The next line of a stream; empty at its end."""
        while b"\n" not in self._rest:
            with _broken():
                chunk = await self._chunk()
            if not chunk:
                return b""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line + b"\n"

    def drop(self) -> None:
        self._writer.transport.abort()

    async def wait_dropped(self) -> None:
        with suppress(OSError):
            await self._writer.wait_closed()

    @property
    def _chunked(self) -> bool:
        return self._headers.get("transfer-encoding", "").lower() == "chunked"

    async def _begin(self, request: bytes) -> int:
        """Send, and read as far as the headers: the status."""
        self._writer.write(request)
        await self._writer.drain()
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.rstrip().split("\r\n")
        fields = (line.partition(":") for line in lines)
        self._headers = {name.lower(): value.strip() for name, _, value in fields}
        return int(status_line.split()[1])

    async def _chunk(self) -> bytes:
        size = int((await self._reader.readline()).partition(b";")[0], 16)
        if size:
            return (await self._reader.readexactly(size + 2))[:-2]
        while (await self._reader.readline()).strip():
            pass  # trailers, up to an empty line
        return b""


@contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, asyncio.LimitOverrunError, LookupError, ValueError) as why:
        raise BrokenExchange(f"{type(why).__name__}: {why}") from why
