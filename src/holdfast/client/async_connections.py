"""HTTP for code in a loop: a general client takes more processor time for a request than the plane does."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncGenerator
from typing import Any

from holdfast.client import replies
from holdfast.client.asks import ANSWER_S, Ask
from holdfast.client.replies import Plane
from holdfast.errors import PlaneUnavailable
from holdfast.http1.answer import BrokenExchange, Reply
from holdfast.http1.links import Link, Links

QUICK_MAX = 100
PATIENT_MAX = 1000
"""Requests at once: of those that are answered at once, and of those that wait for something to happen. Whoever comes
then waits for one of them to end; who cancels a job does not wait for those who wait for its end."""
TIMED_OUT = "timed out"


class AsyncConnections:
    """To one plane, kept for the next request. All used from one loop."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        tls = ssl.create_default_context() if plane.scheme == "https" else None
        port = plane.port or plane.usual_port
        self._links = Links(plane.host, port, tls=tls, connect_s=ANSWER_S, keep_s=replies.KEEP_S)
        self._quick = asyncio.Semaphore(QUICK_MAX)
        self._patient = asyncio.Semaphore(PATIENT_MAX)

    def close(self) -> None:
        self._links.close()

    async def request(self, ask: Ask[Any], *, within_s: float = math.inf) -> Reply:
        """Raises `PlaneUnavailable`, at the latest after `within_s`, whatever it has waited for by then."""
        request, link = self._plane.encoded(ask), None
        try:
            async with asyncio.timeout(None if within_s == math.inf else within_s):
                async with self._patient if ask.answer_s > ANSWER_S else self._quick:
                    link = await self._links.take()
                    return await self._exchange(link, request, ask.answer_s)
        except (OSError, BrokenExchange) as why:
            raise self._unreachable(why, sent=link is not None, method=ask.method) from why

    async def _exchange(self, link: Link, request: bytes, answer_s: float) -> Reply:
        loop = asyncio.get_running_loop()
        until = loop.time() + answer_s + replies.WHOLE_S
        async with asyncio.timeout(answer_s) as patience:
            # With its silence; and, to an end, with how much it has to say.
            def heard() -> None:
                patience.reschedule(min(loop.time() + answer_s, until))

            return await self._links.ask(link, request, heard=heard)

    async def stream(self, target: str, *, silence_s: float) -> AsyncGenerator[str]:
        """The lines of an answer, whole ones only. Raises what the plane says instead, and `PlaneUnavailable`."""
        link = await self._take()
        answer = link.answer
        try:
            link.send(self._plane.encoded_look(target))
            async with asyncio.timeout(silence_s):  # in all: a stream may go on for ever, what comes before it may not
                while not answer.has_head or (answer.status >= 400 and not answer.is_complete):
                    await link.news()
            if answer.status >= 400:
                raise replies.to_error(answer.reply(), self._plane)
            replies.check_stream(answer.content_type, self._plane)
            rest = b""
            while True:
                if text := answer.take():
                    lines, rest = replies.whole_lines(rest + text)
                    for line in lines:
                        yield line
                elif answer.is_complete:
                    return
                else:
                    await _news(link, silence_s)
        except (TimeoutError, BrokenExchange) as why:
            raise self._unreachable(why) from why
        finally:
            self._links.end(link)

    async def _take(self) -> Link:
        try:
            return await self._links.take()
        except (OSError, BrokenExchange) as why:
            raise self._unreachable(why, sent=False) from why

    def _unreachable(self, why: Exception, *, sent: bool = True, method: str = "GET") -> PlaneUnavailable:
        told = TimeoutError(TIMED_OUT) if isinstance(why, TimeoutError) else why
        return replies.unreachable(self._plane, told, sent=sent, method=method)


async def _news(link: Link, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        await link.news()
