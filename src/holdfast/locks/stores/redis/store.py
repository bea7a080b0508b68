"""Locks on Redis and Valkey: plain string keys, changed by one script (locks.lua).

The acquires and releases of one event-loop tick share runs of the script, and so the writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import (
    BlockingStore,
    Busy,
    Grant,
    Holder,
    LockStore,
    Ownership,
    Renewal,
    Standing,
    WakeCallback,
)
from holdfast.locks.runtime import Runtime
from holdfast.locks.stores.redis.blocking import RedisBlockingStore
from holdfast.locks.stores.redis.cluster import ClusterLink, check_key
from holdfast.locks.stores.redis.connection import Run
from holdfast.locks.stores.redis.link import WireLink
from holdfast.locks.stores.redis.sentinel import Sentinels
from holdfast.locks.stores.redis.wire import (
    ENDLESS_MS,
    Address,
    Caller,
    Target,
    acquire_item,
    parse_url,
    release_item,
    standings,
)

EVENTS = {"g": "granted", "r": "released", "e": "evicted"}
#: Half of the acquires and releases that are under way go out before the tick ends, within these bounds: the server works on
#: them while the loop gathers the others. Fewer would cost more in system calls than working side by side gains; of more, the
#: one side would have nothing to do while the other works, and other clients would wait for the server.
PER_RUN_MIN, PER_RUN_MAX = 8, 50
HISTORY_PAGE = 100
SCAN_PAGE = 1000


def open_store(url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> LockStore:
    return RedisStore(url, holder=holder, prefix=prefix, runtime=runtime, timeout_s=timeout_s)


def open_blocking_store(url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> BlockingStore:
    return RedisBlockingStore(url, holder=holder, prefix=prefix, runtime=runtime, timeout_s=timeout_s)


class RedisStore:
    """`LockStore` on one server, on the primary that sentinels name, or on a cluster."""

    def __init__(self, url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> None:
        self._url = url
        self._target = parse_url(url)
        self._caller = Caller(url, holder=holder, prefix=prefix, runtime=runtime, timeout_s=timeout_s)
        self._clustered = self._target.kind == "cluster"
        self._link: WireLink | ClusterLink = _linked(self._target, self._caller, self._wake)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callbacks: list[WakeCallback] = []
        # This tick's acquires and releases.
        self._keys: list[str] = []
        self._items: list[str] = []
        self._futures: list[asyncio.Future[Any]] = []
        self._was_alone = False
        #: About how many were under way at once in the last ticks.
        self._crowd = 0
        self._per_run = PER_RUN_MIN

    async def open(self) -> None:
        await self._link.open()
        self._loop = asyncio.get_running_loop()

    def acquire(
        self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1
    ) -> Awaitable[Grant | Busy]:
        item = acquire_item(token, ttl_ms, queue_ms, fences)
        if self._clustered:
            check_key(key)
        if queue_ms:
            self._link.listen(key)
        return self._enqueue(key, item)

    def release(self, key: str, token: str) -> Awaitable[bool]:
        return self._enqueue(key, release_item(token))

    def _enqueue(self, key: str, item: str) -> asyncio.Future[Any]:
        loop = self._loop
        if loop is None:
            return _failed(Unavailable.not_open(self._caller.subject))
        # The loop's own `create_future` is this, one call deeper.
        future: asyncio.Future[Any] = asyncio.Future(loop=loop)
        if self._was_alone and not self._keys and self._link.idle():
            # Who had no company the last time does not wait for it; should there be some now, it
            # finds this one in flight and gathers.
            self._link.send([Run(self._caller, [key], [item], [future])])
            return future
        self._keys.append(key)
        self._items.append(item)
        self._futures.append(future)
        gathered = len(self._keys)
        if gathered == self._per_run:
            self._flush()
        elif gathered == 1:
            loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        keys, items, futures = self._keys, self._items, self._futures
        if not keys:
            return  # all of the tick's have gone out already
        self._keys, self._items, self._futures = [], [], []
        self._was_alone = len(keys) == 1
        plan = self._link.plan(keys)
        if len(plan) == 1:
            runs = [Run(self._caller, keys, items, futures)]
        else:
            runs = [
                Run(self._caller, [keys[i] for i in part], [items[i] for i in part], [futures[i] for i in part])
                for part in plan
            ]
        self._link.send(runs)
        self._crowd = max(self._link.in_flight(), self._crowd - 1)
        self._per_run = min(PER_RUN_MAX, max(PER_RUN_MIN, (self._crowd + 1) // 2))

    async def renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        keys = [key for key, _, _ in renewals]
        lines = await self._ask(keys, [f"N {ttl_ms} {token}" for _, token, ttl_ms in renewals])
        return standings(lines)

    async def evict(self, key: str, fence: int, *, reason: str) -> bool:
        return await self._ask([key], [f"E {fence} {reason}"]) == ["1"]

    async def find_holder(self, key: str) -> Holder | None:
        (line,) = await self._ask([key], ["L"])
        return _holder(key, line)

    async def list_holders(self, prefix: str, *, after: str = "", limit: int = 100) -> list[Holder]:
        if not limit:
            return []
        pattern = "".join(f"\\{c}" if c in "*?[]\\" else c for c in prefix) + "*"
        found: set[str] = set()
        for node in self._link.nodes():
            cursor = "0"
            while True:
                reply = await node.ask("SCAN", cursor, "MATCH", pattern, "COUNT", str(SCAN_PAGE), "TYPE", "string")
                assert isinstance(reply, list)
                cursor, page = reply[0].decode(), reply[1]
                found.update(key.decode("utf-8", "replace") for key in page)
                if cursor == "0":
                    break
        fence = self._caller.names()[0]
        keys = sorted(k for k in found if k > after and k != fence and not k.startswith(fence + ":{"))
        holders: list[Holder] = []
        for start in range(0, len(keys), limit):  # what expired since the scan makes room for others
            page = keys[start : start + limit]
            lines = await self._ask(page, ["L"] * len(page))
            holders += [held for key, line in zip(page, lines, strict=True) if (held := _holder(key, line))]
            if len(holders) >= limit:
                break
        return holders[:limit]

    async def list_history(self, key: str, *, limit: int = 100) -> list[Ownership]:
        history = self._link.history(key)
        lines: list[Ownership] = []
        newest = "+"
        while len(lines) < limit:
            page = await self._link.ask_about(key, "XREVRANGE", history, newest, "-", "COUNT", str(HISTORY_PAGE))
            for entry, fields in page:
                lines += reversed(_ownerships(key, entry, fields))
            if len(page) < HISTORY_PAGE:
                break
            newest = f"({page[-1][0].decode()}"
        return lines[limit - 1 :: -1] if len(lines) >= limit else lines[::-1]

    def on_wake(self, callback: WakeCallback) -> None:
        self._callbacks.append(callback)

    def sibling(self) -> LockStore:
        caller = self._caller
        return RedisStore(
            self._url, holder=caller.holder, prefix=caller.prefix, runtime=caller.runtime, timeout_s=caller.timeout_s
        )

    async def close(self) -> None:
        self._loop = None
        await self._link.close()

    async def _ask(self, keys: list[str], items: list[str]) -> list[str]:
        """Run the items at once, not with the tick's. One line for each."""
        plan = self._link.plan(keys)
        if len(plan) == 1:
            run = self._whole(keys, items)
            self._link.send([run])
            only: list[str] = await run.futures[0]
            return only
        runs = [self._whole([keys[i] for i in part], [items[i] for i in part]) for part in plan]
        if runs:
            self._link.send(runs)
        answers = await asyncio.gather(*(run.futures[0] for run in runs))
        lines = [""] * len(keys)
        for part, answer in zip(plan, answers, strict=True):
            for i, line in zip(part, answer, strict=True):
                lines[i] = line
        return lines

    def _whole(self, keys: list[str], items: list[str]) -> Run:
        if self._loop is None:
            raise Unavailable.not_open(self._caller.subject)
        return Run(self._caller, keys, items, [self._loop.create_future()], whole=True)

    def _wake(self, key: str, token: str) -> None:
        for callback in self._callbacks:
            callback(key, token)


