"""redis-py's `Lock`, kept correct: swap the import, keep the code.

    from holdfast.locks.redis_compat import Lock        # instead of redis.lock.Lock
    from holdfast.locks.redis_compat import AsyncLock   # instead of redis.asyncio.lock.Lock

Same constructor, methods, values in Redis and errors, so both exclude each other on one key.
What differs: a request whose reply was lost may be sent again (acquire does not lock itself
out, release does not report a loss); an acquire that fails, is interrupted or is cancelled is
undone; tasks that share one object have a token each; and `fence` is there for guards. For
waiting in order, renewal and cancellation on loss, use `holdfast.locks.Locks`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from redis.exceptions import LockError, LockNotOwnedError

from holdfast.locks.runtime import SYSTEM

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_SCRIPT = Path(__file__).with_suffix(".lua").read_text(encoding="ascii")  # a client may write in whatever encoding

logger = logging.getLogger(__name__)

UNDO_PAUSES_S = (0.0, 0.1, 0.2)
"""Before each try to undo an acquire that failed. Few and short: a caller of redis-py's `Lock` does not expect
to be kept, and each try may be repeated by its client's own rules. The error is then raised as it was."""


HELD_MAX = 1000
"""Tokens that one `AsyncLock` knows of; of more, the oldest are forgotten. Who lets a lock run out gives none back."""


class _Local(threading.local):
    token: bytes | None = None
    request: str = ""
    """Which acquire it came from. Stays after the release, which may have to be repeated."""
    fence: int | None = None


class _Shared:
    def __init__(self) -> None:
        self.token: bytes | None = None
        self.request = ""
        self.fence: int | None = None


class _TaskLocal:
    """A token per task that acquired, in one lock object.

    A task without one (the work was handed to it) sees the object's token if there is only one.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[str, int | None]] = {}
        self._by_task: weakref.WeakKeyDictionary[asyncio.Task[Any], bytes] = weakref.WeakKeyDictionary()

    @property
    def token(self) -> bytes | None:
        task = asyncio.current_task()
        mine = self._by_task.get(task) if task is not None else None
        if mine in self._held:
            return mine
        return next(iter(self._held)) if len(self._held) == 1 else None

    @token.setter
    def token(self, token: bytes | None) -> None:
        """By hand, as one may with redis-py's: whoever kept the token of a lock elsewhere goes on with it here."""
        if token is None:
            self._held.clear()
        else:
            self.hold(token, "", None)

    @property
    def request(self) -> str:
        token = self.token
        return "" if token is None else self._held[token][0]

    @property
    def fence(self) -> int | None:
        token = self.token
        return None if token is None else self._held[token][1]

    def hold(self, token: bytes, request: str, fence: int | None) -> None:
        self._held[token] = (request, fence)
        if len(self._held) > HELD_MAX:
            del self._held[next(iter(self._held))]
        task = asyncio.current_task()
        if task is not None:
            self._by_task[task] = token

    def drop(self, token: bytes) -> None:
        self._held.pop(token, None)


