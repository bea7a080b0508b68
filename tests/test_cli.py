"""`holdfast lock`: what it shows, what it changes, and how it says no."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from harness import Backend
from servers import free_port

from holdfast import __version__
from holdfast.cli import cli
from holdfast.cli.lock import timeline
from holdfast.locks.port import Grant, LockStore, Ownership

A, B = "a" * 32, "b" * 32
LONG = 60_000


class Shell:
    """The command with a store's options, as an operator would have them in the environment."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def __call__(self, *arguments: str, stdin: str = "") -> Result:
        options = ["--prefix", self.backend.prefix]
        # In a thread: the command runs an event loop of its own.
        return await asyncio.to_thread(
            CliRunner(env={"HOLDFAST_STORE": self.backend.url}).invoke, cli, ["lock", *arguments, *options], input=stdin
        )


@pytest.fixture
def shell(backend: Backend) -> Shell:
    return Shell(backend)


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[LockStore]:
    """A store of which the command sees the file, `locks.db`."""
    store = Backend("sqlite", f"sqlite:///{tmp_path}/locks.db", 60, None, "holdfast:").open(holder="worker-1")
    await store.open()
    yield store
    await store.close()


async def grant(store: LockStore, key: str, token: str = A, ttl_ms: int = LONG) -> int:
    reply = await store.acquire(key, token, ttl_ms=ttl_ms)
    assert isinstance(reply, Grant)
    return reply.fence


def holdfast(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "holdfast", *arguments],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "HOLDFAST_STORE"},
        capture_output=True,
        text=True,
        check=False,
    )


async def test_list_shows_who_holds_what(backend: Backend, store: LockStore, other: LockStore, shell: Shell) -> None:
    first = await grant(store, backend.key("account:1"))
    second = await grant(other, backend.key("payout:2"), B)

    shown = await shell("list")
    header, *lines = shown.stdout.splitlines()

    assert shown.exit_code == 0
    assert header.split() == ["KEY", "FENCE", "HOLDER", "REMAINING", "WAITERS"]
    assert [line.split()[:3] for line in lines] == [
        [backend.key("account:1"), str(first), "test-holder"],
        [backend.key("payout:2"), str(second), "other-holder"],
    ]
    assert A not in shown.output


async def test_list_in_json_has_every_field(backend: Backend, store: LockStore, shell: Shell) -> None:
    fence = await grant(store, backend.key("account:1"))

    [held] = json.loads((await shell("list", "-o", "json")).stdout)

    assert held["key"] == backend.key("account:1")
    assert (held["fence"], held["holder"], held["waiters"]) == (fence, "test-holder", 0)
    assert 0 < held["remaining_ms"] <= LONG
    assert len(held["token_digest"]) >= 8
    assert A not in str(held)


async def test_list_goes_by_beginning_and_page(backend: Backend, store: LockStore, shell: Shell) -> None:
    for n in range(5):
        await grant(store, backend.key(f"account:{n}"))
    await grant(store, backend.key("payout:1"))

    page = await shell("list", "account:", "--limit", "3", "-o", "jsonl")
    keys = [json.loads(line)["key"] for line in page.stdout.splitlines()]
    rest = await shell("list", "account:", "--after", keys[-1], "-o", "jsonl")

    assert keys == [backend.key(f"account:{n}") for n in range(3)]
    assert f"--after {keys[-1]!r}" in page.stderr
    assert [json.loads(line)["key"] for line in rest.stdout.splitlines()] == [
        backend.key("account:3"),
        backend.key("account:4"),
    ]
    assert rest.stderr == ""


async def test_list_of_nothing_is_no_error(shell: Shell, store: LockStore) -> None:
    empty = await shell("list", "-o", "json")
    remarked = await shell("list")

    assert (empty.exit_code, json.loads(empty.stdout)) == (0, [])
    assert (remarked.exit_code, remarked.stdout) == (0, "")
    assert "no lock is held" in remarked.stderr


@pytest.mark.parametrize("with_prefix", [True, False])
async def test_show_takes_a_key_with_or_without_the_prefix(
    backend: Backend, store: LockStore, other: LockStore, shell: Shell, with_prefix: bool
) -> None:
    fence = await grant(store, backend.key("account:1"))
    await other.acquire(backend.key("account:1"), B, ttl_ms=LONG, queue_ms=LONG)

    shown = await shell("show", backend.key("account:1") if with_prefix else "account:1")
    rows = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines())

    assert shown.exit_code == 0
    assert (rows["key"], rows["fence"], rows["holder"]) == (backend.key("account:1"), str(fence), "test-holder")
    assert rows["waiters"] == "1"
    assert rows["remaining"].endswith(" s")
    assert rows["token_digest"]
    assert A not in shown.output


