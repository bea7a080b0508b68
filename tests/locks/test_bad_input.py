"""Bad input and missing servers: a typed error that names what was wrong, and nothing left behind."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path

import pytest
import servers
from harness import Backend

import holdfast.client
import holdfast.locks
from holdfast.locks import (
    LeaseLost,
    LockClass,
    Locks,
    LossReason,
    NotOwned,
    StoreRefused,
    SyncLocks,
    Unavailable,
    UndeclaredClass,
)
from locks.faults import Proxy
from locks.invariants import Told

JOB = LockClass("job", ttl=30, wait=0)


@pytest.mark.parametrize("item", ["", "has space", "line\nbreak", "x" * 600, "\u0000"])
async def test_a_bad_key_is_refused_before_anything_is_sent(tmp_path: Path, item: str) -> None:
    async with Locks(f"sqlite:///{tmp_path}/locks.db") as locks:
        with pytest.raises(ValueError, match="lock key"):
            await locks.acquire(JOB, item)
        with pytest.raises(ValueError, match="lock key"):
            await locks.inspect(JOB, item)
        assert await locks.list() == []


async def test_a_key_that_is_no_text_is_refused_and_told_so(tmp_path: Path) -> None:
    async with Locks(f"sqlite:///{tmp_path}/locks.db") as locks:
        with pytest.raises(TypeError, match="lock key 42 of class 'job' must be a text, not int"):
            await locks.acquire(JOB, 42)  # type: ignore[arg-type]


async def test_a_lease_that_was_released_says_so(tmp_path: Path) -> None:
    async with Locks(f"sqlite:///{tmp_path}/locks.db") as locks:
        async with locks.hold(JOB, "x") as lease:
            pass
        with pytest.raises(NotOwned, match="this lease was released"):
            lease.check()
        with pytest.raises(NotOwned, match="this lease was released"):
            await locks.release(lease)


async def test_locks_that_were_not_entered_say_how(backend: Backend) -> None:
    locks = Locks(backend.url, prefix=backend.prefix)

    with pytest.raises(Unavailable, match="async with"):
        await locks.acquire(JOB, "x")


@pytest.mark.parametrize("ttl", [0, -1, 0.049, 86_401, float("nan"), float("inf")])
def test_a_ttl_out_of_range_is_refused(ttl: float) -> None:
    """No lock without an end."""
    with pytest.raises(ValueError, match="ttl must be between"):
        LockClass("job", ttl=ttl)


@pytest.mark.parametrize("name", ["", "Upper", "with space", "9lives", "x" * 65])
def test_a_bad_class_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="lock class name"):
        LockClass(name, ttl=1)


@pytest.mark.parametrize(
    "options",
    [
        {"renew_every": 0.9},
        {"renew_every": -1},
        {"margin": 0.6},
        {"margin": -0.1},
        {"wait": -1},
        {"renewal_failures": 0},
        {"local_passes": 65},
        {"pattern": "sometimes"},
        {"on_renewal_failure": "ignore"},
        {"risk": "none"},
    ],
)
def test_a_policy_that_cannot_work_is_refused(options: dict[str, float | str]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        LockClass("job", ttl=1, **options)  # type: ignore[arg-type]


def test_a_misspelt_name_is_found_by_type_checkers_too() -> None:
    """Else the comments below would be unused, and `make lint` fail."""
    with pytest.raises(AttributeError, match="SyncLock"):
        holdfast.locks.SyncLock  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="Clint"):
        holdfast.client.Clint  # type: ignore[attr-defined]  # noqa: B018


async def test_a_wait_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """No deadline ever comes before it: the store would be asked without end, and without a pause."""
    async with Locks(f"sqlite:///{tmp_path}/locks.db") as locks:
        with pytest.raises(ValueError, match="nan"):
            await locks.acquire(JOB, "x", wait=math.nan)
    with SyncLocks(f"sqlite:///{tmp_path}/locks.db") as threads, pytest.raises(ValueError, match="nan"):
        threads.acquire(JOB, "x", wait=math.nan)


async def test_an_undeclared_class_is_an_error(tmp_path: Path) -> None:
    """Row 96."""
    async with Locks(f"sqlite:///{tmp_path}/locks.db", classes=[JOB]) as locks:
        await locks.release(await locks.acquire("job", "x"))
        with pytest.raises(UndeclaredClass, match=r"nobody.*declared: job"):
            await locks.acquire("nobody", "x")
        with pytest.raises(ValueError, match="declared twice"):
            await locks.acquire(LockClass("job", ttl=31), "x")


async def test_verbs_refuse_the_wrong_pattern(tmp_path: Path) -> None:
    async with Locks(f"sqlite:///{tmp_path}/locks.db") as locks:
        with pytest.raises(ValueError, match="claim"):
            await locks.acquire(LockClass("loop", ttl=1, pattern="ttl_hold"), "x")
        with pytest.raises(ValueError, match="hold"):
            await locks.claim(JOB, "x")


@pytest.mark.parametrize("url", ["", "mysql://x", "locks.db", "sqlite://", "sqlite://data/locks.db"])
def test_a_url_that_nobody_serves_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"no lock store serves mysql://|sqlite:///locks.db"):
        Locks(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:secret@127.0.0.1:99999/0",
        "rediss://user:secret@127.0.0.1:1/0?ssl_ca_certs=/nowhere/ca.pem",
        "etcd://user:secret@127.0.0.1:99999",
        "etcds://user:secret@127.0.0.1:1?ca=/nowhere/ca.pem",
        "etcds://user:secret@127.0.0.1:1?cafile=/nowhere/ca.pem",
        "etcd://user:secret@127.0.0.1:1?ca=/nowhere/ca.pem",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match=r"[Pp]ort|readable PEM|no such option") as refused:
        Locks(url)

    assert "secret" not in str(refused.value)


UNREACHABLE = {
    "redis": "redis://user:secret@127.0.0.1:{port}/0",
    "postgres": "postgresql://user:secret@127.0.0.1:{port}/db",
    "etcd": "etcd://user:secret@127.0.0.1:{port}",
}


@pytest.mark.parametrize("name", UNREACHABLE)
async def test_a_server_that_is_gone_at_start_is_named_without_its_password(name: str) -> None:
    threads = set(threading.enumerate())
    port = servers.free_port()
    with pytest.raises(Unavailable, match=str(port)) as gone:
        async with Locks(UNREACHABLE[name].format(port=port)):
            pytest.fail("entered without a store")

    assert "secret" not in str(gone.value)
    assert gone.value.applied is False
    left = [t.name for t in set(threading.enumerate()) - threads if not t.name.startswith("asyncio_")]
    assert left == []


@pytest.mark.parametrize("name", UNREACHABLE)
def test_threads_are_told_of_a_missing_server_and_none_is_left_behind(name: str) -> None:
    threads = set(threading.enumerate())
    port = servers.free_port()
    with pytest.raises(Unavailable, match=str(port)), SyncLocks(UNREACHABLE[name].format(port=port)):
        pytest.fail("entered without a store")

    left = [t for t in set(threading.enumerate()) - threads if not t.name.startswith("asyncio_")]
    for thread in left:
        thread.join(2)
    assert [t.name for t in left if t.is_alive()] == []


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """A misspelt path would be an empty store, in which nobody excludes anybody."""
    folder = tmp_path / "misspelt"
    with pytest.raises(StoreRefused, match="no folder") as refused:
        async with Locks(f"sqlite:///{folder / 'locks.db'}"):
            pytest.fail("entered without a store")

    assert "four slashes" in refused.value.next_step
    assert not folder.exists()


async def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database at all, but long enough to look at" * 30)
    with pytest.raises(StoreRefused, match=r"notes\.db"):
        async with Locks(f"sqlite:///{tmp_path}/notes.db"):
            pytest.fail("entered without a store")


async def test_a_server_gone_midway_ends_the_work_and_nothing_hangs(backend: Backend) -> None:
    """The link is cut and stays refused: renewals fail, the body is cancelled, a new acquire is refused."""
    if backend.server is None:
        pytest.skip("a file has no link that could be cut")
    told = Told()
    job = LockClass("job", ttl=max(1.0, backend.ttl_ms / 1000), wait=0)
    async with Proxy(backend.server.port) as proxy:
        locks = Locks(proxy.url(backend.url), prefix=backend.prefix, observer=told)
        await locks.open()
        with pytest.raises(LeaseLost) as lost:
            async with locks.hold(job, "x"):
                proxy.refusing = True
                proxy.cut()
                await asyncio.sleep(5)
        with pytest.raises(Unavailable):
            await locks.acquire(job, "y")
        await locks.close()

    assert lost.value.reason is LossReason.UNREACHABLE
    assert told.count("renewal_failed") >= 1
