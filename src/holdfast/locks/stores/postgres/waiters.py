"""Who waits for locks through this store, and how they hear that it may be their turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.locks.stores.postgres.batch import DIGEST_CHARS
from holdfast.locks.stores.postgres.link import Listener

if TYPE_CHECKING:
    from holdfast.locks.port import WakeCallback
    from holdfast.locks.runtime import Runtime

#: Waiters that are woken by token; if there are more, the oldest are woken with all others of their key.
WAITING_MAX = 10_000


class Waiters:
    """Their tokens by digest. Listens from the first of them on; for what was said before, everybody is woken once."""

    def __init__(self, url: str, *, runtime: Runtime, timeout_s: float) -> None:
        self._url = url
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._tokens: dict[str, str] = {}
        self._listener: Listener | None = None
        self._open = False
        self.channel = f"holdfast_{runtime.token()[:16]}"
        self.wake: WakeCallback = lambda key, token: None

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        self._open = False
        if self._listener is not None:
            await self._listener.close()
            self._listener = None

    def expect(self, digest: str, token: str) -> None:
        self._tokens[digest] = token
        if len(self._tokens) > WAITING_MAX:
            del self._tokens[next(iter(self._tokens))]
        if self._listener is None and self._open:  # else nobody would end it
            self._listener = Listener(
                self._url, self.channel, self._heard, runtime=self._runtime, timeout_s=self._timeout_s
            )

    def forget(self, digest: str) -> None:
        self._tokens.pop(digest, None)

    def _heard(self, payload: str) -> None:
        digest, key = payload[:DIGEST_CHARS], payload[DIGEST_CHARS:]
        self.wake(key, self._tokens.get(digest, ""))
