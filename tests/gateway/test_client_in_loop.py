"""The connections of a client in a loop: whoever goes, or waits, leaves those of others alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from gateway.test_client_connections import DO, OK, READ, plane_at
from holdfast import errors
from holdfast.client import async_connections
from holdfast.client.asks import get_ask
from holdfast.client.async_connections import AsyncConnections

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def in_conversation(serve: Conversation) -> AsyncIterator[AsyncConnections]:
    """With a server that is no plane, and hears of the end of each connection."""
    talks: list[asyncio.Task[None]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    listener = await asyncio.start_server(lambda *ends: talks.append(asyncio.create_task(talk(*ends))), "127.0.0.1", 0)
    asked = AsyncConnections(plane_at(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"))
    try:
        yield asked
    finally:
        asked.close()
        listener.close()
        await asyncio.gather(*talks)


async def test_caller_who_is_cancelled_hangs_up() -> None:
    """The plane must not go on waiting for somebody who does not."""
    heard, hung_up = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        heard.set()
        with suppress(ConnectionError):
            await reader.read()
        hung_up.set()

    async with in_conversation(serve) as asked:
        asking = asyncio.create_task(asked.request(DO))
        await asyncio.wait_for(heard.wait(), 20)
        asking.cancel()
        await asyncio.wait_for(hung_up.wait(), 20)

    assert asking.cancelled()


async def test_those_who_wait_for_something_to_happen_keep_nobody_from_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_connections, "PATIENT_MAX", 2)
    waiting = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        head = await reader.readuntil(b"\r\n\r\n")
        if b"wait" in head:
            waiting += 1
            with suppress(ConnectionError):
                await reader.read()
        writer.write(OK)

    async with in_conversation(serve) as asked:
        patient = replace(get_ask("/v1/thing?wait=30", bytes), answer_s=40.0)
        waits = [asyncio.create_task(asked.request(patient)) for _ in range(3)]
        while waiting < 2:
            await asyncio.sleep(0.001)

        assert (await asked.request(READ)).status == 200
        assert waiting == 2, "the third waits for one of them to end"
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def test_closing_ends_a_stream() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n3\r\na\nb\r\n"
        )
        with suppress(ConnectionError):
            await reader.read()

    async with in_conversation(serve) as asked:
        lines = asked.stream("/v1/events", silence_s=20)
        assert await anext(lines) == "a"
        asked.close()

        with pytest.raises(errors.PlaneUnavailable):
            await anext(lines)
