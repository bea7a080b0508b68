"""Which server is the primary of a service, asked of its sentinels one after the other."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from dataclasses import replace

from holdfast.locks.stores.redis.refusals import SentinelsRefuse
from holdfast.locks.stores.redis.wire import Address, Parser, Reply, ReplyError, Target, command


class Sentinels:
    """Each time the next one is asked first: what one of them has named may be what the others have long replaced."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._first = -1

    async def find_primary(self, timeout_s: float) -> Address:
        """Raises `OSError` if no sentinel names one; `SentinelsRefuse` if all of them refuse to."""
        failures: list[Exception] = []
        for sentinel in self._in_turn():
            try:
                # A sentinel that is down must leave time for the others.
                async with asyncio.timeout(self._share_of(timeout_s)):
                    found = _primary(self._target, await _ask(sentinel, self._target.service))
            except (ReplyError, OSError, ValueError) as failure:
                failures.append(failure)
            else:
                if found is not None:
                    return found
        raise self._none_found(failures)

    def find_primary_blocking(self, timeout_s: float) -> Address:
        """The same for threads."""
        failures: list[Exception] = []
        for sentinel in self._in_turn():
            try:
                replies = _ask_blocking(sentinel, self._target.service, self._share_of(timeout_s))
                found = _primary(self._target, replies)
            except (ReplyError, OSError, ValueError) as failure:
                failures.append(failure)
            else:
                if found is not None:
                    return found
        raise self._none_found(failures)

    def _in_turn(self) -> Sequence[Address]:
        every = self._target.addresses
        self._first = (self._first + 1) % len(every)
        return every[self._first :] + every[: self._first]

    def _share_of(self, timeout_s: float) -> float:
        return timeout_s / (len(self._target.addresses) + 1)

    def _none_found(self, failures: Sequence[Exception]) -> OSError:
        """What they have in common is what is wrong, and will be the next time."""
        why = failures[-1] if len(failures) == len(self._target.addresses) else None
        if isinstance(why, ssl.SSLCertVerificationError):
            return why
        if isinstance(why, ReplyError):
            return SentinelsRefuse(str(why))
        said = f": {str(why) or 'no answer in time'}" if why else ""
        none_found = OSError(f"no sentinel knows a primary of {self._target.service!r}{said}")
        none_found.__cause__ = why
        return none_found


def _primary(target: Target, replies: Sequence[Reply]) -> Address | None:
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply
    place = replies[-1]
    if not place:
        return None
    assert target.account is not None
    return replace(target.account, host=place[0].decode(), port=int(place[1]))


def _questions(sentinel: Address, service: str) -> list[bytes]:
    question = command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    return [command("AUTH", sentinel.password), question] if sentinel.password else [question]


async def _ask(sentinel: Address, service: str) -> list[Reply]:
    questions, parser = _questions(sentinel, service), Parser()
    reader, writer = await asyncio.open_connection(sentinel.host, sentinel.port, ssl=sentinel.tls)
    try:
        writer.write(b"".join(questions))
        replies: list[Reply] = []
        while len(replies) < len(questions):
            replies += parser.feed(await reader.read(4096) or _end())
        return replies
    finally:
        writer.transport.abort()


def _ask_blocking(sentinel: Address, service: str, timeout_s: float) -> list[Reply]:
    questions, parser = _questions(sentinel, service), Parser()
    with (
        socket.create_connection((sentinel.host, sentinel.port), timeout_s) as plain,
        sentinel.tls.wrap_socket(plain, server_hostname=sentinel.host) if sentinel.tls else plain as conn,
    ):
        conn.sendall(b"".join(questions))
        replies: list[Reply] = []
        while len(replies) < len(questions):
            replies += parser.feed(conn.recv(4096) or _end())
        return replies


def _end() -> bytes:
    raise ConnectionResetError("the sentinel hung up")
