"""What a worker posts to a plane, on connections that are kept."""

from __future__ import annotations

import asyncio
import ssl

from holdfast.http1.answer import Reply, encoded
from holdfast.http1.links import Links

CONNECTIONS_MAX = 32
CONNECT_S = 2.0


class Address:
    """Used from one event loop."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None) -> None:
        self._links = Links(host, port, tls=tls, connect_s=CONNECT_S)
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)
        named = f"[{host}]" if ":" in host else host
        self._lines = f"Host: {named}:{port}\r\nContent-Type: application/json\r\n"

    async def post(self, path: str, body: bytes, *, login: str, within_s: float) -> Reply:
        """One exchange. Raises `OSError` while connecting, `TimeoutError` or `BrokenExchange` after that."""
        lines = f"{self._lines}Authorization: {login}\r\n" if login else self._lines
        async with asyncio.timeout(within_s), self._room:
            return await self._links.ask(await self._links.take(), encoded("POST", path, lines, body))

    def close(self) -> None:
        """Drop every connection; whoever still waits for an answer gets `BrokenExchange`."""
        self._links.close()
