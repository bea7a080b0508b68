"""One connection to the plane's server, as it is asked; and whoever is asked in its place while a cluster moves the slot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from holdfast.locks.errors import LockError, StoreRefused, Unavailable
from holdfast.locks.stores.redis.cluster import Place, redirected_to
from holdfast.locks.stores.redis.connection import ASKING, TURNED_AWAY, Connection
from holdfast.locks.stores.redis.refusals import refusal
from holdfast.locks.stores.redis.wire import Reply, ReplyError
from holdfast.stores.redis.commands import Word

ELSEWHERE = ("MOVED", "READONLY", "CLUSTERDOWN", "MASTERDOWN")
"""Answers of a server that is not, or no longer, the one to ask: the next connection looks for it."""
SHARED = "Another program uses this key: remove it, or give the plane another namespace with ?namespace=NAME"


class Script(NamedTuple):
    text: str
    sha: str


class TurnedAway(Unavailable):
    """The plane's slot is elsewhere, or on its way there: what was asked was not begun. `to` is where, if the server knows."""

    def __init__(self, subject: str, reply: ReplyError, to: Place | None = None) -> None:
        super().__init__(subject, str(reply), applied=False)
        self.to = to


def encoded(words: Sequence[Word]) -> bytes:
    # Thousands of words for a batch: a comprehension, and the commonest kinds first.
    values = [
        word.encode() if isinstance(word, str) else word if isinstance(word, bytes) else repr(word).encode()
        for word in words
    ]
    return b"*%d\r\n%b" % (len(values), b"".join([b"$%d\r\n%b\r\n" % (len(value), value) for value in values]))


class Line:
    """`place` is the server at its other end, and `beside` connects to another one of the cluster."""

    def __init__(
        self, connection: Connection, subject: str, *, place: Place, beside: Callable[[Place], Awaitable[Connection]]
    ) -> None:
        self.connection = connection
        self._subject = subject
        self._place = place
        self._beside = beside

    async def ask(self, *commands: Sequence[Word]) -> list[Reply]:
        """All in one write; the answers in their order, none of them from an earlier moment than the one before. Several are asked together
        only if each may be asked twice. Raises `Unavailable` or `StoreRefused`."""
        requests = [encoded(words) for words in commands]
        try:
            asked = self._sent(requests)
            try:
                return await asyncio.gather(*asked)
            except ReplyError as refused:
                if refused.code != "ASK":
                    raise
            return await self._one_by_one(requests, asked)
        except ReplyError as refused:
            raise self._refusal(refused) from None

    async def run(self, what: Script, keys: Sequence[str], arguments: Sequence[Word] = ()) -> Reply:
        rest = (len(keys), *keys, *arguments)
        try:
            try:
                return await self._answer(encoded(("EVALSHA", what.sha, *rest)))
            except ReplyError as refused:
                if refused.code != "NOSCRIPT":
                    raise
            # It did not run, so sending it again is safe.
            return await self._answer(encoded(("EVAL", what.text, *rest)))
        except ReplyError as refused:
            raise self._refusal(refused) from None

    def _sent(self, requests: Sequence[bytes]) -> list[asyncio.Future[Reply]]:
        if self.connection.ended.done():
            raise Unavailable(self._subject, "connection lost", applied=False)
        return self.connection.ask_all(requests)

    async def _one_by_one(self, requests: Sequence[bytes], asked: Sequence[asyncio.Future[Reply]]) -> list[Reply]:
        """The first that was not answered, and all behind it once more: of what is read to decide upon, the head is the first, and
        must not be younger than the rest."""
        replies = await asyncio.gather(*asked, return_exceptions=True)
        answered = next(n for n, reply in enumerate(replies) if isinstance(reply, BaseException))
        return [*replies[:answered], *[await self._answer(request) for request in requests[answered:]]]

    async def _answer(self, request: bytes) -> Reply:
        """A key that is not here while the slot is moved is where that is going, if anywhere. Just this once: until it has arrived, this
        server is the first to be asked."""
        try:
            [reply] = self._sent([request])
            return await reply
        except ReplyError as refused:
            if refused.code != "ASK":
                raise
            place = redirected_to(refused, self._place)
        connection = await self._beside(place)
        try:
            # The permission is for one command.
            _, answer = await asyncio.gather(*connection.ask_all([ASKING, request]))
        except ReplyError as refused:
            if refused.code == "MOVED":  # they do not agree yet whose it is
                raise TurnedAway(self._subject, refused) from None
            raise
        return answer

    def _refusal(self, refused: ReplyError) -> LockError:
        if refused.code in ELSEWHERE:
            self.connection.drop("this is not the server to ask any more")
        if refused.code in TURNED_AWAY:
            to = redirected_to(refused, self._place) if refused.code == "MOVED" else None
            return TurnedAway(self._subject, refused, to)
        if refused.code == "WRONGTYPE":
            return StoreRefused(self._subject, str(refused), next_step=SHARED)
        return refusal(self._subject, _without_arguments(refused))


def _without_arguments(reply: ReplyError) -> str:
    """A server that does not know a command repeats what it was asked."""
    return str(reply).partition(", with args beginning")[0]
