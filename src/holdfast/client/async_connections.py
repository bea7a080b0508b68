"""HTTP for code in a loop: a general client takes more processor time for a request than the plane does."""

from __future__ import annotations

import asyncio
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

    async def request(self, ask: Ask[Any]) -> Reply:
        """Raises `PlaneUnavailable`."""
        request = self._plane.encoded(ask)
        async with self._patient if ask.answer_s > ANSWER_S else self._quick:
            link = await self._take()
            try:
                async with asyncio.timeout(ask.answer_s) as patience:
                    # Of its silence, not of how much it has to say.
                    return await self._links.ask(link, request, heard=lambda: _begin_anew(patience, ask.answer_s))
            except (TimeoutError, BrokenExchange) as why:
                raise self._unreachable(why, method=ask.method) from why

    async def stream(self, target: str, *, silence_s: float) -> AsyncGenerator[str]:
        """The lines of an answer, whole ones only. Raises what the plane says instead, and `PlaneUnavailable`."""
        link = await self._take()
        answer = link.answer
        try:
            link.send(self._plane.encoded_look(target))
            while not answer.has_head:
                await _news(link, silence_s)
            if answer.status >= 400:
                while not answer.is_complete:
                    await _news(link, silence_s)
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


def _begin_anew(patience: asyncio.Timeout, seconds: float) -> None:
    patience.reschedule(asyncio.get_running_loop().time() + seconds)


async def _news(link: Link, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        await link.news()
