"""TLS in front of a server that does not speak it: those that the tests bring along are built without.

Only the last step is ours: client, certificate and what is said through it are real.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

POSTGRES_ASKS = struct.pack(">II", 8, 80877103)
"""What a client of Postgres says before it speaks TLS."""


def certified(folder: Path, name: str) -> Path:
    """A certificate of this host that is its own authority; its key lies beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    made = folder / f"{name}.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    address = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command.split(), *address, "-keyout", folder / f"{name}.key", "-out", made], check=True, capture_output=True
    )
    return made


@asynccontextmanager
async def tls_door(port: int, certificate: Path, *, asks: bytes = b"") -> AsyncIterator[int]:
    """The port at which the server at `port` is reached over TLS, by those who say `asks` first, and are told so."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))

    inside: set[asyncio.Task[None]] = set()

    async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here = asyncio.current_task()
        assert here is not None
        inside.add(here)
        open_now = [writer]
        try:
            if asks:
                if await reader.readexactly(len(asks)) != asks:
                    return
                writer.write(b"S")
                await writer.start_tls(context)
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
            open_now.append(inner_writer)
            await asyncio.gather(_pass_on(reader, inner_writer), _pass_on(inner_reader, writer))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one side has left, or the door is shut
        finally:
            for one in open_now:
                one.close()
            inside.discard(here)

    door = await asyncio.start_server(let_in, "127.0.0.1", 0, ssl=None if asks else context)
    yield door.sockets[0].getsockname()[1]
    door.close()
    last = list(inside)
    for task in last:
        task.cancel()
    await asyncio.gather(*last, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while some := await reader.read(1 << 16):
        writer.write(some)
    writer.close()
