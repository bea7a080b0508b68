"""TLS in front of a server that does not speak it: those that the tests bring along are built without.

Only the last step is ours: client, certificate and what is said through it are real.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

POSTGRES_ASKS = struct.pack(">II", 8, 80877103)
"""What a client of Postgres says before it speaks TLS."""


_NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=test"
_LONG_AGO = "-startdate 20200101000000Z -enddate 20200201000000Z"
_AUTHORITY = """
[ca]
default_ca = own
[own]
database = index
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
x509_extensions = host
[any]
commonName = supplied
[host]
subjectAltName = IP:127.0.0.1
"""


def certified(folder: Path, name: str, *, address: str = "IP:127.0.0.1") -> Path:
    """A certificate of this host that is its own authority; its key lies beside it."""
    made = folder / f"{name}.pem"
    _openssl(
        folder, f"req -x509 {_NEW_KEY} -days 2 -addext subjectAltName={address} -keyout {name}.key -out {name}.pem"
    )
    return made


def expired(folder: Path, name: str) -> Path:
    """The same, of a time that is over."""
    (folder / "index").touch()
    (folder / "serial").write_text("01")
    (folder / "authority.cnf").write_text(_AUTHORITY)
    _openssl(folder, f"req -new {_NEW_KEY} -keyout {name}.key -out {name}.csr")
    signing = f"-config authority.cnf -keyfile {name}.key -in {name}.csr -out {name}.pem"
    _openssl(folder, f"ca -selfsign -batch -notext {_LONG_AGO} {signing}")
    return folder / f"{name}.pem"


MAKERS: dict[tuple[str, str], Callable[[Path, str], Path]] = {
    ("expired", "Renew it on the server"): expired,
    ("of another host", "Name the server in the URL"): partial(certified, address="DNS:elsewhere.example"),
}
"""Certificates that are no good, whoever vouches for them, by what is wrong and what to do."""


def _openssl(folder: Path, command: str) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


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
