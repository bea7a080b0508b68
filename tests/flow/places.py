"""Where the plane of a story keeps its jobs and its locks, and what carries its deliveries.

`memory` and `file`: SQLite. `postgres`: a real server that tells the story's time. `redis`: the product's own client and
scripts over a server in memory that tells the story's time. `valkey`: a real server, whose leases therefore do not run out
in a story. Deliveries go as the story says, in the store or apart from it, unless the place says `apart`, or `nats`: apart
from it, over a real server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import servers
from locks.virtual import VirtualRuntime
from plane import nats_buses, postgres_schemas, redis_namespaces
from simulation.redis_link import NoVigil
from simulation.redis_server import RedisServer
from simulation.stand_ins import standing_in

from flow.wires import PostgresTurns, RedisTurns, Turns, Wires, dial_inside

INSIDE = "store"
"""The host of a Redis server that is in the story itself."""
NEVER_S = 1_000_000_000
STAND_INS: dict[str, dict[str, Any]] = {
    # Servers of a story are never away, and days of it pass in a moment: nobody looks again and again whether they are.
    "postgres": {
        "holdfast.stores.postgres_database.CLOCK_S": NEVER_S,
        "holdfast.locks.stores.postgres_link.LISTEN_PROBE_S": NEVER_S,
    },
    "redis": {
        "holdfast.stores.redis_database.CLOCK_S": NEVER_S,
        "holdfast.stores.redis_database.LISTEN_S": NEVER_S,
        "holdfast.locks.stores.redis_connection.Vigil": NoVigil,
    },
    "nats": {"holdfast.buses.nats_link.PING_S": NEVER_S, "holdfast.buses.nats_link.LOOK_S": NEVER_S},
}
STAND_INS["valkey"] = STAND_INS["redis"]
TURNS: dict[str, type[Turns]] = {"postgres": PostgresTurns, "valkey": RedisTurns}

Running = dict[str, servers.Server | None]


@dataclass(frozen=True)
class Place:
    store: str = "memory"
    url: str = ""
    """Empty for a database in memory, of the story's own."""
    apart: bool = False
    """Whether deliveries travel apart from the store, whatever the story says."""
    nats: str = ""
    """The URL of the server that carries them; else it is done in this process."""
    clock: Path | None = None
    """What the server reads the time from."""

    def reach(self, runtime: VirtualRuntime) -> Wires | None:
        """Let the story on this runtime reach the servers of this place."""
        turns = {urlsplit(self.url).port or 0: TURNS[self.store]} if self.store in TURNS else {}
        inside = {}
        if self.store == "redis":
            inside[INSIDE] = dial_inside(runtime.loop, RedisServer(runtime.wall_us, lambda *_: None))
        if not (turns or inside or self.nats):
            return None
        return Wires(runtime.loop, turns=turns, tell_time=self._telling(runtime), inside=inside)

    def _telling(self, runtime: VirtualRuntime) -> Callable[[], None]:
        if self.clock is None:
            return lambda: None
        path, shown_us = self.clock, 0

        def tell() -> None:
            nonlocal shown_us
            if shown_us != (now_us := runtime.wall_us()):
                shown_us = now_us
                path.write_text(f"{now_us / 1e6:.6f}")

        return tell


HERE = [Place()]
"""Of the test that is being run, the last one."""


@contextmanager
def placed(name: str, running: Running, directory: Path) -> Iterator[Place]:
    """`name` is that of a store, followed by `+apart` or `+nats` if the deliveries are not to go as the story says."""
    store, _, bus = name.partition("+")
    with ExitStack() as stack:
        url, clock = stack.enter_context(OPENED[store](running, directory))
        nats = stack.enter_context(nats_buses.fresh_namespace(running)) if bus == "nats" else ""
        stack.enter_context(standing_in(STAND_INS.get(store, {}) | STAND_INS.get(bus, {})))
        HERE.append(Place(store, url, bool(bus), nats, clock))
        stack.callback(HERE.pop)
        yield HERE[-1]


@contextmanager
def _in_memory(running: Running, directory: Path) -> Iterator[tuple[str, None]]:
    yield "", None


@contextmanager
def _in_file(running: Running, directory: Path) -> Iterator[tuple[str, None]]:
    yield f"sqlite:///{directory / 'plane.db'}", None


@contextmanager
def _in_postgres(running: Running, directory: Path) -> Iterator[tuple[str, Path]]:
    if "HOLDFAST_TEST_POSTGRES_URL" in os.environ:
        pytest.skip("the clock of a server that is not ours cannot be set")
    postgres_schemas.server_url(running)
    server = running["postgres"]
    assert server is not None
    clock = server.directory / "clock"
    # Found before the server's own, because the search path names that one last.
    first = "".join(
        f"""
        CREATE FUNCTION {name}() RETURNS timestamptz LANGUAGE plpgsql {kind} AS
        $$ BEGIN RETURN to_timestamp(pg_read_file('{clock}')::float8); END $$;
        """
        for name, kind in (("clock_timestamp", "VOLATILE"), ("statement_timestamp", "STABLE"))
    )
    with postgres_schemas.empty_schema(running, first=first) as url:
        yield f"{url},pg_catalog&sslmode=disable", clock


@contextmanager
def _in_redis(running: Running, directory: Path) -> Iterator[tuple[str, None]]:
    yield f"redis://{INSIDE}", None


@contextmanager
def _in_valkey(running: Running, directory: Path) -> Iterator[tuple[str, None]]:
    with redis_namespaces.fresh_namespace(running) as url:
        yield url, None


OPENED = {
    "memory": _in_memory, "file": _in_file, "postgres": _in_postgres, "redis": _in_redis, "valkey": _in_valkey,
}  # fmt: skip
