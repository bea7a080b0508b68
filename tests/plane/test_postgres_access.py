"""Postgres with TLS and a password: both are asked for, neither is done without, and no password is ever shown.

The server that the tests bring along is built without TLS, so a door in front of it speaks it: it opens to
nobody who does not ask for TLS first, as a server with `hostssl` does.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import servers

from holdfast.errors import Invalid, StoreUnavailable
from plane.jobs import submitted
from plane.postgres_schemas import opened

SECRET = "s3cret-w0rd"
SSL_REQUEST = struct.pack(">II", 8, 80877103)
HBA = "host all ann 127.0.0.1/32 scram-sha-256\nhost all test 127.0.0.1/32 trust\n"


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    """With `ann`, who may come with her password alone."""
    server = servers.postgres_server()
    (server.directory / "data/pg_hba.conf").write_text(HBA)
    server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE ann LOGIN PASSWORD '{SECRET}'".encode())
        connection.execute("CREATE SCHEMA ann AUTHORIZATION ann")
    yield server
    server.remove()


def certified(folder: Path, name: str) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    made = folder / f"{name}.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", folder / f"{name}.key", "-out", made], check=True, capture_output=True)
    return made


@pytest.fixture
async def door(server: servers.Server, tmp_path: Path) -> AsyncIterator[int]:
    """The port at which the server is reached over TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certified(tmp_path, "right"), tmp_path / "right.key")

    async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if await reader.readexactly(8) == SSL_REQUEST:
                writer.write(b"S")
                await writer.start_tls(context)
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)
                await asyncio.gather(pass_on(reader, inner_writer), pass_on(inner_reader, writer))
        writer.close()

    opened_door = await asyncio.start_server(let_in, "127.0.0.1", 0)
    yield opened_door.sockets[0].getsockname()[1]
    opened_door.close()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while some := await reader.read(1 << 16):
        writer.write(some)
    writer.close()


def url_of(port: int, password: str, mode: str, ca: Path) -> str:
    return f"postgresql://ann:{password}@127.0.0.1:{port}/postgres?sslmode={mode}&sslrootcert={ca}"


async def test_store_speaks_tls_with_an_authority_of_ones_own(door: int, tmp_path: Path) -> None:
    async with opened(url_of(door, SECRET, "verify-full", tmp_path / "right.pem")) as store:
        job = await submitted(store)
        assert [found.id for found in await store.list_dispatchable(limit=1)] == [job.id]


@pytest.mark.parametrize(
    ("password", "mode", "ca", "why"),
    [
        ("wr0ng-w0rd", "verify-full", "right", "password"),
        (SECRET, "disable", "right", "127.0.0.1"),
        (SECRET, "verify-full", "other", "sslrootcert"),
    ],
    ids=["wrong password", "no TLS", "nobody vouches for its certificate"],
)
async def test_what_does_not_fit_is_refused_and_told_without_the_password(
    door: int, tmp_path: Path, password: str, mode: str, ca: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    certified(tmp_path, "other")
    caplog.set_level(logging.DEBUG)
    with pytest.raises((StoreUnavailable, Invalid), match=why) as refused:
        async with opened(url_of(door, password, mode, tmp_path / f"{ca}.pem")):
            raise AssertionError("it must not open")
    assert password not in f"{refused.value!r} {refused.value} {caplog.text}"
