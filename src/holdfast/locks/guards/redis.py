"""Guards on Redis and Valkey, through redis-py's clients, sync and asyncio, single node and Cluster.

Keys: `holdfast:fence:{<resource>}`, a hash of fence, seq and answer. If the resource itself contains
a hash tag (`cart:{42}`), its tag is used: `holdfast:fence::cart:{42}`. In a Cluster the guarded keys
must be in the same slot: give them the same tag (`{accounts/42}:balance`, or `cart:{42}:lines`).
The mark has no expiry, and must not be evicted: run with `maxmemory-policy noeviction` or volatile-*.

There is no transaction around the body. Each `call` checks the mark, raises it and runs one command
in one atomic script, so a newer holder ends the older one's work between two calls, not in one.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from holdfast.locks.errors import StaleFence, Unavailable
from holdfast.locks.fence import NO_MARK, Mark
from holdfast.locks.guards.fenced import Fenced, require_fence

#: Larger replies are not kept for a repeat: a read of a big value would double its memory.
ANSWER_BYTES_MAX = 4096
#: Words of a command, its name included. Lua passes on fewer than 8000 values, and the reply needs room beside them.
ARGUMENTS_MAX = 7000

Value = str | bytes | int | float

_SCRIPT = Path(__file__).with_suffix(".lua").read_text()
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
_TAG = re.compile(r"\{[^}]+\}")
_REFUSED, _ACCEPTED, _REPEATED, _FORGOTTEN = range(4)


class AsyncClient(Protocol):
    def execute_command(self, *args: Any, **options: Any) -> Any: ...

    async def aclose(self) -> None: ...


class Client(Protocol):
    def execute_command(self, *args: Any, **options: Any) -> Any: ...

    def close(self) -> None: ...


class _Marks:
    """What both guards do apart from sending: number the operations, and judge the answers."""

    def __init__(self, lease: Fenced, resource: str, *, once_per_fence: bool) -> None:
        require_fence(lease, resource)
        self.mark = NO_MARK
        self._lease = lease
        self._resource = resource
        self._key = mark_key(resource)
        self._once_per_fence = once_per_fence

    def claiming(self) -> tuple[Value, ...]:
        return self._request(self._lease.next_seq(), once_per_fence=self._once_per_fence)

    def calling(self, command: tuple[Value, ...], seq: int | None) -> tuple[Value, ...]:
        if not command:
            raise ValueError("call() needs a command")
        if len(command) > ARGUMENTS_MAX:
            raise ValueError(f"a command has at most {ARGUMENTS_MAX} words, not {len(command)}: use several calls")
        # A call follows the claim of its own fence, so the strict rule would refuse every call.
        return self._request(self._lease.next_seq() if seq is None else seq, once_per_fence=False) + command

    def judged(self, answer: list[Any]) -> Any:
        if answer[0] == _REFUSED:
            current = (int(answer[1]), int(answer[2]))
            self._lease.fence_refused(self._resource)
            raise StaleFence(self._resource, current=current, offered=(self.mark.fence, self.mark.seq))
        if answer[0] == _FORGOTTEN:
            detail = f"operation {tuple(self.mark)} was applied before, and its reply was too large to keep"
            raise Unavailable(self._resource, detail, applied=True)
        # A reply of nil ends the array early.
        return answer[1] if len(answer) > 1 else None

    def _request(self, seq: int, *, once_per_fence: bool) -> tuple[Value, ...]:
        self._lease.check()
        self.mark = Mark(self._lease.fence, seq)
        return (1, self._key, self.mark.fence, seq, int(once_per_fence), ANSWER_BYTES_MAX)


class AsyncRedisGuard:
    """`async with` claims the resource and gives this object; `await call(…)` is one fenced command.

    Entering raises the mark, so an older holder is refused from then on, also if only reads
    follow. `call` gives the plain reply of the command (RESP2: HGETALL is a flat list; integers
    beyond 2**53 lose digits in Lua). When its outcome is unknown, repeat it at once with
    `seq=guard.mark.seq`: it is run, or, if it was run before, its reply is given again
    (`Unavailable` with `applied=True` if that was larger than ANSWER_BYTES_MAX). The client's own
    retries are such repeats. A command that fails leaves the mark as it was, and one of more than
    ARGUMENTS_MAX words is not sent. Calls of one guard wait for each other, as their order is
    their seq.
    """

    def __init__(self, lease: Fenced, client: AsyncClient, resource: str, *, once_per_fence: bool) -> None:
        self._marks = _Marks(lease, resource, once_per_fence=once_per_fence)
        self._client = client
        self._turn = asyncio.Lock()

    @property
    def mark(self) -> Mark:
        """The (fence, seq) of the last operation that was sent."""
        return self._marks.mark

    async def call(self, *command: Value, seq: int | None = None) -> Any:
        async with self._turn:
            return self._marks.judged(await self._send(self._marks.calling(command, seq)))

    async def __aenter__(self) -> Self:
        _accept_claim(self._marks, await self._send(self._marks.claiming()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open: each call was complete by itself."""

    async def _send(self, request: tuple[Value, ...]) -> Any:
        try:
            return await self._client.execute_command("EVALSHA", _SHA, *request)
        except Exception as failure:
            if not _script_is_missing(failure):
                raise
        return await self._client.execute_command("EVAL", _SCRIPT, *request)


class RedisGuard:
    """`AsyncRedisGuard` for blocking clients: `with`, and `call(…)` without `await`."""

    def __init__(self, lease: Fenced, client: Client, resource: str, *, once_per_fence: bool) -> None:
        self._marks = _Marks(lease, resource, once_per_fence=once_per_fence)
        self._client = client
        self._turn = threading.Lock()

    @property
    def mark(self) -> Mark:
        return self._marks.mark

    def call(self, *command: Value, seq: int | None = None) -> Any:
        with self._turn:
            return self._marks.judged(self._send(self._marks.calling(command, seq)))

    def __enter__(self) -> Self:
        _accept_claim(self._marks, self._send(self._marks.claiming()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open: each call was complete by itself."""

    def _send(self, request: tuple[Value, ...]) -> Any:
        try:
            return self._client.execute_command("EVALSHA", _SHA, *request)
        except Exception as failure:
            if not _script_is_missing(failure):
                raise
        return self._client.execute_command("EVAL", _SCRIPT, *request)


def mark_key(resource: str) -> str:
    """The key of a resource's mark, in the slot of the keys that share the resource's hash tag."""
    # Two colons keep a tagged resource apart from an untagged one of the same letters.
    return f"holdfast:fence::{resource}" if _TAG.search(resource) else f"holdfast:fence:{{{resource}}}"


def _accept_claim(marks: _Marks, answer: list[Any]) -> None:
    if answer[0] != _FORGOTTEN:  # the client's own retry of a claim has no reply to forget
        marks.judged(answer)


def _script_is_missing(failure: Exception) -> bool:
    # By name, because redis-py is optional here.
    return type(failure).__name__ == "NoScriptError"
