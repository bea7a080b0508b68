"""Where contenders work: private servers and a directory on disk, and what is known about each."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import ROOT

sys.path.insert(0, str(ROOT / "tests"))  # the servers that the tests use, without persistence or with fsync

import servers


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
            server = servers.redis_server() if name == "redis" else servers.postgres_server(fsync=True)
            self._servers[name] = server.start()
        return self._servers[name].url

    def clean(self, name: str) -> None:
        """Leave nothing of one contender to the next."""
        if name == "redis":
            from redis import Redis

            with Redis.from_url(self.url(name)) as client:
                client.flushall()

    def described(self) -> list[str]:
        """Versions and durability of everything that took part so far."""
        lines = [
            f"Python {platform.python_version()}, {platform.system()} {platform.release()}",
            f"{os.cpu_count()} cores, load average {self._load:.1f} before the start: above 0.5, others were at work",
            f"disk: a write of 4 KiB with fsync takes {_fsync_us(Path(self._directory.name)):,.0f} µs",
            _sqlite_described(),
        ]
        if "redis" in self._servers:
            lines.append(_redis_described(self.url("redis")))
        if "postgres" in self._servers:
            lines.append(asyncio.run(_postgres_described(self.url("postgres"))))
        return lines

    def close(self) -> None:
        for server in self._servers.values():
            server.remove()
        self._directory.cleanup()


def _redis_described(url: str) -> str:
    from redis import Redis

    with Redis.from_url(url) as client:
        about, persistence = client.info("server"), client.config_get("save", "appendonly")
    name = about.get("server_name", "redis")
    number = about.get("valkey_version") or about["redis_version"]
    durable = f"save {persistence['save']!r}, appendonly {persistence['appendonly']}: nothing is kept on disk"
    drivers = f"redis-py {version('redis')} with hiredis {version('hiredis')}, uvloop {version('uvloop')}"
    return f"{name} {number} ({durable}); {drivers}"


async def _postgres_described(url: str) -> str:
    import asyncpg

    conn = await asyncpg.connect(url)
    number, fsync, synchronous = [
        await conn.fetchval(f"SHOW {setting}") for setting in ("server_version", "fsync", "synchronous_commit")
    ]
    await conn.close()
    return f"Postgres {number} (fsync {fsync}, synchronous_commit {synchronous}); asyncpg {version('asyncpg')}"


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