async def test_a_key_that_is_not_held_is_exit_code_3(store: LockStore, shell: Shell) -> None:
    for command in (["show", "nobody"], ["history", "nobody"], ["release", "nobody", "--token", A]):
        refused = await shell(*command)

        assert (refused.exit_code, refused.stdout) == (3, "")
        assert refused.stderr.startswith("Error: ")
        assert "nobody" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1


async def test_history_tells_every_owner(backend: Backend, store: LockStore, other: LockStore, shell: Shell) -> None:
    key = backend.key("account:1")
    first = await grant(store, key)
    await store.release(key, A)
    second = await grant(other, key, B)
    await store.evict(key, second, reason="it hangs, says Ada")
    third = await grant(store, key)

    lines = json.loads((await shell("history", "account:1", "-o", "json")).stdout)
    table = (await shell("history", "account:1")).stdout.splitlines()

    assert [(line["event"], line["fence"], line["holder"]) for line in lines] == [
        ("granted", first, "test-holder"),
        ("released", first, "test-holder"),
        ("granted", second, "other-holder"),
        ("evicted", second, "other-holder"),
        ("granted", third, "test-holder"),
    ]
    assert lines[3]["note"] == "it hangs, says Ada"
    assert table[0].split() == ["AT", "EVENT", "FENCE", "HOLDER", "NOTE"]
    assert table[4].endswith("it hangs, says Ada")
    assert len(table) == 6


async def test_history_derives_expiries(sqlite: LockStore, tmp_path: Path) -> None:
    key = "holdfast:account:1"
    first = await grant(sqlite, key, ttl_ms=60)
    await asyncio.sleep(0.08)
    second = await grant(sqlite, key, B, ttl_ms=60)
    await asyncio.sleep(0.08)

    shown = await asyncio.to_thread(
        holdfast, "lock", "history", "account:1", "--store", "sqlite:///locks.db", "-o", "json", cwd=tmp_path
    )
    lines = json.loads(shown.stdout)

    assert [(line["event"], line["fence"]) for line in lines] == [
        ("granted", first),
        ("expired", first),
        ("granted", second),
        ("expired", second),
    ]
    assert lines[1]["at"] is None


def test_an_expiry_is_derived_only_where_a_grant_had_no_end() -> None:
    def line(event: str, fence: int) -> Ownership:
        return Ownership(key="k", fence=fence, holder="h", event=event, at=float(fence))

    lines = [line("released", 1), line("granted", 2), line("granted", 3), line("evicted", 3), line("granted", 4)]

    assert [(row["event"], row["fence"]) for row in timeline(lines, last_expired=False)] == [
        ("released", 1),
        ("granted", 2),
        ("expired", 2),
        ("granted", 3),
        ("evicted", 3),
        ("granted", 4),
    ]
    assert timeline(lines, last_expired=True)[-1]["event"] == "expired"
    assert timeline([], last_expired=False) == []


@pytest.mark.parametrize("from_stdin", [True, False])
async def test_an_owner_releases_with_its_token(
    backend: Backend, store: LockStore, shell: Shell, from_stdin: bool
) -> None:
    await grant(store, backend.key("account:1"))

    released = await shell("release", "account:1", "--token", "-" if from_stdin else A, stdin=f"{A}\n")

    assert released.exit_code == 0
    assert A not in released.output
    assert await store.find_holder(backend.key("account:1")) is None


async def test_another_token_releases_nothing(backend: Backend, store: LockStore, shell: Shell) -> None:
    fence = await grant(store, backend.key("account:1"))

    refused = await shell("release", "account:1", "--token", B)

    assert refused.exit_code == 4
    assert "test-holder" in refused.stderr
    assert f"--fence {fence}" in refused.stderr
    assert B not in refused.output
    assert await store.find_holder(backend.key("account:1")) is not None


async def test_an_operator_evicts_by_fence_with_a_reason(backend: Backend, store: LockStore, shell: Shell) -> None:
    fence = await grant(store, backend.key("account:1"))

    evicted = await shell("release", "account:1", "--fence", str(fence), "--reason", "host is gone", "-o", "json")

    assert evicted.exit_code == 0
    assert json.loads(evicted.stdout) == {
        "key": backend.key("account:1"),
        "event": "evicted",
        "fence": fence,
        "note": "host is gone",
    }
    assert await store.find_holder(backend.key("account:1")) is None


