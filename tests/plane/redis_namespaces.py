"""A namespace of its own for each test, in the one Redis server of the test run; and stores on it."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import pytest
import redis
import servers

from holdfast.core.topic import Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.stores import StoreWithBus, open_store

STARTED = {"redis": servers.redis_server, "redis7": servers.redis7_server}


@contextmanager
def fresh_namespace(running: dict[str, servers.Server | None], kind: str = "redis") -> Iterator[str]:
    """The URL of a namespace in which there is nothing yet."""
    server = server_url(running, kind)
    name = f"t{uuid.uuid4().hex[:12]}"
    url = f"{server}?namespace={name}"
    try:
        yield url
    finally:
        with client(url) as raw:
            left = list(raw.scan_iter(match=f"{{{name}}}:*", count=1000))
            if left:
                raw.unlink(*left)


def server_url(running: dict[str, servers.Server | None], kind: str = "redis") -> str:
    elsewhere = os.environ.get(f"HOLDFAST_TEST_{kind.upper()}_URL")
    if elsewhere:
        return elsewhere
    if kind not in running:
        try:
            running[kind] = STARTED[kind]().start()
        except (FileNotFoundError, RuntimeError) as why:
            servers.unavailable(kind, str(why))
    server = running[kind]
    assert server is not None
    return server.url


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(urlunsplit(urlsplit(url)._replace(query="")))


def named(url: str, name: str) -> str:
    """A key of the plane's."""
    [namespace] = parse_qs(urlsplit(url).query)["namespace"]
    return f"{{{namespace}}}:{name}"


@pytest.fixture
def url(running: dict[str, servers.Server | None]) -> Iterator[str]:
    with fresh_namespace(running) as url:
        yield url


@pytest.fixture
def raw(url: str) -> Iterator[Any]:
    with client(url) as opened:
        yield opened


@asynccontextmanager
async def opened(url: str, *, topics: Topics | None = None, timeout_s: float = 10.0) -> AsyncIterator[StoreWithBus]:
    store = open_store(url, topics=topics or Topics(), runtime=SYSTEM, timeout_s=timeout_s)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
