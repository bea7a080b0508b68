"""Locks in etcd: `etcd://[user:password@]host:port[,host:port…]`, or `etcds://` with TLS.

A queued contender's lease lasts `queue_ms`; what it is granted while it waits lasts as long as
that does, until it repeats its acquire and moves to a lease of its ttl.

Leases count whole seconds: a ttl is rounded up, and the server has a minimum of its own (2 s by
default). etcd ends an expired lease up to a second late, never early.

A line of the timeline takes about 300 bytes for three hours, and etcd keeps overwritten and
deleted keys until it is compacted: run it with `--auto-compaction-retention`. A user needs read
and write on the prefix, no more. `?ca=…&cert=…&key=…` name files for TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import (
    FENCES_PER_GRANT_MAX,
    Busy,
    Grant,
    Holder,
    Ownership,
    Renewal,
    Standing,
    WakeCallback,
    require_token,
)
from holdfast.locks.stores.etcd import api, layout
from holdfast.locks.stores.etcd.layout import Contender, Place, contenders, digest_of, seconds
from holdfast.locks.stores.etcd.waiters import ENTERING, Waiters

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

#: How often one acquire looks again because what it saw was gone when it acted.
LOOKS_MAX = 5
#: How many contenders one look reads. Who is further behind is looked up by name.
LOOK_DEPTH = 16
#: How many grants, and entries in doubt, an instance remembers. Forgetting one costs its release a request.
MEMORY_MAX = 10_000
HISTORY_S = 3 * 3600

_HOUR_US = 3600 * 1_000_000

K = TypeVar("K")
V = TypeVar("V")


def open_store(url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> EtcdStore:
    return EtcdStore(url, holder=holder, prefix=prefix, runtime=runtime, timeout_s=timeout_s)


class EtcdStore:
    def __init__(self, url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> None:
        self._url = url
        self._gateway = api.Gateway(url, timeout_s=timeout_s)
        self._holder = holder
        self._prefix = prefix
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._base = 0
        self._history_hour = -1
        #: Leases without keys, by ttl, the most recently used last. Taking one over costs a
        #: keep-alive, while granting and revoking a lease are one synced write each.
        self._spares: dict[int, list[int]] = {}
        #: What this instance was granted, by name. A release can begin with the deletion then.
        self._granted: dict[bytes, Contender] = {}
        #: Leases of entries that were sent and not answered, and whose they are. See `_settle`.
        self._in_doubt: dict[int, bytes] = {}
        self._waiters = Waiters(self._gateway, prefix=prefix, runtime=runtime)

    async def open(self) -> None:
        if self._base:
            return
        try:
            async with self._within(applied=None):
                await self._gateway.open()
                await self._learn_base()
        except BaseException:
            await self._gateway.close()
            raise

    async def acquire(self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1) -> Grant | Busy:
        require_token(token)
        assert 1 <= fences <= FENCES_PER_GRANT_MAX, fences  # every grant has room for this many
        if queue_ms and self._base:  # of a store that is closed nobody would end it
            self._waiters.start()
        async with self._within(applied=None):
            for _ in range(LOOKS_MAX):
                try:
                    reply = await self._try_acquire(key, token, ttl_s=seconds(ttl_ms), queue_s=seconds(queue_ms))
                except api.LeaseNotFound:
                    self._history_hour = -1  # it may have been this one
                    continue
                if reply is not None:
                    return reply
        return Busy(None, 0)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        batches = [renewals[n : n + api.OPERATIONS_MAX] for n in range(0, len(renewals), api.OPERATIONS_MAX)]
        async with self._within(applied=None):
            try:
                answers = await api.all_of(self._renew(batch) for batch in batches)
            except Unavailable as why:
                if len(renewals) > 1:
                    why.applied = None  # the others may have been renewed
                raise
        return [standing for answer in answers for standing in answer]

    async def release(self, key: str, token: str) -> bool:
        require_token(token)
        digest = digest_of(token)
        name = contenders(key)[0] + digest.encode()
        async with self._within(applied=None):
            self._waiters.forget(key, digest)
            granted = self._granted.pop(name, None)
            released = granted is not None and await self._leave(key, granted, "released")
            if not released:
                first, mine, _ = await self._look(key, digest)
                # Who is first stays first: a later contender cannot get a lower revision.
                left = mine is not None and await self._leave(key, mine, "released" if mine == first else "")
                released = left and mine == first
            try:
                await self._settle(name)
            except Unavailable as why:
                why.applied = None  # the rest has been done
                raise
        return released

    async def evict(self, key: str, fence: int, *, reason: str) -> bool:
        async with self._within(applied=None):
            first = (await self._look(key)).first
            if first is None or first.fence != fence:
                return False
            return (await self._remove(key, first, "evicted", reason)).succeeded

    async def find_holder(self, key: str) -> Holder | None:
        async with self._within(applied=False):
            return await self._describe(key, await self._look(key))

    async def list_holders(self, prefix: str, *, after: str = "", limit: int = 100) -> list[Holder]:
        start = max(prefix.encode() or b"\0", after.encode() + b"\1" if after else b"")
        end = layout.end_of(prefix)
        holders: list[Holder] = []
        while len(holders) < limit:
            async with self._within(applied=False):
                reading = api.read(start, end, limit=api.OPERATIONS_MAX, keys_only=True)
                page = (await self._gateway.read(reading)).kvs
                if not page:
                    break
                keys, start = layout.lock_keys((kv.name for kv in page), limit=limit - len(holders))
                places = await self._look_at_many(keys)
                found = await api.all_of(map(self._describe, keys, places))
                holders += [holder for holder in found if holder is not None]
        return holders

    async def list_history(self, key: str, *, limit: int = 100) -> list[Ownership]:
        reading = api.read_by_age(*layout.history(self._prefix, key), limit=limit or 1, newest_first=True)
        async with self._within(applied=False):
            newest = (await self._gateway.read(reading)).kvs
        return [layout.ownership(key, kv) for kv in reversed(newest[:limit])]  # to etcd, 0 is no limit

    def on_wake(self, callback: WakeCallback) -> None:
        self._waiters.wake = callback

    def sibling(self) -> EtcdStore:
        return open_store(
            self._url, holder=self._holder, prefix=self._prefix, runtime=self._runtime, timeout_s=self._timeout_s
        )

    async def close(self) -> None:
        self._base = 0
        async with self._gateway.closing():
            await self._waiters.stop()

    @asynccontextmanager
    async def _within(self, *, applied: bool | None) -> AsyncIterator[None]:
        """The deadline of a verb, or of one page of a list: all its requests together have the store's timeout."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as late:
            self._gateway.distrust()
            raise Unavailable(self._gateway.shown, f"no answer within {self._timeout_s} s", applied=applied) from late

    async def _try_acquire(self, key: str, token: str, *, ttl_s: int, queue_s: int) -> Grant | Busy | None:
        """One look, and the step that follows from it. None if the look was out of date by then."""
        digest = digest_of(token)
        first, mine, _ = await self._look(key, digest)
        if first is None:
            mine = await self._enter(key, digest, ttl_s)
        elif mine == first and not await self._keep(key, first, ttl_s, granted=True):
            return None
        if first is None or mine == first:
            self._waiters.forget(key, digest)
            if mine is None:
                return None
            _remember(self._granted, mine.name, mine)
            return Grant(mine.fence)
        remaining_ms = await self._gateway.remaining_ms(first.lease)
        # Last: if anything above fails, the store is as it was.
        if queue_s and not await self._wait_in_line(key, token, first, mine, queue_s):
            return None
        return Busy(first.holder, remaining_ms)

    async def _wait_in_line(self, key: str, token: str, first: Contender, mine: Contender | None, queue_s: int) -> bool:
        if mine is not None:
            self._waiters.note(key, token, mine.created)
            return await self._keep(key, mine, queue_s, granted=False)
        # Noted before it is true: the holder's end may be reported sooner than our own entry.
        self._waiters.note(key, token, ENTERING)
        mine = await self._enter(key, digest_of(token), queue_s, behind=first)
        if mine is None:
            return False
        self._waiters.note(key, token, mine.created)
        return True

    async def _look(self, key: str, digest: str = "") -> Place:
        """Where the lock stands, and the contender with this digest.

        Up to two reads, so not always of one moment, and the next moment all of it may be over.
        What follows from a look is therefore a transaction that compares the create revision of
        the contender it concerns, or starts a lease anew that was found on the first one.
        """
        start, end = contenders(key)
        found = await self._gateway.read(api.read_by_age(start, end, limit=LOOK_DEPTH if digest else 1))
        name = start + digest.encode()
        mine = [kv for kv in found.kvs if kv.name == name]
        if digest and not mine and found.total > len(found.kvs):
            mine = (await self._gateway.read(api.read(name))).kvs
        if mine:
            self._in_doubt.pop(mine[0].lease, None)  # it has arrived
        return layout.place(found, mine)

    async def _look_at_many(self, keys: Sequence[str]) -> list[Place]:
        if len(keys) <= 1:
            return [await self._look(key) for key in keys]
        reads = [api.read_by_age(*contenders(key), limit=1) for key in keys]
        found = await self._gateway.read_all(reads, never=api.delete(layout.nothing_name(self._prefix)))
        return [layout.place(first) for first in found]

    async def _enter(self, key: str, digest: str, ttl_s: int, *, behind: Contender | None = None) -> Contender | None:
        """Become the holder if there is no contender at all, or the last in a queue that `behind` still leads."""
        start, end = contenders(key)
        name = start + digest.encode()
        lease = await self._lease(ttl_s)
        mine = Contender(name, 0, lease, self._holder, ttl_s, behind is None, self._base)
        then = [api.put(name, mine.value(), lease=lease)]
        base = layout.base_name(self._prefix)
        compare = [api.holds(base, b"%d" % self._base)]
        if behind is None:
            compare.append(api.absent(start, end))
            then.append(await self._line(key, mine, "granted"))
        else:
            compare += [api.absent(name), api.created_at(behind.name, behind.created)]
        _remember(self._in_doubt, lease, name)
        outcome = await self._gateway.txn(compare, then, [api.read(base)])
        self._in_doubt.pop(lease, None)
        if outcome.succeeded:
            return mine._replace(created=outcome.revision)
        self._spare(ttl_s, lease)
        if [kv.value for kv in outcome.found[0].kvs] != [b"%d" % self._base]:
            await self._learn_base()
        return None

    async def _keep(self, key: str, mine: Contender, ttl_s: int, *, granted: bool) -> bool:
        """Start the contender's ttl anew; on another lease if it is to be another ttl."""
        wanted = mine._replace(ttl_s=ttl_s, granted=granted)
        if wanted == mine:
            # The caller has just read from a majority. So even if a leader that was deposed since
            # answers this, its successor, elected later, gives every lease its whole ttl again.
            return (await self._gateway.keep_alive([mine.lease]))[0]
        lease = await self._lease(ttl_s)
        then = [api.put(mine.name, wanted.value(), lease=lease)]
        if granted and not mine.granted:
            then.append(await self._line(key, mine, "granted"))
        outcome = await self._gateway.txn([api.created_at(mine.name, mine.created)], then)
        if not outcome.succeeded:
            self._spare(ttl_s, lease)
        self._spare_replaced(outcome)
        return outcome.succeeded

    async def _leave(self, key: str, mine: Contender, event: str) -> bool:
        outcome = await self._remove(key, mine, event)
        self._spare_replaced(outcome)
        return outcome.succeeded

    async def _settle(self, name: bytes) -> None:
        """End what unanswered entries (cancelled, late, cut off) left, or will: without a lease they are refused."""
        for lease in [lease for lease, whose in self._in_doubt.items() if whose == name]:
            await self._gateway.revoke_lease(lease)
            self._in_doubt.pop(lease, None)

    async def _remove(self, key: str, gone: Contender, event: str, note: str = "") -> api.Outcome:
        try:
            return await self._try_remove(key, gone, event, note)
        except api.LeaseNotFound:
            self._history_hour = -1
            return await self._try_remove(key, gone, event, note)
        except api.OutOfSpace:
            # Without its line, and by its name, which is its token's: nobody can enter anew meanwhile.
            return await self._gateway.delete(gone.name)

    async def _try_remove(self, key: str, gone: Contender, event: str, note: str) -> api.Outcome:
        then = [api.delete(gone.name)]
        if event:
            then.append(await self._line(key, gone, event, note))
        return await self._gateway.txn([api.created_at(gone.name, gone.created)], then)

    async def _renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        places = await self._look_at_many([renewal.key for renewal in renewals])
        standings = []
        same_ttl: dict[int, int] = {}
        for n, (renewal, (first, _, _)) in enumerate(zip(renewals, places, strict=True)):
            if first is None:
                standings.append(Standing.GONE)
            elif first.digest != digest_of(renewal.token):
                standings.append(Standing.TAKEN)
            elif first == first._replace(ttl_s=seconds(renewal.ttl_ms), granted=True):
                same_ttl[n] = first.lease
                standings.append(Standing.OWNED)
            else:
                kept = await self._keep(renewal.key, first, seconds(renewal.ttl_ms), granted=True)
                standings.append(Standing.OWNED if kept else Standing.GONE)
        for n, alive in zip(same_ttl, await self._gateway.keep_alive(list(same_ttl.values())), strict=True):
            if not alive:
                standings[n] = Standing.GONE
        return standings

    async def _lease(self, ttl_s: int) -> int:
        """A lease without keys that ends `ttl_s` from now at the earliest."""
        spares = self._spares.get(ttl_s)
        if spares:
            lease = spares.pop()
            if (await self._gateway.keep_alive([lease]))[0]:
                return lease
            spares.clear()  # the others have been idle for longer
        return await self._gateway.grant_lease(ttl_s)

    def _spare(self, ttl_s: int, lease: int) -> None:
        self._in_doubt.pop(lease, None)  # else `_settle` could end the next lock that uses it
        self._spares.setdefault(ttl_s, []).append(lease)

    def _spare_replaced(self, outcome: api.Outcome) -> None:
        """By the transaction's own word, not an earlier look: a lease must not be spared twice."""
        for kv in outcome.replaced:
            self._spare(layout.contender(kv).ttl_s, kv.lease)

    async def _line(self, key: str, whose: Contender, event: str, note: str = "") -> api.Json:
        """The write of one line of history, on a lease that all instances share for an hour."""
        now = self._runtime.wall_us()
        hour = now // _HOUR_US
        lease = layout.history_lease(self._prefix, hour)
        if hour != self._history_hour:
            await self._gateway.grant_lease(HISTORY_S, lease=lease)
            self._history_hour = hour
        name = layout.history(self._prefix, key)[0] + f"{now:x}-{self._runtime.token()[:8]}".encode()
        return api.put(name, layout.history_line(whose, event, at=now / 1_000_000, note=note), lease=lease)

    async def _learn_base(self) -> None:
        """The clock, in microseconds, when this store's data began: the floor under its fences.

        A revision alone would start again from 1 if the cluster lost its data, and be far below
        the fences of a store that was used before. With 64 fences to a revision the sum stays
        behind the clock up to 15 000 revisions a second, so the next base is above all of it.
        Only a restored backup brings back an old base with old revisions: delete the key then.
        Every contender enters under the condition that the base is still the one it knows.
        """
        name = layout.base_name(self._prefix)
        now = self._runtime.wall_us()
        # Read first: a server that has no space left can still be asked, and be given locks back.
        known = (await self._gateway.read(api.read(name))).kvs
        if not known:
            outcome = await self._gateway.txn([api.absent(name)], [api.put(name, b"%d" % now)], [api.read(name)])
            known = [kv for found in outcome.found for kv in found.kvs]
        self._base = int(known[0].value) if known else now

    async def _describe(self, key: str, found: Place) -> Holder | None:
        first = found.first
        if first is None:
            return None
        return Holder(
            key=key,
            fence=first.fence,
            holder=first.holder,
            token_digest=first.digest[:12],
            remaining_ms=await self._gateway.remaining_ms(first.lease),
            waiters=found.waiters,
        )


def _remember(memory: dict[K, V], key: K, value: V) -> None:
    memory[key] = value
    if len(memory) > MEMORY_MAX:
        del memory[next(iter(memory))]