def _linked(target: Target, caller: Caller, wake: WakeCallback) -> WireLink | ClusterLink:
    if target.kind == "cluster":
        return ClusterLink(caller, target.addresses, wake)
    if target.kind == "sentinel":
        sentinels = Sentinels(target)
        return WireLink(caller, lambda: sentinels.find_primary(caller.timeout_s), wake)

    async def the_only_one() -> Address:
        return target.addresses[0]

    return WireLink(caller, the_only_one, wake)


def _failed(error: Exception) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def _holder(key: str, line: str) -> Holder | None:
    if line == "-":
        return None
    fence, remaining, waiters, digest, holder = line[1:].split(" ", 4)
    return Holder(
        key=key,
        fence=int(fence),
        holder=holder,
        token_digest=digest,
        remaining_ms=int(remaining) if remaining != "-1" else ENDLESS_MS,
        waiters=int(waiters),
    )


def _ownerships(key: str, entry: bytes, fields: list[bytes]) -> list[Ownership]:
    """The events of one history entry that concern the key, oldest first."""
    name = key.encode("utf-8", "surrogatepass")
    at = int(entry.partition(b"-")[0]) / 1000
    found = []
    for lock, text in zip(fields[::2], fields[1::2], strict=True):
        if lock == name:
            what, _, note = text.decode("utf-8", "replace").partition("\n")
            fence, _, holder = what[1:].partition(":")
            found.append(Ownership(key=key, fence=int(fence), holder=holder, event=EVENTS[what[0]], at=at, note=note))
    return found
