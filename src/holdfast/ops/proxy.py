"""A TCP proxy on loopback, through which a connection can be made slow, deaf, mute, or be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """A TCP proxy on a free loopback port, in the running loop.

    `delay_s` holds back every chunk, each way. `deaf` swallows what clients send, `mute` what the
    server answers, both with the connections left open (half-open). `cut()` resets them all.
    `refusing` resets every new connection at once.
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self.port = 0
        self.delay_s = 0.0
        self.deaf = False
        self.mute = False
        self.refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, url: str) -> str:
        """The same address through this proxy."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        both = (writer, server_writer)
        self._writers.update(both)
        pumps = [
            asyncio.create_task(self._pump(reader, server_writer, lambda: self.deaf)),
            asyncio.create_task(self._pump(server_reader, writer, lambda: self.mute)),
        ]
        self._tasks.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in both:
                end.transport.abort()
            self._writers.difference_update(both)
            self._tasks.difference_update(pumps)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallows: Callable[[], bool]
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while chunk := await reader.read(65536):
                if swallows():
                    continue
                if self.delay_s:
                    # Chunks travel side by side: a delay adds latency, it does not narrow the pipe.
                    loop.call_later(self.delay_s, _deliver, writer, chunk)
                else:
                    writer.write(chunk)
                    await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            return


def _deliver(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    if not writer.is_closing():
        writer.write(chunk)
