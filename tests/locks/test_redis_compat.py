"""The drop-in for redis-py's Lock: redis-py's own tests, both locks on one key, and what differs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import tarfile
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
import servers
from harness import make_backend

from holdfast.locks import LockClass, Locks, redis_compat
from holdfast.locks.redis_compat import AsyncLock, Lock, beside

ROOT = Path(__file__).parents[2]

#: redis-py's tests that assert how redis-py does it, not what it promises.
NOT_RUN = {
    "test_blocking_timeout": "counts the sleeps of redis-py's private clock; ours are jittered",
    "test_context_manager_blocking_timeout": "the same",
    "test_high_sleep_small_blocking_timeout": "the same",
}


@pytest.fixture
def url(running: dict[str, servers.Server | None], tmp_path: Path) -> str:
    return make_backend("redis", running, tmp_path).url


@pytest.fixture
def client(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url) as opened:
        yield opened


@pytest.fixture
async def aclient(url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(url) as opened:
        yield opened


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"compat:{request.node.name}:{os.getpid()}"


def redis_py_tests(directory: Path) -> Path:
    """redis-py's source distribution, with its tests, checked against our lock file."""
    cache = ROOT / ".venv/redis-py-tests"
    archive = cache / f"redis-{redis.__version__}.tar.gz"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation",
            "--no-binary", "redis", "--dest", str(cache), f"redis=={redis.__version__}",
        ]  # fmt: skip
        fetched = subprocess.run(command, capture_output=True, text=True, check=False)
        if fetched.returncode:
            servers.unavailable("redis-py's source distribution", fetched.stderr[-500:])
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert f"sha256:{digest}" in (ROOT / "requirements.lock").read_text()
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
    return directory / f"redis-{redis.__version__}"


