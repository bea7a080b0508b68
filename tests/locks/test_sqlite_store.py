"""What is special to locks in SQLite: the file, the host's clock, processes that share it."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from holdfast.locks import LockClass, SyncLocks
from holdfast.locks.errors import StoreRefused, Unavailable
from holdfast.locks.port import Busy, Grant, LockStore, Renewal, Standing
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from holdfast.locks.stores.sqlite import table as sqlite_table
from holdfast.locks.stores.sqlite.file import SCHEMA_VERSION
from holdfast.locks.stores.sqlite.store import SqliteStore
from holdfast.locks.stores.sqlite.table import Ask, Table
from locks.virtual import VirtualRuntime, on_virtual_time

A, B = "a" * 32, "b" * 32


def made(path: Path) -> LockStore:
    return open_store(f"sqlite:///{path}", holder="test", prefix="t:", runtime=SYSTEM)


async def refused(path: Path) -> StoreRefused:
    with pytest.raises(StoreRefused) as caught:
        await made(path).open()
    return caught.value


async def test_full_disk_refuses_what_it_cannot_keep_and_loses_nothing(tmp_path: Path) -> None:
    store = made(tmp_path / "locks.db")
    assert isinstance(store, SqliteStore)
    await store.open()
    held = await store.acquire("t:held", A, ttl_ms=60_000)
    connection = store._shared.writer._connection
    assert connection is not None
    limit = connection.pragma("max_page_count", connection.pragma("page_count") + 2)

    async def fill() -> None:
        for n in range(2000):
            await store.acquire(f"t:{n:0400d}", A, ttl_ms=60_000)

    with pytest.raises(StoreRefused, match="disk is full") as caught:
        await fill()
    assert "Free some space" in caught.value.next_step
    # Reads go on, what was granted stands, and with room again so do writes.
    holder = await store.find_holder("t:held")
    assert isinstance(held, Grant)
    assert holder is not None
    assert holder.fence == held.fence
    connection.pragma("max_page_count", limit + 100_000)
    assert isinstance(await store.acquire("t:again", A, ttl_ms=60_000), Grant)
    await store.close()


async def test_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    before = path.read_bytes()

    error = await refused(path)

    assert "backup" in error.next_step
    assert path.read_bytes() == before


async def test_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be read as one\n" * 100)

    assert "not a SQLite database" in str(await refused(path))


async def test_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert "folder" in (await refused(tmp_path / "file/locks.db")).next_step


async def test_writing_to_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    store = made(path)
    await store.open()
    await store.close()
    # The tests may run as root, whom no mode stops: SQLite's own read-only mode gives the real error.
    with apsw.Connection(f"file:{path}?mode=ro", apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY) as reader:
        with pytest.raises(apsw.ReadOnlyError) as error:
            reader.execute("DELETE FROM holdfast_locks")
    assert isinstance(store, SqliteStore)
    typed = store._shared.writer.typed(error.value)

    assert isinstance(typed, StoreRefused)
    assert "owner and mode" in typed.next_step


async def test_nobody_else_may_read_what_is_in_the_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = made(tmp_path / "locks.db")
        await store.open()
        await store.acquire("t:k", A, ttl_ms=60_000)
        modes = {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()}
        await store.close()
    finally:
        os.umask(before)

    assert modes == dict.fromkeys(("locks.db", "locks.db-wal", "locks.db-shm", "locks.db-writers"), "0o600")


async def test_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    path.touch()
    path.chmod(0o640)
    store = made(path)
    await store.open()
    await store.close()

    assert path.stat().st_mode & 0o777 == 0o640


async def test_file_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    store = made(path)
    await store.open()
    await store.close()
    with apsw.Connection(str(path)) as newer:
        newer.pragma("user_version", SCHEMA_VERSION + 1)

    assert "Upgrade" in (await refused(path)).next_step


@on_virtual_time
async def test_after_a_reboot_nobody_holds_anything_and_fences_go_on(runtime: VirtualRuntime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    before = open_store(url, holder="before", prefix="t:", runtime=runtime)
    await before.open()
    held = await before.acquire("t:k", A, ttl_ms=3_600_000)
    assert isinstance(held, Grant)
    await before.close()

    runtime.boot = "another-boot"
    after = open_store(url, holder="after", prefix="t:", runtime=runtime)
    await after.open()
    taken = await after.acquire("t:k", B, ttl_ms=60_000)
    await after.close()

    assert isinstance(taken, Grant)
    assert taken.fence > held.fence


async def test_history_is_pruned_after_a_day(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    store = made(path)
    await store.open()
    await store.acquire("t:k", A, ttl_ms=60_000)
    await store.release("t:k", A)
    await store.close()
    with apsw.Connection(str(path)) as clock:
        clock.execute("UPDATE holdfast_history SET ended_at = ended_at - 90000")
    again = made(path)
    await again.open()
    for n in range(500):
        await again.release("t:k", f"{n:032d}")
    lines = await again.list_history("t:k")
    await again.close()

    assert lines == []


async def test_history_keeps_no_more_rows_than_can_be_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_table, "HISTORY_ROWS_MAX", 300)
    store = made(tmp_path / "locks.db")
    await store.open()
    for n in range(1000):  # two prunings
        await (store.acquire("t:k", A, ttl_ms=60_000) if n % 2 == 0 else store.release("t:k", A))
    lines = await store.list_history("t:k", limit=2000)
    await store.close()

    assert 600 <= len(lines) < 700
    assert lines[-1].event == "released"


@on_virtual_time
async def test_history_keeps_leases_that_expired(runtime: VirtualRuntime, tmp_path: Path) -> None:
    """Whether another grant, the pruning or a reboot came upon them."""
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    store = open_store(url, holder="test", prefix="t:", runtime=runtime)
    await store.open()
    for key in ("t:granted", "t:pruned"):
        await store.acquire(key, A, ttl_ms=1000)
    await store.acquire("t:rebooted", A, ttl_ms=3_600_000)
    runtime.stall(2)
    await store.acquire("t:granted", B, ttl_ms=60_000)
    for n in range(500):
        await store.release("t:other", f"{n:032d}")
    await store.close()
    runtime.boot = "another-boot"
    store = open_store(url, holder="test", prefix="t:", runtime=runtime)
    await store.open()
    events = {
        key: [line.event for line in await store.list_history(key)] for key in ("t:granted", "t:pruned", "t:rebooted")
    }
    await store.close()

    assert events == {"t:granted": ["granted", "granted"], "t:pruned": ["granted"], "t:rebooted": ["granted"]}


async def test_what_another_connection_wrote_is_seen(tmp_path: Path) -> None:
    """A store remembers the file's leases, fences and waiters, until somebody else commits."""
    path = tmp_path / "locks.db"
    store = made(path)
    await store.open()
    before = await store.acquire("t:k", A, ttl_ms=60_000)
    assert isinstance(before, Grant)
    with apsw.Connection(str(path)) as other:
        other.execute("UPDATE holdfast_locks SET token = ?", (B,))
        other.execute("UPDATE holdfast_meta SET value = ? WHERE name = 'last_fence'", (2 * before.fence,))

    assert isinstance(await store.acquire("t:k", A, ttl_ms=60_000), Busy)
    after = await store.acquire("t:next", A, ttl_ms=60_000)
    await store.close()

    assert after == Grant(2 * before.fence + 1)


