"""The blocking form of the Redis store: one socket per thread."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import servers
from harness import SOON_S

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import Busy, Grant, Renewal, Standing
from locks.redis_setup import LONG, A, B, C, blocking, client

pytest_plugins = ["locks.redis_fixtures"]

T = TypeVar("T")


@pytest.fixture(params=["single", "cluster"])
def url(request: pytest.FixtureRequest, server: servers.Server) -> str:
    if request.param == "single":
        return server.url
    nodes: list[servers.Server] = request.getfixturevalue("cluster")
    return f"redis+cluster://127.0.0.1:{nodes[1].port}"


def test_threads_have_the_same_verbs(url: str, prefix: str) -> None:
    key = f"{prefix}k"
    with blocking(url, prefix) as store:
        first = store.acquire(key, A, ttl_ms=LONG)
        assert isinstance(first, Grant)
        assert store.acquire(key, A, ttl_ms=LONG) == first
        assert isinstance(store.acquire(key, B, ttl_ms=LONG, queue_ms=5000), Busy)
        renewals = [Renewal(f"{prefix}{n}", A, LONG) for n in range(250)] + [
            Renewal(key, A, LONG),
            Renewal(key, C, LONG),
        ]
        assert store.renew(renewals) == [Standing.GONE] * 250 + [Standing.OWNED, Standing.TAKEN]
        assert not store.release(key, C)
        assert store.release(key, A)
        second = store.acquire(key, B, ttl_ms=LONG)
    assert isinstance(second, Grant)
    assert second.fence > first.fence


def test_eight_threads_on_their_own_keys(url: str, prefix: str) -> None:
    def work(n: int) -> list[int]:
        fences = []
        for i in range(25):
            reply = store.acquire(f"{prefix}{n}", f"{n:016d}{i:016d}", ttl_ms=LONG)
            assert isinstance(reply, Grant)
            fences.append(reply.fence)
            assert store.release(f"{prefix}{n}", f"{n:016d}{i:016d}")
        return fences

    with blocking(url, prefix) as store, ThreadPoolExecutor(8) as pool:
        for fences in pool.map(work, range(8)):
            assert fences == sorted(set(fences))


def test_eight_threads_on_one_key_exclude_each_other(server: servers.Server, prefix: str) -> None:
    key, inside = f"{prefix}k", threading.Lock()
    fences: list[int] = []

    def work(n: int) -> None:
        pause = threading.Event()
        for i in range(10):
            token = f"{n:016d}{i:016d}"
            while not isinstance(reply := store.acquire(key, token, ttl_ms=LONG, queue_ms=5000), Grant):
                pause.wait(0.002)
            assert inside.acquire(blocking=False)
            fences.append(reply.fence)
            inside.release()
            assert store.release(key, token)

    with blocking(server.url, prefix) as store, ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))

    assert len(fences) == 80
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("main_thread", [True, False])
def test_socket_is_dropped_after_a_timeout(own_server: servers.Server, prefix: str, main_thread: bool) -> None:
    with blocking(own_server.url, prefix, timeout_s=0.5) as store, ThreadPoolExecutor(1) as pool:

        def call(verb: Callable[..., T], *arguments: str, **options: int) -> T:
            return verb(*arguments, **options) if main_thread else pool.submit(verb, *arguments, **options).result()

        assert isinstance(call(store.acquire, f"{prefix}k", A, ttl_ms=LONG), Grant)
        own_server.pause()
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"no answer within 0\.5 s") as unknown:
            call(store.release, f"{prefix}k", A)
        took = time.monotonic() - began
        own_server.resume()

        # The answer to the release must not be taken for the answer to this.
        assert isinstance(call(store.acquire, f"{prefix}other", A, ttl_ms=LONG), Grant)
    assert unknown.value.applied is None
    assert 0.5 <= took < SOON_S


def test_signals_do_not_keep_the_main_thread_waiting(own_server: servers.Server, prefix: str) -> None:
    """The timeout does not start anew with each of them."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with blocking(own_server.url, prefix, timeout_s=0.5) as store:
            store.release(f"{prefix}k", A)
            own_server.pause()
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            began = time.monotonic()
            with pytest.raises(Unavailable):
                store.release(f"{prefix}k", A)
            assert 0.5 <= time.monotonic() - began < SOON_S
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        own_server.resume()


def test_signal_handler_that_asks_while_its_thread_waits_gets_its_own_answer(
    own_server: servers.Server, prefix: str
) -> None:
    """As one that releases, or takes, a lock when the program is told to end."""
    handled: list[Grant | Busy] = []

    def handle(*_: object) -> None:
        own_server.resume()
        handled.append(store.acquire(f"{prefix}theirs", B, ttl_ms=LONG))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with blocking(own_server.url, prefix) as store:
            assert isinstance(store.acquire(f"{prefix}theirs", A, ttl_ms=LONG), Grant)
            own_server.pause()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            mine = store.acquire(f"{prefix}mine", C, ttl_ms=LONG)
            assert isinstance(mine, Grant)
            assert isinstance(handled[0], Busy)
            assert store.acquire(f"{prefix}mine", C, ttl_ms=LONG) == mine
    finally:
        signal.signal(signal.SIGALRM, before)
        own_server.resume()


def test_closed_store_and_dead_server_are_unavailable_to_threads(own_server: servers.Server, prefix: str) -> None:
    with blocking(own_server.url, prefix) as store:
        store.release(f"{prefix}k", A)
        own_server.kill()
        for applied in (None, False, False):
            with pytest.raises(Unavailable) as down:
                store.release(f"{prefix}k", A)
            assert down.value.applied is applied
        store.close()
        with pytest.raises(Unavailable, match="closed") as closed:
            store.release(f"{prefix}k", A)
        assert closed.value.applied is False


def test_close_ends_a_call_that_another_thread_waits_in(own_server: servers.Server, prefix: str) -> None:
    with blocking(own_server.url, prefix, timeout_s=20) as store, ThreadPoolExecutor(1) as pool:
        pool.submit(store.release, f"{prefix}k", A).result()
        own_server.pause()
        waiting = pool.submit(store.release, f"{prefix}k", A)
        while not waiting.running():
            time.sleep(0.001)
        time.sleep(0.05)

        store.close()

        with pytest.raises(Unavailable) as ended:
            waiting.result(timeout=5)
        own_server.resume()
    assert ended.value.applied is None


def test_forked_child_does_not_use_its_parents_socket(server: servers.Server, prefix: str) -> None:
    with blocking(server.url, prefix) as store:
        assert isinstance(store.acquire(f"{prefix}k", A, ttl_ms=LONG), Grant)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if isinstance(store.acquire(f"{prefix}k", B, ttl_ms=LONG), Busy) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.release(f"{prefix}k", A)
    with client(server) as theirs:
        assert theirs.get(f"{prefix}k") is None
