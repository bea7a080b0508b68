"""Connections to one address for code in an event loop: one exchange after the other on each, and kept for the next."""

from __future__ import annotations

import asyncio
import math
import select
import ssl
from collections.abc import Callable
from typing import cast

from holdfast.http1.answer import Answer, BrokenExchange, Reply

IDLE_MAX = 100
UNREAD_MAX = 256 << 10
"""Bytes that come before somebody asks for news again. Who reads slower than they come lets the other side wait."""


class Links:
    """All used from one event loop."""

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None, connect_s: float, keep_s: float = math.inf
    ) -> None:
        """Connections that nobody has used for `keep_s` are not used again."""
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_s = connect_s
        self._keep_s = keep_s
        self._idle: list[tuple[Link, float]] = []
        """With the time since which nobody uses it."""
        self._busy: set[Link] = set()
        self._closed = False

    async def take(self) -> Link:
        """A connection, for `ask`, or until its `end`. Raises `OSError`, and `BrokenExchange` after `close`: nothing was sent."""
        loop = asyncio.get_running_loop()
        while self._idle:
            link, since = self._idle.pop()
            if link.is_usable and loop.time() - since < self._keep_s and link.is_silent():
                self._busy.add(link)
                return link
            link.drop()
        if self._closed:
            raise BrokenExchange("the link was closed")
        async with asyncio.timeout(self._connect_s):
            _, link = await loop.create_connection(lambda: Link(loop), self._host, self._port, ssl=self._tls)
        self._busy.add(link)
        return link

    async def ask(self, link: Link, request: bytes, *, heard: Callable[[], None] | None = None) -> Reply:
        """One exchange on a connection that was taken for it. Raises `BrokenExchange`. `heard` is called for each piece of
        the answer.

        A caller who is cancelled or out of time cuts the connection: the server hears that nobody
        waits for the answer any more.
        """
        try:
            link.send(request)
            while not link.answer.is_complete:
                await link.news()
                if heard is not None:
                    heard()
        except BaseException:
            # The answer may still come, and would be taken for the next request's.
            self.end(link)
            raise
        reply = link.answer.reply()
        if len(self._idle) >= IDLE_MAX:
            self._idle = [kept for kept in self._idle if kept[0].is_usable]  # the other side ends them by and by
        if link.is_usable and len(self._idle) < IDLE_MAX and not self._closed:
            self._busy.discard(link)
            self._idle.append((link, asyncio.get_running_loop().time()))
        else:
            self.end(link)
        return reply

    def end(self, link: Link) -> None:
        """One that was taken is not used again."""
        self._busy.discard(link)
        link.drop()

    def close(self) -> None:
        """Drop every connection; whoever still waits for an answer gets `BrokenExchange`."""
        self._closed = True
        for link in [*(link for link, _ in self._idle), *self._busy]:
            link.drop()
        self._idle.clear()


class Link(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer = Answer()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None
        self._is_asked = False
        self._unread = 0
        self._news: asyncio.Future[None] | None = None
        self._broken: BrokenExchange | None = None

    @property
    def is_usable(self) -> bool:
        return self._broken is None and self.answer.may_follow

    def is_silent(self) -> bool:
        """Whether nothing has come since the last answer: not even its end, as from a plane that was stopped. The loop may not
        have got to it yet."""
        if self._poll is None:
            assert self._transport is not None
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return not self._poll.poll(0)

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self.answer.expect()
        self._is_asked = True
        self._transport.write(request)

    def news(self) -> asyncio.Future[None]:
        """More of the answer than is there at this moment. Raises `BrokenExchange`."""
        self._news = self._loop.create_future()
        if self._broken is not None:
            self._news.set_exception(self._broken)
        elif self._unread > UNREAD_MAX:
            assert self._transport is not None
            self._transport.resume_reading()
        self._unread = 0
        return self._news

    def drop(self) -> None:
        self._break("the connection was dropped")
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class

    def data_received(self, data: bytes) -> None:
        if not self._is_asked or self.answer.is_complete:
            self.drop()  # an answer to nothing that was asked
            return
        try:
            self.answer.feed(data)
        except BrokenExchange as why:
            self._break(str(why))
            self.drop()
            return
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        else:
            self._keep_unread(len(data))

    def _keep_unread(self, more: int) -> None:
        assert self._transport is not None
        fits = self._unread <= UNREAD_MAX
        self._unread += more
        if fits and self._unread > UNREAD_MAX:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(f"the connection was lost: {exc or 'closed by the other side'}")

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = BrokenExchange(why)
        if self._news is not None and not self._news.done():
            self._news.set_exception(self._broken)
