"""Connections that stay inside of virtual time: to a Redis server in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backends import Dial
from locks.virtual import VirtualLoop
from simulation.redis_link import Socket
from simulation.redis_server import RedisServer

INSIDE = "store"
"""The host of a server that is in the story itself."""


class Inside:
    """A client's connection to a Redis server in memory: an `asyncio.Transport`, as far as it is used."""

    def __init__(self, loop: VirtualLoop, server: RedisServer, client: Any) -> None:
        self._loop = loop
        self._server = server
        self._client = client
        self._is_over = False
        client.connection_made(self)

    def get_extra_info(self, _: str) -> Socket:
        return Socket()

    def write(self, request: bytes) -> None:
        if not self._is_over:
            self._hear(self._server.feed(request, self._hear))

    def abort(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._server.forget(self._hear)
            self._loop.call_soon(self._client.connection_lost, None)

    def _hear(self, said: bytes) -> None:
        self._loop.call_soon(self._receive, said)

    def _receive(self, said: bytes) -> None:
        if not self._is_over:
            self._client.data_received(said)


def dialling(loop: VirtualLoop, server: RedisServer) -> Dial:
    async def dial(make: Callable[[], Any], *_: Any, **__: Any) -> tuple[Any, Any]:
        client = make()
        return Inside(loop, server, client), client

    return dial
