"""`/livez` and `/readyz` of a worker, for whoever starts and stops it.

A process that runs and beats may still take no work: its claims go nowhere, or its loop hangs. So
readiness is about claims that were answered, not about the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from holdfast.worker.errors import BrokenWorker

ASK_S_MAX = 5.0


@asynccontextmanager
async def telling_health(address: str, why_not_ready: Callable[[], str]) -> AsyncIterator[str]:
    """Answer at `address` (HOST:PORT) inside of the block; at none if it is empty. Yields where that is."""
    if not address:
        yield ""
        return
    host, _, port = address.rpartition(":")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(ASK_S_MAX):
                asked = await reader.readuntil(b"\r\n\r\n")
                writer.write(_reply(asked, why_not_ready()))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, host.strip("[]"), int(port))
    except (OSError, ValueError) as error:
        raise BrokenWorker(f"cannot listen on {address!r} for its health: {error}; name a free HOST:PORT") from error
    async with server:
        name, number = server.sockets[0].getsockname()[:2]
        yield f"{name}:{number}"


def _reply(asked: bytes, why_not: str) -> bytes:
    path = asked.partition(b" ")[2].partition(b" ")[0]
    if path == b"/livez":
        status, text = "200 OK", "alive"
    elif path == b"/readyz":
        status, text = ("503 Service Unavailable", why_not) if why_not else ("200 OK", "ready")
    else:
        status, text = "404 Not Found", "there is /livez and /readyz"
    head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(text) + 1}\r\nconnection: close\r\n"
    return f"{head}\r\n{text}\n".encode()
