"""Wake-ups through Postgres are hints: what becomes of a lock when they cannot be sent."""

from __future__ import annotations

from holdfast.locks.port import Busy, Grant
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from locks.postgres_setup import LONG, A, B, full_of_notifications


async def test_lock_is_handed_on_when_the_server_has_no_room_for_wakes() -> None:
    """The waiter finds it by looking."""
    with full_of_notifications() as url:
        store = open_store(url, holder="test-holder", prefix="p:", runtime=SYSTEM)
        await store.open()
        try:
            assert isinstance(await store.acquire("p:k", A, ttl_ms=LONG), Grant)
            assert isinstance(await store.acquire("p:k", B, ttl_ms=LONG, queue_ms=LONG), Busy)

            assert await store.release("p:k", A)

            assert isinstance(await store.acquire("p:k", B, ttl_ms=LONG), Grant)
        finally:
            await store.close()
