"""Where contenders work: private servers and a directory on disk, and what is known about each."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import ROOT

sys.path.insert(0, str(ROOT / "tests"))  # the servers that the tests use, without persistence or with fsync

import servers

SERVERS: Mapping[str, Callable[[], servers.Server]] = {
    "redis": servers.redis_server,
    "redis-aof": lambda: servers.redis_server("--appendonly", "yes", "--appendfsync", "everysec"),
    "postgres": lambda: servers.postgres_server(fsync=True),
    # Counts each statement as it is run, where the server's own figures come seconds later. Not for what is timed.
    "postgres-counting": lambda: servers.postgres_server("shared_preload_libraries=pg_stat_statements", fsync=True),
    "nats": lambda: servers.nats_server(on_disk=True),
}


class Places:
    """Starts a server when first asked for it, and ends them all."""

    def __init__(self) -> None:
        self._servers: dict[str, servers.Server] = {}
        self._directory = TemporaryDirectory(prefix="holdfast-bench-")
        self._load = os.getloadavg()[0]

    def url(self, name: str) -> str:
        if name == "disk":
            return self._directory.name
        if name not in self._servers:
            self._servers[name] = SERVERS[name]().start()
        return self._servers[name].url

    def clean(self, *names: str) -> None:
        """Leave nothing of one contender to the next. On Postgres they use databases or tables of their own."""
        for name in names:
            if name.startswith("redis"):
                from redis import Redis

                with Redis.from_url(self.url(name)) as client:
                    client.flushall()
            elif name.startswith("nats"):
                asyncio.run(_delete_streams(self.url(name)))

    def described(self) -> list[str]:
        """Versions and durability of everything that took part so far."""
        lines = [
            f"Python {platform.python_version()}, {platform.system()} {platform.release()}",
            f"{os.cpu_count()} cores, load average {self._load:.1f} before the start: above 0.5, others were at work",
            f"disk: a write of 4 KiB with fsync takes {_fsync_us(Path(self._directory.name)):,.0f} µs",
            _sqlite_described(),
        ]
        described = {"redis": _redis_described, "postgres": _postgres_described, "nats": _nats_described}
        return [*lines, *(described[name.partition("-")[0]](self.url(name)) for name in self._servers)]

    def close(self) -> None:
        for server in self._servers.values():
            server.remove()
        self._directory.cleanup()


def _redis_described(url: str) -> str:
    from redis import Redis

    with Redis.from_url(url) as client:
        about, persistence = client.info("server"), client.config_get("save", "appendonly")
        fsync = client.config_get("appendfsync")["appendfsync"]
    name = about.get("server_name", "redis")
    number = about.get("valkey_version") or about["redis_version"]
    durable = f"save {persistence['save']!r}, appendonly {persistence['appendonly']}"
    durable += f", appendfsync {fsync}" if persistence["appendonly"] == "yes" else ": nothing is kept on disk"
    drivers = f"redis-py {version('redis')} with hiredis {version('hiredis')}, uvloop {version('uvloop')}"
    return f"{name} {number} ({durable}); {drivers}"


def _postgres_described(url: str) -> str:
    import psycopg

    with psycopg.connect(url) as conn:
        number, fsync, synchronous = [
            conn.execute(f"SHOW {setting}").fetchone()[0]  # type: ignore[index]
            for setting in ("server_version", "fsync", "synchronous_commit")
        ]
    return f"Postgres {number} (fsync {fsync}, synchronous_commit {synchronous}); asyncpg {version('asyncpg')}"


def _nats_described(url: str) -> str:
    async def ask() -> str:
        import nats

        client = await nats.connect(url)
        number = client.connected_server_version
        await client.close()
        return f"NATS {number.major}.{number.minor}.{number.patch} (JetStream in files, synced every two minutes); nats-py {version('nats-py')}"

    return asyncio.run(ask())


async def _delete_streams(url: str) -> None:
    import nats

    client = await nats.connect(url)
    streams = client.jetstream()
    for stream in await streams.streams_info():
        if stream.config.name is not None:
            await streams.delete_stream(stream.config.name)
    await client.close()


def _sqlite_described() -> str:
    import apsw

    return f"SQLite {apsw.sqlite_lib_version()} (WAL, synchronous FULL); apsw {version('apsw')}"


def _fsync_us(directory: Path) -> float:
    taken = []
    with open(directory / "fsync", "wb") as file:
        for _ in range(50):
            started = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6
