"""What a worker makes of answers: those of the plane, and those of whoever stands in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.api import Outcome
from holdfast.worker.link import Link, Refused, Unreachable

PAGE = b"<html>404 page not found</html>"
PROBLEM = b'{"code":"stale-fence","status":409,"title":"t","detail":"gone on without it"}'
OTHERS = b'{"message":"no Route matched with those values"}'


@asynccontextmanager
async def linked(status: int, body: bytes) -> AsyncIterator[Link]:
    """A link to somebody who answers one request, and that so."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        link = Link(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "w", api_key="")
        yield link
        link.close()


@pytest.mark.parametrize("body", [PAGE, OTHERS, b""])
@pytest.mark.parametrize("status", [302, 400, 404, 408, 409, 502])
async def test_answer_that_is_not_the_planes_says_nothing_of_an_attempt(status: int, body: bytes) -> None:
    """A proxy has no way to the plane for a while: what has ended here is to be said again, and not thrown away."""
    async with linked(status, body) as link:
        with pytest.raises(Unreachable, match=str(status)):
            await link.complete([Outcome(job_id="j", fence=1, outcome="cancelled")], refill=0)


@pytest.mark.parametrize(("status", "body"), [(409, PROBLEM), (404, PROBLEM), (413, PAGE), (401, PAGE), (403, b"")])
async def test_what_would_be_answered_again_is_a_refusal(status: int, body: bytes) -> None:
    async with linked(status, body) as link:
        with pytest.raises(Refused) as refused:
            await link.complete([Outcome(job_id="j", fence=1, outcome="cancelled")], refill=0)

    assert (refused.value.status, bool(refused.value.code)) == (status, True)