def test_redis_py_own_tests_pass(url: str, tmp_path: Path) -> None:
    """The published lock tests of redis-py, with our classes in place of its own."""
    source = redis_py_tests(tmp_path)
    plugin = tmp_path / "swap_locks.py"
    plugin.write_text(
        "import redis.asyncio.lock, redis.lock\n"
        "from holdfast.locks.redis_compat import AsyncLock, Lock\n"
        "redis.lock.Lock, redis.asyncio.lock.Lock = Lock, AsyncLock\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    # Both at once, each on a server of its own (they empty it): most of the time they wait for locks to expire.
    other = servers.redis_server().start()
    runs = [
        subprocess.Popen(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "swap_locks", "-p", "no:cacheprovider",
                "--disable-plugin-autoload", "-p", "pytest_asyncio.plugin",
                "-o", "addopts=", "-o", "filterwarnings=", "-o", "asyncio_mode=auto", "-W", "ignore",
                f"--redis-url={place.removesuffix('/0')}/9", file,
                "-k", " and ".join(f"not {test}" for test in NOT_RUN),
            ],
            cwd=source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for place, file in ((url, "tests/test_lock.py"), (other.url, "tests/test_asyncio/test_lock.py"))
    ]  # fmt: skip
    said = [run.communicate()[0] for run in runs]
    other.remove()

    assert [run.returncode for run in runs] == [0, 0], "\n".join(output[-3000:] for output in said)
    # Sync once, asyncio with a single connection and with a pool: none of them silently left out.
    passed = [int(output.strip().splitlines()[-1].split(" passed")[0].split()[-1]) for output in said]
    assert sum(passed) >= 70, passed


# -- together on one key ---------------------------------------------------------------------------


def test_excludes_and_is_excluded_by_redis_py(client: redis.Redis, name: str) -> None:
    theirs = redis.lock.Lock(client, name, timeout=10)
    ours = Lock(client, name, timeout=10)

    assert theirs.acquire(blocking=False)
    assert not ours.acquire(blocking=False)
    theirs.release()
    assert ours.acquire(blocking=False)
    assert not theirs.acquire(blocking=False)
    ours.release()


async def test_excludes_and_is_excluded_by_locks(url: str, client: redis.Redis) -> None:
    payout = LockClass("payout", ttl=10)
    async with Locks(url, prefix=f"compat{os.getpid()}:") as locks:
        drop_in = Lock(client, f"compat{os.getpid()}:payout:7", timeout=10)
        async with locks.hold(payout, "7"):
            assert not drop_in.acquire(blocking=False)
        assert drop_in.acquire(blocking=False)
        assert await locks.try_acquire(payout, "7") is None
        drop_in.release()
        lease = await locks.try_acquire(payout, "7")
        assert lease is not None
        await locks.release(lease)


# -- what is better than what it replaces ----------------------------------------------------------


def test_fences_grow(client: redis.Redis, name: str) -> None:
    lock = Lock(client, name, timeout=10)
    fences: list[int] = []
    for _ in range(3):
        with lock:
            assert lock.fence is not None
            fences.append(lock.fence)

    assert fences == sorted(set(fences))
    assert lock.fence is None


def test_repeated_acquire_and_release_are_answered_as_the_first(client: redis.Redis, name: str) -> None:
    """What redis-py's retries do when a reply is lost: the same command arrives twice."""
    run: Any = client.execute_command

    def twice(*words: Any, **options: Any) -> Any:
        run(*words, **options)
        return run(*words, **options)

    client.execute_command = twice  # type: ignore[method-assign]
    lock = Lock(client, name, timeout=10)

    assert lock.acquire(blocking=False)
    lock.release()
    assert lock.acquire(blocking=False, token="mine")
    lock.release()
    assert not lock.locked()


async def test_tasks_sharing_one_object_cannot_release_each_other(aclient: redis.asyncio.Redis, name: str) -> None:
    lock = AsyncLock(aclient, name, timeout=0.2)
    took_over = asyncio.Event()

    async def overrun() -> None:
        await lock.acquire()
        await took_over.wait()
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            await lock.release()

    async def successor() -> None:
        assert await lock.acquire(blocking_timeout=5)
        took_over.set()
        await first
        assert await lock.owned()
        await lock.release()

    first = asyncio.create_task(overrun())
    await asyncio.sleep(0.02)
    await asyncio.create_task(successor())


async def test_cancelled_acquire_leaves_no_lock_behind(aclient: redis.asyncio.Redis, name: str) -> None:
    luck = random.Random(7)
    lock = AsyncLock(aclient, name)
    for _ in range(150):
        task = asyncio.create_task(lock.acquire(blocking=False))
        await asyncio.sleep(luck.random() * 0.002)
        task.cancel()
        try:
            if await task:
                await lock.release()
        except asyncio.CancelledError:
            while lock._undoing:
                await asyncio.wait(lock._undoing)
        assert not await lock.locked()


def test_threads_have_a_token_each(client: redis.Redis, name: str) -> None:
    lock = Lock(client, name, timeout=10)
    lock.acquire()
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(lock.local.token))
    thread.start()
    thread.join()

    assert seen == [None]
    lock.release()


# -- where it must be as what it replaces --------------------------------------------------------------


@pytest.fixture(params=[redis.lock.Lock, Lock])
def kind(request: pytest.FixtureRequest) -> Any:
    """Both: what is asked of ours is what redis-py's does."""
    return request.param


def test_tokens_that_are_the_same_exclude_each_other(client: redis.Redis, name: str, kind: Any) -> None:
    """Some name the host in it, or the job, to see in Redis who has a lock."""
    one, other = kind(client, name, timeout=10), kind(client, name, timeout=10)
    assert one.acquire(token="host-1")
    assert not other.acquire(token="host-1", blocking=False)
    assert not one.acquire(token="host-1", blocking=False)
    assert one.owned()
    one.release()
    assert other.acquire(token="host-1", blocking=False)
    other.release()


