"""`holdfast doctor` asks real stores and buses how they are set."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import psycopg
import pytest
import servers
from click.testing import CliRunner
from harness import make_backend
from nats.js import api

from holdfast.cli import cli
from holdfast.config import Settings
from holdfast.core.inspection import Aspect, Files, Inspection, Replicas, Sync, Writes
from holdfast.core.promises import judge
from holdfast.core.topic import Topics
from holdfast.errors import BusUnavailable, StoreUnavailable
from holdfast.locks.runtime import SYSTEM, Runtime
from holdfast.ops.doctor import examine
from holdfast.stores import inspect_store, open_store
from holdfast.stores.postgres.inspect import _replicas, _sync, _writes
from holdfast.stores.redis.inspect import _eviction as redis_eviction
from holdfast.stores.redis.inspect import _replicas as redis_replicas
from holdfast.stores.redis.inspect import _sync as redis_sync
from holdfast.stores.sqlite.inspect import file_system_of
from plane.jobs import ManualRuntime
from plane.nats_buses import NAMES, nats_bus, nats_running
from plane.postgres_schemas import server_url

MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /srv/shared rw,relatime shared:9 - nfs4 files:/export rw
31 21 0:41 / /run rw,nosuid shared:5 - tmpfs tmpfs rw
32 30 8:2 / /srv/shared/disk rw,relatime - xfs /dev/sdb1 rw
"""


async def make(url: str, runtime: Runtime = SYSTEM) -> None:
    store = open_store(url, topics=Topics(), runtime=runtime)
    await store.open()
    await store.close()


async def test_sqlite_is_asked_on_the_connection_that_writes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plane.db"
    await make(url)

    found = await examine(Settings(store=url), runtime=SYSTEM)

    assert (found.store.engine, found.bus) == ("SQLite", None)
    assert found.store.value(Aspect.SYNC) == Sync.COMMIT
    assert found.store.settings["journal_mode"] == "wal"
    assert dict(found.survivals)["power loss of the store's machine"] == "everything that was acknowledged"


async def test_clock_of_a_host_that_was_set_after_its_plane_had_started_is_told(tmp_path: Path) -> None:
    """As where a machine comes up hours behind, and its time service is slower than the plane."""
    url, clock = f"sqlite:///{tmp_path}/plane.db", ManualRuntime()
    await make(url, clock)
    before = await examine(Settings(store=url), runtime=clock)
    clock.wall_s += 8 * 3600
    after = await examine(Settings(store=url), runtime=clock)
    clock.boot = "boot-2"
    rebooted = await examine(Settings(store=url), runtime=clock)

    told = [[one.fix for one in found.ailments if one.code == "clock-skew"] for found in (before, after, rebooted)]
    assert (told[0], told[2]) == ([], [])
    assert "boot it again" in told[1][0]


async def test_file_without_a_plane_has_no_clock(tmp_path: Path) -> None:
    (tmp_path / "plane.db").touch()

    assert (await inspect_store(f"sqlite:///{tmp_path}/plane.db", runtime=SYSTEM, timeout_s=2)).clock is None


async def test_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="no such file"):
        await examine(Settings(store=f"sqlite:///{tmp_path}/typo.db"), runtime=SYSTEM)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/plane.db", "ext4"),
        ("/srv/shared/plane.db", "nfs4"),
        ("/srv/shared/disk/plane.db", "xfs"),
        ("/srv/sharedother/plane.db", "ext4"),
        ("/run/plane.db", "tmpfs"),
    ],
)
def test_file_system_is_that_of_the_deepest_mount(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)

    assert file_system_of(path, mounts) == kind
    assert file_system_of(path, tmp_path / "absent") == ""


async def test_file_on_a_network_mount_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/plane.db"
    await make(url)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 21 0:40 / {tmp_path} rw,relatime shared:9 - nfs4 files:/export rw\n")
    monkeypatch.setattr("holdfast.stores.sqlite.inspect.MOUNTS", mounts)

    found = await examine(Settings(store=url), runtime=SYSTEM)

    assert found.store.value(Aspect.FILES) == Files.NETWORK
    assert ([one.code for one in found.ailments], found.is_broken) == (["network-file"], True)


POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "standbys": "",
    "replicas": 0,
    "read_only": "off",
}


@pytest.mark.parametrize(
    ("settings", "sync", "replicas"),
    [
        ({}, Sync.COMMIT, Replicas.NONE),
        ({"fsync": "off"}, Sync.NEVER, Replicas.NONE),
        ({"full_page_writes": "off"}, Sync.NEVER, Replicas.NONE),
        ({"synchronous_commit": "off"}, Sync.INTERVAL, Replicas.NONE),
        ({"synchronous_commit": "local", "replicas": 1, "standbys": "b"}, Sync.COMMIT, Replicas.ASYNCHRONOUS),
        ({"replicas": 2}, Sync.COMMIT, Replicas.ASYNCHRONOUS),
        ({"replicas": 2, "standbys": "b, c"}, Sync.COMMIT, Replicas.SYNCHRONOUS),
    ],
)
def test_settings_of_postgres_in_our_words(settings: dict[str, Any], sync: Sync, replicas: Replicas) -> None:
    said = {**POSTGRES, **settings}

    assert (_sync(said).value, _replicas(said).value) == (sync, replicas)


async def test_postgres_is_asked_as_the_plane_would_be_connected(running: dict[str, servers.Server | None]) -> None:
    url = server_url(running)
    hasty = f"{url}{'&' if '?' in url else '?'}synchronous_commit=off"
    with psycopg.connect(url) as connection:
        [fsync] = connection.execute("SHOW fsync").fetchone() or [""]

    found = await inspect_store(hasty, runtime=SYSTEM, timeout_s=20)

    assert found.engine == "PostgreSQL"
    assert found.value(Aspect.SYNC) == (Sync.INTERVAL if fsync == "on" else Sync.NEVER)
    assert found.value(Aspect.REPLICAS) == Replicas.NONE
    assert found.clock is not None
    assert "@" not in found.place


@pytest.mark.parametrize(
    ("settings", "writes"),
    [
        ({}, Writes.TAKEN),
        ({"read_only": "on"}, Writes.REFUSED),
        ({"standbys": "b"}, Writes.REFUSED),
        ({"standbys": "b", "synchronous_commit": "local"}, Writes.TAKEN),
        ({"standbys": "b", "replicas": 1}, Writes.TAKEN),
    ],
)
def test_postgres_that_acknowledges_no_write_in_our_words(settings: dict[str, Any], writes: Writes) -> None:
    assert _writes({**POSTGRES, **settings}).value == writes


async def test_postgres_that_can_only_be_read_is_refused(running: dict[str, servers.Server | None]) -> None:
    url = server_url(running)
    found = await examine(Settings(store=f"{url}?default_transaction_read_only=on"), runtime=SYSTEM)

    assert "no-writes" in [one.code for one in found.ailments]


