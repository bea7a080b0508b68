"""HTTP/1.1 as far as a worker needs it: POSTs to one address, on kept connections.

A general client takes an order of magnitude more processor time for one exchange, and a worker
makes one for every few jobs.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple, cast

import httptools

CONNECTIONS_MAX = 32
CONNECT_S = 2.0
FINAL = 200


class BrokenExchange(Exception):
    """The request may have arrived, but no whole answer came back."""


class Reply(NamedTuple):
    status: int
    body: bytes


class Address:
    """Connections to one address, all used from one event loop."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    async def post(self, path: str, body: bytes, *, login: str, within_s: float) -> Reply:
        """One exchange. Raises `OSError` while connecting, `TimeoutError` or `BrokenExchange` after that.

        A caller who is cancelled or out of time cuts the connection: the server hears that nobody
        waits for the answer any more.
        """
        async with asyncio.timeout(within_s), self._room:
            connection = await self._take()
            self._busy.add(connection)
            try:
                reply = await connection.exchange(self._request(path, body, login))
            except BaseException:
                # The answer may still come, and would be taken for the next request's.
                connection.drop()
                raise
            finally:
                self._busy.discard(connection)
        if connection.usable and not self._closed:
            self._idle.append(connection)
        else:
            connection.drop()
        return reply

    def close(self) -> None:
        """Drop every connection; whoever still waits for an answer gets `BrokenExchange`."""
        self._closed = True
        for connection in [*self._idle, *self._busy]:
            connection.drop()
        self._idle.clear()

    async def _take(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        if self._closed:
            raise BrokenExchange("the link was closed")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop), self._host, self._port, ssl=self._tls
            )
        return connection

    def _request(self, path: str, body: bytes, login: str) -> bytes:
        authorization = f"Authorization: {login}\r\n" if login else ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}:{self._port}\r\n{authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class _Connection(asyncio.Protocol):
    """One exchange at a time. The `on_` methods are called by the parser."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._answer: asyncio.Future[Reply] | None = None
        self.usable = True

    def exchange(self, request: bytes) -> asyncio.Future[Reply]:
        assert self._transport is not None
        self._answer = self._loop.create_future()
        self._transport.write(request)
        return self._answer

    def drop(self) -> None:
        self._break("the connection was dropped")
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.drop()  # an answer to nothing that was asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(f"not HTTP: {error}")
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(f"the connection was lost: {exc or 'closed by the other side'}")

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < FINAL:
            return  # a word on the way: the answer comes after it
        self.usable = self.usable and self._parser.should_keep_alive()
        reply = Reply(self._parser.get_status_code(), b"".join(self._body))
        self._body.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(reply)

    def _break(self, why: str) -> None:
        self.usable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BrokenExchange(why))