async def test_a_stale_fence_evicts_nobody(backend: Backend, store: LockStore, shell: Shell) -> None:
    old = await grant(store, backend.key("account:1"))
    await store.release(backend.key("account:1"), A)
    new = await grant(store, backend.key("account:1"), B)

    refused = await shell("release", "account:1", "--fence", str(old), "--reason", "too late")

    assert refused.exit_code == 4
    assert str(new) in refused.stderr
    holder = await store.find_holder(backend.key("account:1"))
    assert holder is not None
    assert holder.fence == new


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--fence", "1"],
        ["--fence", "1", "--reason", " "],
        ["--fence", "1", "--reason", "x", "--token", A],
        ["--reason", "x"],
        ["--token", ""],
        ["--fence", "x", "--reason", "x"],
    ],
)
def test_a_release_that_says_too_little_or_too_much_is_exit_code_2(options: list[str]) -> None:
    refused = CliRunner().invoke(cli, ["lock", "release", "account:1", *options])

    assert refused.exit_code == 2
    assert A not in refused.output


@pytest.mark.parametrize(("typed", "options", "status"), [("n", [], 1), ("y", [], 0), ("", ["--yes"], 0)])
async def test_an_eviction_on_a_terminal_asks_unless_told_not_to(
    sqlite: LockStore, tmp_path: Path, typed: str, options: list[str], status: int
) -> None:
    fence = await grant(sqlite, "holdfast:account:1")
    command = ["holdfast", "lock", "release", "account:1", "--fence", str(fence), "--reason", "it hangs", *options]
    keyboard, terminal = pty.openpty()
    os.write(keyboard, f"{typed}\n".encode())

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_STORE": "sqlite:///locks.db"},
        stdin=terminal,
        capture_output=True,
        text=True,
    )
    os.close(keyboard)
    os.close(terminal)

    assert done.returncode == status
    assert ("End the lease of worker-1" in done.stderr) == (not options)
    assert (await sqlite.find_holder("holdfast:account:1") is None) == (status == 0)


@pytest.mark.parametrize("scheme", ["redis", "postgresql", "etcd"])
def test_a_store_that_is_away_is_exit_code_5_and_no_password_is_shown(scheme: str) -> None:
    url = f"{scheme}://ada:s3cr3t@127.0.0.1:{free_port()}/0"

    refused = CliRunner().invoke(cli, ["lock", "list", "--store", url])

    assert refused.exit_code == 5, refused.output
    assert refused.stderr.startswith("Error: ")
    assert "127.0.0.1" in refused.stderr
    assert "HOLDFAST_STORE" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert "s3cr3t" not in refused.output


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    refused = holdfast("lock", "list", "--store", "sqlite:///typo.db", cwd=tmp_path)

    assert refused.returncode == 5
    assert "sqlite:///typo.db" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("these are my notes\n" * 100)

    refused = holdfast("lock", "list", "--store", "sqlite:///notes.db", cwd=tmp_path)

    assert refused.returncode == 5
    assert len(refused.stderr.splitlines()) == 1
    assert "not a SQLite database" in refused.stderr


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ada:s3cr3t@db/0",
        "locks.db",
        "sqlite://",
        "redis://ada:s3cr3t@host:port/0",
        "redis://ada:s3cr3t@[::1/0",
        "redis://ada:/s3cr3t@host/0",
        "redis://ada:s3cr3t#@host/0",
        "postgresql://ada:s3cr3t@host:port/locks",
        "postgresql://ada:s3cr3t/@host/locks",
        "etcd://ada:s3cr3t?@host",
    ],
)
def test_a_url_that_names_no_store_is_exit_code_2(url: str) -> None:
    refused = CliRunner().invoke(cli, ["lock", "list", "--store", url])

    assert refused.exit_code == 2, refused.output
    assert "--store" in refused.stderr
    assert "s3cr3t" not in refused.output


async def test_what_others_wrote_cannot_steer_the_terminal(sqlite: LockStore, tmp_path: Path) -> None:
    fence = await grant(sqlite, "holdfast:account:1")
    await sqlite.evict("holdfast:account:1", fence, reason="\x1b[2Jgone\nfor good")

    shown = await asyncio.to_thread(
        holdfast, "lock", "history", "account:1", "--store", "sqlite:///locks.db", cwd=tmp_path
    )

    assert "\x1b" not in shown.stdout
    assert len(shown.stdout.splitlines()) == 3


def test_version(tmp_path: Path) -> None:
    assert holdfast("--version", cwd=tmp_path).stdout == f"holdfast {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["lock", "--help"], ["lock", "release", "--help"]])
def test_help_loads_neither_the_library_nor_a_backend(arguments: list[str]) -> None:
    script = (
        "import sys; from holdfast.cli import cli; cli(sys.argv[1:], standalone_mode=False); "
        "print(*(m for m in ('asyncio', 'apsw', 'redis', 'asyncpg', 'holdfast.locks') if m in sys.modules), file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)

    assert "Usage:" in shown.stdout
    assert shown.stderr.split() == []