@pytest.mark.usefixtures("on_disk")
async def test_nats_is_asked_for_its_stream(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plane.db"
    await make(url)
    with nats_running() as server:
        async with nats_bus(server.url):
            pass
        found = await examine(Settings(store=url, bus=server.url), runtime=SYSTEM)
        said = await examine(Settings(store=url, bus=f"{server.url}?sync=always"), runtime=SYSTEM)

    assert found.bus is not None
    assert found.bus.settings == {"stream": "HOLDFAST_DELIVERIES", "storage": "file"}
    assert [one.code for one in found.ailments] == ["bus-sync-interval", "bus-one-copy"]
    assert [one.code for one in said.ailments] == ["bus-one-copy"]
    assert found.bus.clock is not None


@pytest.mark.usefixtures("on_disk")
async def test_stream_in_memory_is_warned_of_by_doctor_and_by_the_plane(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the URL says about the server's disk."""
    url = f"sqlite:///{tmp_path}/plane.db"
    await make(url)
    with nats_running() as server:
        client = await nats.connect(server.url)
        in_memory = api.StreamConfig(
            name=NAMES.stream,
            subjects=[f"{NAMES.subjects}.*"],
            retention=api.RetentionPolicy.WORK_QUEUE,
            storage=api.StorageType.MEMORY,
        )
        await client.jetstream().add_stream(in_memory)
        async with nats_bus(f"{server.url}?sync=always"):
            pass
        found = await examine(Settings(store=url, bus=f"{server.url}?sync=always"), runtime=SYSTEM)

        # What it says to do about it helps.
        await client.jetstream().delete_stream(NAMES.stream)
        async with nats_bus(f"{server.url}?sync=always"):
            pass
        cured = await examine(Settings(store=url, bus=f"{server.url}?sync=always"), runtime=SYSTEM)
        await client.close()

    [not_kept, _] = found.ailments
    assert (not_kept.code, not_kept.evidence) == ("bus-not-kept", "storage = memory")
    assert f"nats stream rm {NAMES.stream}" in not_kept.fix
    assert [one.code for one in cured.ailments] == ["bus-one-copy"]
    assert [record.event for record in caplog.records if hasattr(record, "event")] == ["bus.not_kept"]


async def test_bus_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plane.db"
    await make(url)
    with pytest.raises(BusUnavailable):
        await examine(Settings(store=url, bus="nats://127.0.0.1:9"), runtime=SYSTEM)


def test_command_refuses_what_breaks_a_promise() -> None:
    done = CliRunner().invoke(cli, ["doctor", "--store", "sqlite:///:memory:"])

    assert done.exit_code == 7
    assert "broken not-kept (store)" in done.stdout
    assert "do not run it like this: not-kept" in done.stderr


def test_command_tells_programs_the_same(tmp_path: Path) -> None:
    asyncio.run(make(f"sqlite:///{tmp_path}/plane.db"))
    done = CliRunner().invoke(cli, ["doctor", "--store", f"sqlite:///{tmp_path}/plane.db", "-o", "json"])

    told = json.loads(done.stdout)
    assert (told["store"]["engine"], told["bus"]) == ("SQLite", None)
    assert {"fault": "fences grow", "survives": "always: by the counter in the store"} in told["survivals"]
    assert any(row["component"] == "lock snapshot" for row in told["windows"])


def test_command_says_what_it_could_not_reach(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", "--store", f"sqlite:///{tmp_path}/typo.db"])

    assert (done.exit_code, "no such file" in done.stderr) == (5, True)


REDIS = {"aof_enabled": "1", "connected_slaves": "0", "maxmemory_policy": "noeviction"}


@pytest.mark.parametrize(
    ("said", "appendfsync", "codes"),
    [
        ({}, "always", []),
        ({}, "everysec", ["sync-interval"]),
        ({}, "no", ["sync-off"]),
        ({"aof_enabled": "0"}, "always", ["not-kept"]),
        ({"connected_slaves": "1"}, "always", ["async-replicas"]),
        ({"maxmemory_policy": "allkeys-lru"}, "always", ["evicts"]),
    ],
)
def test_settings_of_redis_in_our_words(said: dict[str, str], appendfsync: str, codes: list[str]) -> None:
    told = {**REDIS, **said}
    facts = (redis_sync(told, appendfsync), redis_replicas(told), redis_eviction(told))

    found = judge("store", Inspection(engine="Redis", version="7", place="redis://", facts=facts))

    assert [one.code for one in found] == codes


async def test_redis_is_asked(running: dict[str, servers.Server | None], tmp_path: Path) -> None:
    found = await inspect_store(make_backend("redis", running, tmp_path).url, runtime=SYSTEM, timeout_s=20)

    assert found.engine in ("Redis", "Valkey")
    assert {fact.setting for fact in found.facts} >= {"maxmemory-policy", "connected replicas"}
    assert found.clock is not None


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        (("--min-replicas-to-write", "1"), ["no-writes"]),
        (("--maxmemory", "1"), ["no-writes"]),
        (("--no-appendfsync-on-rewrite", "yes"), ["sync-interval"]),
        # As hosted ones do: what it is cannot be told.
        (("--rename-command", "CONFIG", ""), ["sync-interval"]),
    ],
)
async def test_redis_is_judged_as_it_is(options: tuple[str, ...], codes: list[str]) -> None:
    server = servers.redis_server("--appendonly", "yes", "--appendfsync", "always", *options).start()
    try:
        found = await examine(Settings(store=server.url), runtime=SYSTEM)
    finally:
        server.remove()

    assert [one.code for one in found.ailments] == codes
    assert found.store.settings["mode"] == "standalone"