def test_a_lock_that_ran_out_is_not_released_whatever_its_token_released_before(
    client: redis.Redis, name: str, kind: Any
) -> None:
    lock = kind(client, name, timeout=10)
    for _ in range(2):
        assert lock.acquire(token="host-1")
        lock.release()
    assert lock.acquire(token="host-1")
    client.delete(name)
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock.release()


def test_a_timeout_of_less_than_a_millisecond_is_refused_and_not_taken_for_none(
    client: redis.Redis, name: str, kind: Any
) -> None:
    with pytest.raises(redis.exceptions.ResponseError, match="invalid expire"):
        kind(client, name, timeout=0.0005).acquire(blocking=False)
    assert not client.exists(name)


def test_a_timeout_may_be_shorter_than_the_sleep(client: redis.Redis, name: str, kind: Any) -> None:
    assert kind(client, name, timeout=0.05).acquire()
    assert 0 < client.pttl(name) <= 50


def test_a_lock_may_be_named_in_bytes(client: redis.Redis, name: str, kind: Any) -> None:
    with kind(client, name.encode(), timeout=10):
        assert client.exists(name)


def test_a_lock_may_be_named_by_a_number(client: redis.Redis, kind: Any) -> None:
    number = uuid.uuid4().int % 2**50
    with kind(client, number, timeout=10) as lock:
        assert lock.owned()
        assert client.exists(str(number))


def test_a_key_of_another_type_is_somebody_else_s(client: redis.Redis, name: str, kind: Any) -> None:
    client.rpush(name, "x")
    lock = kind(client, name, timeout=10)
    assert not lock.acquire(blocking=False)
    client.delete(name)
    assert lock.acquire()
    lock.release()


def test_reacquire_gives_a_lock_a_timeout_that_had_none(client: redis.Redis, name: str, kind: Any) -> None:
    lock = kind(client, name)
    lock.acquire()
    lock.timeout = 10
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock.extend(5)
    assert lock.reacquire()
    assert client.pttl(name) > 0
    lock.release()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("decodes", [False, True])
def test_tokens_are_written_as_the_client_writes(url: str, name: str, kind: Any, encoding: str, decodes: bool) -> None:
    with redis.Redis.from_url(url, encoding=encoding, decode_responses=decodes) as client:
        lock = kind(client, name, timeout=10)
        assert lock.acquire(token="käthe")
        assert lock.owned()
        with redis.Redis.from_url(url) as plain:
            assert plain.get(name) == "käthe".encode(encoding)
        lock.release()


@pytest.mark.parametrize("kept", [redis.asyncio.lock.Lock, AsyncLock])
async def test_a_token_that_was_kept_elsewhere_may_be_set_by_hand(
    aclient: redis.asyncio.Redis, name: str, kept: Any
) -> None:
    first, second = kept(aclient, name, timeout=10), kept(aclient, name, timeout=10)
    assert await first.acquire(token="kept")
    second.local.token = b"kept"
    assert await second.owned()
    assert await second.extend(5)
    await second.release()
    assert not await first.locked()
    second.local.token = None
    with pytest.raises(redis.exceptions.LockError):
        await second.release()


async def test_locks_that_are_let_run_out_are_forgotten(
    aclient: redis.asyncio.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a minute, by whoever is first: nobody releases it, and the object lives on."""
    monkeypatch.setattr(redis_compat, "HELD_MAX", 5)
    lock = AsyncLock(aclient, name, timeout=10)
    for _ in range(20):
        assert await asyncio.create_task(lock.acquire(blocking=False))
        await aclient.delete(name)

    assert len(lock.local._held) == 5


def test_what_is_kept_beside_a_lock_shares_its_slot() -> None:
    assert beside("plain") == "{plain}:holdfast"
    assert beside("user:{42}:x") == "user:{42}:x:holdfast"
    assert beside("odd{}") == "{odd{}}:holdfast"
    assert beside(b"user:{\xff}") == b"user:{\xff}:holdfast"
