"""Redis: a private server for the whole test run, a namespace per test; and for stories a server in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import servers
from flow.inside import INSIDE, dialling
from locks.virtual import VirtualRuntime
from plane.redis_namespaces import fresh_namespace
from simulation.redis_link import NoVigil
from simulation.redis_server import RedisServer, commands_of

from backends import NEVER_S, Compared, Dial, Opened, PlaneStore, Running, Telling
from holdfast.locks.stores.redis.wire import Parser, Push

TTL_MS_MIN = 60


def start() -> servers.Server:
    return servers.redis_server().start()


def url(server: servers.Server, directory: Path) -> str:
    return server.url


class RedisTurns:
    """A reply to each command; what is pushed answers none, but for the word that a subscription has begun."""

    def __init__(self) -> None:
        self._parser = Parser()
        self._owed = 0

    @property
    def is_owed(self) -> bool:
        return self._owed > 0

    def sent(self, request: bytes) -> None:
        self._owed += sum(1 for _ in commands_of(request))

    def received(self, reply: bytes) -> None:
        said = self._parser.feed(reply)
        self._owed -= sum(not isinstance(each, Push) or each[0] == b"subscribe" for each in said)


@contextmanager
def _in_the_story(running: Running, directory: Path) -> Iterator[Opened]:
    """The product's own client and scripts over a server in memory, which tells the story's time."""
    yield Opened(f"redis://{INSIDE}")


def _dial(runtime: VirtualRuntime) -> Dial:
    return dialling(runtime.loop, RedisServer(runtime.wall_us, lambda *_: None))


@contextmanager
def _on_a_server(running: Running, directory: Path) -> Iterator[Opened]:
    """A real server, whose leases therefore do not run out in a story."""
    with fresh_namespace(running) as url:
        yield Opened(url)


@contextmanager
def _compared(running: Running, directory: Path) -> Iterator[Compared]:
    yield Compared(lambda: fresh_namespace(running))


_STAND_INS = {
    "holdfast.stores.redis.database.CLOCK_S": NEVER_S,
    "holdfast.stores.redis.database.LISTEN_S": NEVER_S,
    "holdfast.locks.stores.redis.connection.Vigil": NoVigil,
}

PLANE = PlaneStore(
    stories={
        "redis": Telling(opened=_in_the_story, inside=_dial, stand_ins=_STAND_INS),
        "valkey": Telling(opened=_on_a_server, turns=RedisTurns, stand_ins=_STAND_INS),
    },
    compared=_compared,
    fresh=fresh_namespace,
    empty=fresh_namespace,
)
