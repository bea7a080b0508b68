"""Wake-ups between processes of one host: a datagram to the waiter's socket. Only ever a hint.

name of a mailbox: holdfast-<random id>; on Linux an abstract socket, elsewhere a file in $TMPDIR
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path


def _address(name: str) -> str:
    if sys.platform == "linux":
        return f"\0{name}"
    return str(Path(tempfile.gettempdir()) / f"{name}.sock")


class Mailbox(asyncio.DatagramProtocol):
    """Receives `key NUL token` datagrams in the loop that opened it."""

    def __init__(self, name: str, deliver: Callable[[str, str], None]) -> None:
        self.name = name
        self._deliver = deliver
        self._transport: asyncio.BaseTransport | None = None

    async def open(self) -> None:
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            receiver.setblocking(False)
            receiver.bind(_address(self.name))
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=receiver)
        except BaseException:
            receiver.close()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: object) -> None:
        key, _, token = data.decode(errors="replace").partition("\0")
        self._deliver(key, token)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            if sys.platform != "linux":
                Path(_address(self.name)).unlink(missing_ok=True)


class Postman:
    """Sends wake-ups, from any thread, without ever waiting."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def send(self, mailbox: str, key: str, token: str) -> None:
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(f"{key}\0{token}".encode(), _address(mailbox))
        except OSError:
            return  # gone, full, on another host, or no descriptor left: its polling finds the grant

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
