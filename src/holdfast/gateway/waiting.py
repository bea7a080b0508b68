"""Long polls: waiting for a hint on behalf of a caller who may hang up."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from starlette.types import Receive


class Hints:
    """Who waits for news of which key. Registered before the first look, so that no hint falls between."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, list[asyncio.Event]] = defaultdict(list)
        self.closed = False

    def give(self, key: str) -> None:
        if key in self._waiting:
            for hint in self._waiting[key]:
                hint.set()

    def close(self) -> None:
        """Nobody waits any more: whoever does gets its last look at once."""
        self.closed = True
        for key in list(self._waiting):
            self.give(key)

    @contextmanager
    def of(self, key: str) -> Iterator[asyncio.Event]:
        hint = asyncio.Event()
        self._waiting[key].append(hint)
        try:
            yield hint
        finally:
            self._waiting[key].remove(hint)
            if not self._waiting[key]:
                del self._waiting[key]


class Patience:
    """How long one caller waits: until its time is over, or it has hung up."""

    def __init__(self, hint: asyncio.Event, *, seconds: float, receive: Receive) -> None:
        self._hint = hint
        self._until = asyncio.get_running_loop().time() + seconds
        self._receive = receive
        self._hanging_up: asyncio.Task[None] | None = None
        self.hung_up = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._hanging_up is not None:
            self._hanging_up.cancel()

    async def wait_hint(self, *, within_s: float = math.inf) -> bool:
        """True: there may be news, or none came `within_s`. False: wait no more."""
        if self._hanging_up is None:
            self._hanging_up = asyncio.ensure_future(self._listen())
        until = min(self._until, asyncio.get_running_loop().time() + within_s)
        try:
            async with asyncio.timeout_at(until):
                await self._hint.wait()
        except TimeoutError:
            return until < self._until
        self._hint.clear()
        return not self.hung_up

    async def _listen(self) -> None:
        # Whatever body is still coming is nobody's business; then only the end of the connection can come.
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.hung_up = True
        self._hint.set()