class _Settings:
    """What both locks are made of: redis-py's arguments, the keys, and the errors' words."""

    def __init__(
        self,
        redis: Any,
        name: str,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,  # noqa: FBT001, FBT002  (redis-py's signature)
        blocking_timeout: float | None = None,
        thread_local: bool = True,  # noqa: FBT001, FBT002
        raise_on_release_error: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = thread_local
        self.raise_on_release_error = raise_on_release_error
        self._script = redis.register_script(_SCRIPT)

    def _keys(self) -> list[str | bytes]:
        return [self.name, beside(self.name)]

    def _ttl_ms(self) -> int | str:
        # Less than a millisecond is 0, which Redis refuses: it is not the same as none.
        return int(self.timeout * 1000) if self.timeout else ""

    def _new_token(self, token: str | bytes | None) -> bytes:
        return SYSTEM.token().encode() if token is None else self._encoded(token)

    def _encoded(self, token: Any) -> bytes:
        """As the client writes it."""
        # Clients of asyncio have it elsewhere, but for a cluster's.
        encoder = getattr(getattr(self.redis, "connection_pool", None), "get_encoder", None) or self.redis.get_encoder
        return bytes(encoder().encode(token))

    def _is_mine(self, stored: Any, token: Any) -> bool:
        return token is not None and stored is not None and self._encoded(stored) == self._encoded(token)

    def _extension(self, token: bytes | None, verb: str) -> bytes:
        if token is None:
            raise LockError(f"Cannot {verb} an unlocked lock", lock_name=self.name)
        if self.timeout is None:
            raise LockError(f"Cannot {verb} a lock with no timeout", lock_name=self.name)
        return token

    def _check(self, reply: Any, verb: str) -> None:
        if not int(reply):
            raise LockNotOwnedError(f"Cannot {verb} a lock that's no longer owned", lock_name=self.name)

    def _unlocked(self) -> LockError:
        return LockError("Cannot release a lock that's not owned or is already unlocked.", lock_name=self.name)

    def _undo_failed(self) -> None:
        logger.warning("lock.undo_failed", extra={"lock_key": self.name})

    def _not_acquired(self) -> LockError:
        return LockError("Unable to acquire lock within the time specified", lock_name=self.name)


def beside(name: str | bytes | float) -> str | bytes:
    """The name of what is kept beside a lock, in the same slot of a Redis Cluster. A number names it as redis-py writes it."""
    if isinstance(name, bytes):
        return str(beside(name.decode("latin-1"))).encode("latin-1")
    name = str(name)
    opened = name.find("{")
    closed = name.find("}", opened + 1) if opened >= 0 else -1
    return f"{name}:holdfast" if closed > opened + 1 else f"{{{name}}}:holdfast"


def _fence(reply: Any) -> int | None:
    return int(reply) if reply else None


class Lock(_Settings):
    """For `redis.Redis`."""

    def __init__(self, redis: Any, name: str, *arguments: Any, **settings: Any) -> None:
        super().__init__(redis, name, *arguments, **settings)
        self.local: _Local | _Shared = _Local() if self.thread_local else _Shared()

    @property
    def fence(self) -> int | None:
        """The fence of the lock this thread holds, for guards; None while it holds none."""
        return self.local.fence if self.local.token is not None else None

    def __enter__(self) -> Self:
        if self.acquire():
            return self
        raise self._not_acquired()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.release()
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("lock.not_owned", extra={"lock_key": self.name, "operation": "release"})

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,  # noqa: FBT001  (redis-py's signature)
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        chosen, request = self._new_token(token), SYSTEM.token()
        sleep = self.sleep if sleep is None else sleep
        blocking = self.blocking if blocking is None else blocking
        blocking_timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        deadline = None if blocking_timeout is None else SYSTEM.now() + blocking_timeout
        try:
            while True:
                fence = _fence(self._run("acquire", chosen, request, self._ttl_ms()))
                if fence is not None:
                    self.local.token, self.local.request, self.local.fence = chosen, request, fence
                    return True
                pause = SYSTEM.jitter(sleep)
                if not blocking or (deadline is not None and SYSTEM.now() + pause > deadline):
                    return False
                SYSTEM.sleep(pause)
        except BaseException:
            # Failed or interrupted: the request may have been carried out. Without this a lock with no
            # timeout would be held for ever by nobody. Nobody else undoes it once the caller has the error.
            self._undo(chosen, request)
            raise

    def locked(self) -> bool:
        return self.redis.get(self.name) is not None

    def owned(self) -> bool:
        return self._is_mine(self.redis.get(self.name), self.local.token)

    def release(self) -> None:
        token = self.local.token
        if token is None:
            raise self._unlocked()
        # An error of the connection leaves the token in place: the release can be repeated.
        reply = self._run("release", token, self.local.request)
        self.local.token = None
        self._check(reply, "release")

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:  # noqa: FBT001, FBT002
        token = self._extension(self.local.token, "extend")
        self._check(self._run("extend", token, "", int(additional_time * 1000), int(replace_ttl)), "extend")
        return True

    def reacquire(self) -> Literal[True]:
        token = self._extension(self.local.token, "reacquire")
        self._check(self._run("reacquire", token, "", int((self.timeout or 0) * 1000)), "reacquire")
        return True

    def _undo(self, token: bytes, request: str) -> None:
        for pause in UNDO_PAUSES_S:
            SYSTEM.sleep(SYSTEM.jitter(pause))
            with suppress(Exception):
                self._run("undo", token, request)
                return
        self._undo_failed()

    def _run(self, *arguments: object) -> Any:
        return self._script(keys=self._keys(), args=list(arguments), client=self.redis)


class AsyncLock(_Settings):
    """For `redis.asyncio.Redis`. With `thread_local` (the default) each task has its own token."""

    def __init__(self, redis: Any, name: str, *arguments: Any, **settings: Any) -> None:
        super().__init__(redis, name, *arguments, **settings)
        self.local = _TaskLocal()
        self._undoing: set[asyncio.Task[Any]] = set()

    @property
    def fence(self) -> int | None:
        """The fence of the lock this task holds, for guards; None while it holds none."""
        return self.local.fence

    async def __aenter__(self) -> Self:
        if await self.acquire():
            return self
        raise self._not_acquired()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("lock.not_owned", extra={"lock_key": self.name, "operation": "release"})

    async def acquire(
        self,
        blocking: bool | None = None,  # noqa: FBT001  (redis-py's signature)
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        chosen, request = self._new_token(token), SYSTEM.token()
        blocking = self.blocking if blocking is None else blocking
        blocking_timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        deadline = None if blocking_timeout is None else SYSTEM.now() + blocking_timeout
        try:
            while True:
                fence = _fence(await self._run("acquire", chosen, request, self._ttl_ms()))
                if fence is not None:
                    self.local.hold(chosen, request, fence)
                    return True
                pause = SYSTEM.jitter(self.sleep)
                if not blocking or (deadline is not None and SYSTEM.now() + pause > deadline):
                    return False
                await asyncio.sleep(pause)
        except BaseException:
            # Cancelled or failed: the request may have been carried out. The dying task does not
            # wait; without this a lock with no timeout would be held for ever by nobody.
            undoing = asyncio.ensure_future(self._undo(chosen, request))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            raise

    async def locked(self) -> bool:
        return await self.redis.get(self.name) is not None

    async def owned(self) -> bool:
        return self._is_mine(await self.redis.get(self.name), self.local.token)

    async def release(self) -> None:
        token = self.local.token
        if token is None:
            raise self._unlocked()
        # Cancelled or cut off, it leaves the token in place: the release can be repeated.
        reply = await self._run("release", token, self.local.request)
        self.local.drop(token)
        self._check(reply, "release")

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:  # noqa: FBT001, FBT002
        token = self._extension(self.local.token, "extend")
        self._check(await self._run("extend", token, "", int(additional_time * 1000), int(replace_ttl)), "extend")
        return True

    async def reacquire(self) -> Literal[True]:
        token = self._extension(self.local.token, "reacquire")
        self._check(await self._run("reacquire", token, "", int((self.timeout or 0) * 1000)), "reacquire")
        return True

    async def _undo(self, token: bytes, request: str) -> None:
        for pause in UNDO_PAUSES_S:
            await asyncio.sleep(SYSTEM.jitter(pause))
            with suppress(Exception):
                await self._run("undo", token, request)
                return
        self._undo_failed()

    async def _run(self, *arguments: object) -> Any:
        return await self._script(keys=self._keys(), args=list(arguments), client=self.redis)