async def test_nothing_is_remembered_of_a_transaction_that_was_rolled_back(tmp_path: Path) -> None:
    store = made(tmp_path / "locks.db")
    assert isinstance(store, SqliteStore)
    await store.open()

    def grant_and_fail(table: Table) -> None:
        table.acquire(Ask("t:k", A, 60_000, 0, 1, "test", ""))
        raise apsw.IOError

    with pytest.raises(Unavailable):
        await store._submit(grant_and_fail)
    granted = await store.acquire("t:k", B, ttl_ms=60_000)
    await store.close()

    assert isinstance(granted, Grant)


async def test_file_stays_the_same_when_the_program_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewals go over a connection that is opened later: they would find an empty file, and every lease gone."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///locks.db", holder="test", prefix="t:", runtime=SYSTEM)
    await store.open()
    await store.acquire("t:k", A, ttl_ms=60_000)
    monkeypatch.chdir(elsewhere)
    later = store.sibling()
    await later.open()

    assert await later.renew([Renewal("t:k", A, 60_000)]) == [Standing.OWNED]
    assert list(elsewhere.iterdir()) == []
    await later.close()
    await store.close()


async def test_store_in_memory_may_have_a_name_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///:memory:mine", holder="test", prefix="t:", runtime=SYSTEM)
    await store.open()
    await store.acquire("t:k", A, ttl_ms=60_000)

    assert list(tmp_path.iterdir()) == []
    await store.close()


