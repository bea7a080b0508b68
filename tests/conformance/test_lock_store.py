"""What `holdfast.locks.port.LockStore` promises, once, for every store."""

from __future__ import annotations

import asyncio
import time

import pytest
from harness import Backend, eventually

from holdfast.locks.port import Busy, Grant, LockStore, Renewal, Standing

A, B, C = "a" * 32, "b" * 32, "c" * 32
LONG = 60_000


async def granted(store: LockStore, key: str, token: str, ttl_ms: int = LONG, **options: int) -> int:
    reply = await store.acquire(key, token, ttl_ms=ttl_ms, **options)
    assert isinstance(reply, Grant), reply
    return reply.fence


async def lapsed(store: LockStore, key: str) -> None:
    async def gone() -> bool:
        return await store.find_holder(key) is None

    await eventually(gone)


# -- acquire ---------------------------------------------------------------------------------------


async def test_free_lock_is_granted_and_held_lock_is_not(backend: Backend, store: LockStore, other: LockStore) -> None:
    await granted(store, backend.key(), A)

    reply = await other.acquire(backend.key(), B, ttl_ms=LONG)

    assert isinstance(reply, Busy)
    assert reply.holder == "test-holder"
    assert 0 < reply.remaining_ms <= LONG


async def test_repeating_an_acquire_gives_the_same_fence_and_a_fresh_ttl(backend: Backend, store: LockStore) -> None:
    first = await granted(store, backend.key(), A, ttl_ms=LONG // 3)

    again = await granted(store, backend.key(), A, ttl_ms=LONG)
    holder = await store.find_holder(backend.key())

    assert first == again
    assert holder is not None
    assert holder.remaining_ms > LONG / 2


async def test_expired_lock_is_granted_with_a_higher_fence(
    backend: Backend, store: LockStore, other: LockStore
) -> None:
    before = await granted(store, backend.key(), A, ttl_ms=backend.ttl_ms)
    await lapsed(store, backend.key())

    after = await granted(other, backend.key(), B)

    assert after > before


async def test_fences_grow_over_release_and_eviction(backend: Backend, store: LockStore) -> None:
    fences = []
    for _ in range(3):
        fences.append(await granted(store, backend.key(), A))
        assert await store.release(backend.key(), A)
        fences.append(await granted(store, backend.key(), B))
        assert await store.evict(backend.key(), fences[-1], reason="test")

    assert fences == sorted(set(fences))


async def test_a_block_of_fences_is_reserved(backend: Backend, store: LockStore) -> None:
    first = await granted(store, backend.key(), A, fences=10)
    await store.release(backend.key(), A)

    after = await granted(store, backend.key(), B)

    assert after >= first + 10


async def test_one_of_many_concurrent_acquires_is_granted(backend: Backend, store: LockStore, other: LockStore) -> None:
    replies = await asyncio.gather(
        *((store if n % 2 else other).acquire(backend.key(), f"{n:032d}", ttl_ms=LONG) for n in range(40))
    )

    assert sum(isinstance(reply, Grant) for reply in replies) == 1


async def test_keys_do_not_disturb_each_other(backend: Backend, store: LockStore) -> None:
    keys = [backend.key(f"k{n}") for n in range(200)]

    fences = await asyncio.gather(*(granted(store, key, A) for key in keys))
    released = await asyncio.gather(*(store.release(key, A) for key in keys))

    assert len(fences) == 200
    assert all(released)


async def test_odd_keys_work(backend: Backend, store: LockStore) -> None:
    for name in ["ünïcode/⚓", "a{b}c", "quote'\";--", "per%cent", "star*?[x]", "x" * 400, "back\\slash"]:
        await granted(store, backend.key(name), A)
        holder = await store.find_holder(backend.key(name))
        assert holder is not None, name
        assert holder.key == backend.key(name)
        assert await store.release(backend.key(name), A)


# -- renew and release -----------------------------------------------------------------------------


async def test_renewal_keeps_a_lease_past_its_ttl(backend: Backend, store: LockStore) -> None:
    ttl_ms = max(600, backend.ttl_ms)
    await granted(store, backend.key(), A, ttl_ms=ttl_ms)
    end = time.monotonic() + 1.5 * ttl_ms / 1000
    while time.monotonic() < end:
        assert await store.renew([Renewal(backend.key(), A, ttl_ms)]) == [Standing.OWNED]
        await asyncio.sleep(ttl_ms / 5000)

    assert isinstance(await store.acquire(backend.key(), B, ttl_ms=LONG), Busy)


async def test_renewals_are_answered_one_by_one_in_order(backend: Backend, store: LockStore) -> None:
    await granted(store, backend.key("mine"), A)
    await granted(store, backend.key("theirs"), B)

    answers = await store.renew(
        [
            Renewal(backend.key("theirs"), A, LONG),
            Renewal(backend.key("nobodys"), A, LONG),
            Renewal(backend.key("mine"), A, LONG),
        ]
    )

    assert answers == [Standing.TAKEN, Standing.GONE, Standing.OWNED]


async def test_many_renewals_in_one_call(backend: Backend, store: LockStore) -> None:
    keys = [backend.key(f"k{n}") for n in range(150)]
    await asyncio.gather(*(granted(store, key, A) for key in keys))

    assert await store.renew([Renewal(key, A, LONG) for key in keys]) == [Standing.OWNED] * 150
    assert await store.renew([]) == []


async def test_wrong_token_can_neither_renew_nor_release(backend: Backend, store: LockStore) -> None:
    fence = await granted(store, backend.key(), A)

    assert await store.renew([Renewal(backend.key(), B, 1)]) == [Standing.TAKEN]
    assert not await store.release(backend.key(), B)

    holder = await store.find_holder(backend.key())
    assert holder is not None
    assert holder.fence == fence
    assert holder.remaining_ms > LONG / 2


async def test_empty_token_owns_nothing(backend: Backend, store: LockStore) -> None:
    with pytest.raises(ValueError, match="token"):
        await store.acquire(backend.key(), "", ttl_ms=LONG)
    await granted(store, backend.key(), A)
    with pytest.raises(ValueError, match="token"):
        await store.release(backend.key(), "")

    assert isinstance(await store.acquire(backend.key(), B, ttl_ms=LONG), Busy)


async def test_renewal_after_expiry_does_not_bring_a_lease_back(backend: Backend, store: LockStore) -> None:
    await granted(store, backend.key(), A, ttl_ms=backend.ttl_ms)
    await lapsed(store, backend.key())

    assert await store.renew([Renewal(backend.key(), A, LONG)]) == [Standing.GONE]
    assert await store.find_holder(backend.key()) is None


async def test_stale_owner_cannot_release_its_successor(backend: Backend, store: LockStore, other: LockStore) -> None:
    await granted(store, backend.key(), A, ttl_ms=backend.ttl_ms)
    await lapsed(store, backend.key())
    await granted(other, backend.key(), B)

    assert not await store.release(backend.key(), A)
    assert await store.renew([Renewal(backend.key(), A, LONG)]) == [Standing.TAKEN]
    assert isinstance(await store.acquire(backend.key(), C, ttl_ms=LONG), Busy)


async def test_release_frees_the_lock_once(backend: Backend, store: LockStore, other: LockStore) -> None:
    await granted(store, backend.key(), A)

    assert await store.release(backend.key(), A)
    assert not await store.release(backend.key(), A)
    await granted(other, backend.key(), B)


# -- the queue -------------------------------------------------------------------------------------


async def test_release_grants_the_first_waiter_in_order_of_entry(
    backend: Backend, store: LockStore, other: LockStore
) -> None:
    key = backend.key()
    await granted(store, key, A)
    assert isinstance(await other.acquire(key, B, ttl_ms=LONG, queue_ms=5000), Busy)
    assert isinstance(await store.acquire(key, C, ttl_ms=LONG, queue_ms=5000), Busy)

    await store.release(key, A)

    assert isinstance(await store.acquire(key, C, ttl_ms=LONG, queue_ms=5000), Busy)
    second = await granted(other, key, B, queue_ms=5000)
    await other.release(key, B)
    assert isinstance(await other.acquire(key, B, ttl_ms=LONG), Busy)
    third = await granted(store, key, C, queue_ms=5000)
    assert third > second


async def test_nobody_barges_past_a_live_waiter(backend: Backend, store: LockStore) -> None:
    key = backend.key()
    await granted(store, key, A)
    await store.acquire(key, B, ttl_ms=LONG, queue_ms=5000)
    await store.release(key, A)

    assert isinstance(await store.acquire(key, C, ttl_ms=LONG), Busy)
    await granted(store, key, B)


async def test_acquire_after_expiry_grants_the_waiter_not_the_caller(backend: Backend, store: LockStore) -> None:
    key = backend.key()
    await granted(store, key, A, ttl_ms=backend.ttl_ms)
    await store.acquire(key, B, ttl_ms=LONG, queue_ms=20_000)

    async def expired() -> bool:
        # Passers-by do not queue: they only see that A is gone.
        assert isinstance(await store.acquire(key, C, ttl_ms=LONG), Busy)
        holder = await store.find_holder(key)
        return holder is None or holder.remaining_ms > backend.ttl_ms

    await eventually(expired)

    await granted(store, key, B, queue_ms=20_000)


async def test_dead_waiter_is_skipped(backend: Backend, store: LockStore) -> None:
    key = backend.key()
    before = await granted(store, key, A)
    await store.acquire(key, B, ttl_ms=LONG, queue_ms=backend.ttl_ms)
    await store.acquire(key, C, ttl_ms=LONG, queue_ms=60_000)
    await asyncio.sleep(2.5 * backend.ttl_ms / 1000)  # B's mark runs out, by the server's clock

    await store.release(key, A)

    assert await store.renew([Renewal(key, B, LONG), Renewal(key, C, LONG)]) == [Standing.TAKEN, Standing.OWNED]
    assert await granted(store, key, C, queue_ms=60_000) > before


async def test_waiter_that_was_silent_has_lost_its_place_also_when_it_is_the_one_who_asks(
    backend: Backend, store: LockStore
) -> None:
    key, ttl_ms = backend.key(), max(500, backend.ttl_ms)  # on a busy machine, too, A holds it until both have asked
    await granted(store, key, A, ttl_ms=ttl_ms)
    await store.acquire(key, B, ttl_ms=LONG, queue_ms=backend.ttl_ms)
    await store.acquire(key, C, ttl_ms=LONG, queue_ms=60_000)
    await asyncio.sleep(2.5 * ttl_ms / 1000)  # A's lease and B's mark run out, by the server's clock

    late = await store.acquire(key, B, ttl_ms=LONG, queue_ms=60_000)

    assert isinstance(late, Busy)
    await granted(store, key, C, queue_ms=60_000)


async def test_waiter_that_was_granted_but_died_holds_no_longer_than_its_mark(
    backend: Backend, store: LockStore
) -> None:
    key = backend.key()
    await granted(store, key, A)
    await store.acquire(key, B, ttl_ms=LONG, queue_ms=backend.ttl_ms * 2)
    await store.release(key, A)

    async def free() -> bool:
        return isinstance(await store.acquire(key, C, ttl_ms=LONG), Grant)

    await eventually(free, within_s=max(10, 20 * backend.ttl_ms / 1000))
    assert await store.renew([Renewal(key, B, LONG), Renewal(key, C, LONG)]) == [Standing.TAKEN, Standing.OWNED]


async def test_release_takes_a_waiter_out_of_the_queue(backend: Backend, store: LockStore) -> None:
    key = backend.key()
    await granted(store, key, A)
    await store.acquire(key, B, ttl_ms=LONG, queue_ms=60_000)

    assert not await store.release(key, B)
    await store.release(key, A)

    await granted(store, key, C)


async def test_try_leaves_no_trace_in_the_queue(backend: Backend, store: LockStore) -> None:
    key = backend.key()
    await granted(store, key, A)
    await store.acquire(key, B, ttl_ms=LONG)
    await store.release(key, A)

    assert await store.find_holder(key) is None
    await granted(store, key, C)


async def test_granted_waiter_is_woken(backend: Backend, store: LockStore, other: LockStore) -> None:
    key = backend.key()
    woken = asyncio.Event()
    other.on_wake(lambda k, t: woken.set() if k in (key, "") and t in (B, "") else None)
    await granted(store, key, A)
    await other.acquire(key, B, ttl_ms=LONG, queue_ms=20_000)

    await store.release(key, A)

    await asyncio.wait_for(woken.wait(), 5)
    assert await other.renew([Renewal(key, B, LONG)]) == [Standing.OWNED]
    await granted(other, key, B, queue_ms=20_000)


async def test_waiters_are_counted(backend: Backend, store: LockStore) -> None:
    key = backend.key()
    await granted(store, key, A)
    await store.acquire(key, B, ttl_ms=LONG, queue_ms=20_000)
    await store.acquire(key, C, ttl_ms=LONG, queue_ms=20_000)

    holder = await store.find_holder(key)

    assert holder is not None
    assert holder.waiters == 2


# -- evict, inspect --------------------------------------------------------------------------------


async def test_eviction_needs_the_fence_and_keeps_the_reason(backend: Backend, store: LockStore) -> None:
    key = backend.key()
    fence = await granted(store, key, A)

    assert not any([await store.evict(key, wrong, reason="wrong fence") for wrong in (fence - 1, -1, 2**70)])
    assert await store.evict(key, fence, reason="stuck since noon")

    assert await store.renew([Renewal(key, A, LONG)]) == [Standing.GONE]
    last = (await store.list_history(key))[-1]
    assert (last.event, last.fence, last.note) == ("evicted", fence, "stuck since noon")


async def test_eviction_grants_the_next_waiter(backend: Backend, store: LockStore) -> None:
    key = backend.key()
    fence = await granted(store, key, A)
    await store.acquire(key, B, ttl_ms=LONG, queue_ms=20_000)

    await store.evict(key, fence, reason="test")

    assert await store.renew([Renewal(key, A, LONG), Renewal(key, B, LONG)]) == [Standing.TAKEN, Standing.OWNED]
    assert await granted(store, key, B) > fence


async def test_holder_is_described_without_its_token(backend: Backend, store: LockStore) -> None:
    fence = await granted(store, backend.key(), A)

    holder = await store.find_holder(backend.key())

    assert holder is not None
    assert (holder.key, holder.fence, holder.holder, holder.waiters) == (backend.key(), fence, "test-holder", 0)
    assert A not in repr(holder)
    assert len(holder.token_digest) >= 8


async def test_listing_is_ordered_paged_and_bound_to_the_prefix(backend: Backend, store: LockStore) -> None:
    names = [f"list:{n:02d}" for n in range(7)]
    for name in [*names, "elsewhere"]:
        await granted(store, backend.key(name), A)
    await store.release(backend.key("list:03"), A)

    first = await store.list_holders(backend.key("list:"), limit=4)
    rest = await store.list_holders(backend.key("list:"), after=first[-1].key, limit=4)

    listed = [holder.key for holder in [*first, *rest]]
    assert listed == [backend.key(name) for name in names if name != "list:03"]
    assert await store.list_holders(backend.key("list:"), limit=0) == []


async def test_history_tells_grants_and_releases_in_order(backend: Backend, store: LockStore, other: LockStore) -> None:
    key = backend.key()
    first = await granted(store, key, A)
    await store.release(key, A)
    second = await granted(other, key, B)

    lines = await store.list_history(key)

    assert [(line.event, line.fence, line.holder) for line in lines] == [
        ("granted", first, "test-holder"),
        ("released", first, "test-holder"),
        ("granted", second, "other-holder"),
    ]
    assert all(abs(line.at - time.time()) < 60 for line in lines)
    assert [line.event for line in await store.list_history(key, limit=1)] == ["granted"]
    assert await store.list_history(key, limit=0) == []
