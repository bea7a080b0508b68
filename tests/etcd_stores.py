"""What the tests of the etcd store share: a server of one's own, and stores on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import servers

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import Grant, LockStore, Renewal, Standing
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store

LONG = 60_000


@contextmanager
def own_server() -> Iterator[servers.Server]:
    """To be killed, paused and emptied by one test."""
    try:
        started = servers.etcd_server().start()
    except (FileNotFoundError, RuntimeError) as why:
        servers.unavailable("etcd", str(why))
    try:
        yield started
    finally:
        started.remove()


def make(url: str, **options: float) -> LockStore:
    return open_store(url, holder="test-holder", prefix="p:", runtime=SYSTEM, **options)


async def granted(store: LockStore, key: str, token: str, ttl_ms: int = LONG, **options: int) -> int:
    reply = await store.acquire(key, token, ttl_ms=ttl_ms, **options)
    assert isinstance(reply, Grant), reply
    return reply.fence


async def answered(store: LockStore, key: str, token: str) -> bool:
    """Whether the lock is held, and the server back."""
    try:
        return await store.renew([Renewal(key, token, LONG)]) == [Standing.OWNED]
    except Unavailable:
        return False


async def post(server: servers.Server, path: str, **body: str | dict[str, str]) -> dict[str, Any]:
    async with httpx2.AsyncClient(trust_env=False) as client:
        response = await client.post(f"http://127.0.0.1:{server.port}{path}", json=body)
        answer: dict[str, Any] = response.raise_for_status().json()
        return answer