async def test_process_that_has_no_descriptor_left_for_a_wake_up_is_served_on(tmp_path: Path) -> None:
    """It is a hint: whoever waits looks again by itself. Who comes next must not wait for ever."""
    store = made(tmp_path / "locks.db")
    assert isinstance(store, SqliteStore)
    await store.open()
    await store.acquire("t:k", A, ttl_ms=60_000)
    waiting = Ask("t:k", B, 60_000, 60_000, 1, "another process", "holdfast-elsewhere")
    assert isinstance(await store._submit(lambda table: table.acquire(waiting)), Busy)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        assert await store.release("t:k", A)
        assert isinstance(await store.acquire("t:k", A, ttl_ms=60_000, queue_ms=1000), Busy)
        answer = await store.acquire("t:other", A, ttl_ms=60_000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await store.close()

    assert isinstance(answer, Grant)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
async def test_file_that_is_gone_grants_and_renews_nothing(tmp_path: Path, replaced: bool) -> None:
    """Whoever comes next makes a new file, and is granted the same locks."""
    path = tmp_path / "locks.db"
    store = made(path)
    await store.open()
    await store.acquire("t:k", A, ttl_ms=60_000)
    path.unlink()
    if replaced:
        path.touch()
    for ask in (store.renew([Renewal("t:k", A, 60_000)]), store.acquire("t:other", A, ttl_ms=60_000)):
        with pytest.raises(StoreRefused, match="removed or replaced"):
            await ask
    await store.close()
    again = made(path)
    await again.open()

    assert isinstance(await again.acquire("t:k", B, ttl_ms=60_000), Grant)
    await again.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_with_locks_of_its_own_keeps_others_out_when_its_parent_has_closed(tmp_path: Path) -> None:
    """SQLite's locks on the file stay with the parent, while the child's memory has it that they are held."""
    url, job = f"sqlite:///{tmp_path}/locks.db", LockClass("job", ttl=30, wait=0)
    heard, say = os.pipe()
    held, tell_held = os.pipe()
    with SyncLocks(url) as parents:
        parents.release(parents.acquire(job, "warm"))
        child = os.fork()
        if child == 0:
            try:
                own = SyncLocks(url)
                own.open()
                os.write(tell_held, b"opened")
                os.read(heard, 1)
                own.acquire(job, "x")
                os.write(tell_held, b"held")
                os.read(heard, 1)
            finally:
                os._exit(0)
        assert os.read(held, 10) == b"opened"
    os.write(say, b"!")
    assert os.read(held, 10) == b"held"
    with SyncLocks(url) as others:
        got = others.try_acquire(job, "x")
    os.write(say, b"!")
    os.waitpid(child, 0)

    assert got is None


async def test_processes_share_a_file(tmp_path: Path) -> None:
    """A second, real process is excluded, and woken by the release."""
    path = tmp_path / "locks.db"
    store = made(path)
    await store.open()
    await store.acquire("t:k", A, ttl_ms=60_000)
    script = (
        "import asyncio, sys\n"
        "from holdfast.locks import Locks, LockClass\n"
        "async def main():\n"
        "    async with Locks(sys.argv[1], prefix='t:') as locks:\n"
        "        print('waiting', flush=True)\n"
        "        async with locks.hold(LockClass('other', ttl=5, key_prefix=''), 'k', wait=20): print('held', flush=True)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, f"sqlite:///{path}"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "waiting\n"
        while (await waiters(store)) == 0:
            await asyncio.sleep(0.01)
        assert isinstance(await store.acquire("t:k", B, ttl_ms=60_000), Busy)
        await store.release("t:k", A)
        assert await asyncio.to_thread(process.stdout.readline) == "held\n"
        assert await asyncio.to_thread(process.wait) == 0
    await store.close()


async def waiters(store: LockStore) -> int:
    holder = await store.find_holder("t:k")
    assert holder is not None
    return holder.waiters
