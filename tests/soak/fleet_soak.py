"""A fleet on one real store: four schedulers, two gateways, two reconcilers, four workers on one topic.

SIGSTOP and kill -9 roll through all of them, and now and then through the servers themselves, and proxies on the
way to these delay, swallow and cut, while people submit. Then it is left alone until nothing is unfinished, and
judged (`soak.fleet_verdict`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, count, cycle
from pathlib import Path

import httpx2
import servers
from locks.faults import Proxy

from holdfast.core.topic import Topics
from holdfast.errors import StoreUnavailable
from holdfast.locks.runtime import SYSTEM
from holdfast.ports import JobEvent
from holdfast.stores import StoreWithBus, open_store
from soak.fleet import Fleet, members_of
from soak.fleet_tasks import make_ledger
from soak.fleet_verdict import figures, judge, read_ledger
from soak.lock_soak import Tally
from soak.nemesis import Nemesis

COUNTS = {"gateway": 2, "scheduler": 4, "reconciler": 2, "worker": 4}
WAYS = 2
"""To each server: the processes of a role take them in turn."""
LEASE_S = 2.0
CONFIG = (
    f'[topics."*"]\nlease_s = {LEASE_S}\ndispatch_timeout_s = 3\nmax_attempts = 1000\n'
    "backoff = {first_s = 0.05, cap_s = 0.5}\n"
)
PEOPLE = 3
THINK_S = 0.1
"""Of each of the people, between two jobs: the load is steady, and small beside what a fleet can do."""
FINISHED_WITHIN_S = 180
"""Whoever publishes to NATS by itself and is killed leaves the job's lock behind, for a minute; see `flow.dispatch`."""
PAGE = 5000


@dataclass(frozen=True)
class Combination:
    store: str
    nats: bool = False
    outbox: bool = False


FLEETS = {
    "fleet-postgres": Combination("postgres"),
    "fleet-redis": Combination("redis"),
    "fleet-postgres-nats": Combination("postgres", nats=True),
    "fleet-redis-nats": Combination("redis", nats=True),
    "fleet-postgres-outbox": Combination("postgres", nats=True, outbox=True),
}


@contextmanager
def store_server(kind: str) -> Iterator[servers.Server]:
    """One that keeps what it has acknowledged when it is killed; the power stays on, so it need not sync."""
    if kind == "redis":
        server = servers.redis_server("--appendonly", "yes", "--appendfsync", "everysec")
    else:
        server = servers.postgres_server("synchronous_commit=on")
    try:
        yield server.start()
    finally:
        server.remove()


@contextmanager
def nats_server() -> Iterator[servers.Server]:
    server = servers.nats_server()
    try:
        yield server.start()
    finally:
        server.remove()


@dataclass
class People:
    """They submit at whichever gateway answers, and repeat each submission until it is acknowledged."""

    gateways: Sequence[str]
    ledger: Path
    acknowledged: dict[str, str] = field(default_factory=dict)
    """Idempotency key → job."""
    tried: int = 0
    stopping: bool = False

    async def submit(self, who: int) -> None:
        gateways = cycle(self.gateways)
        async with httpx2.AsyncClient(timeout=3, verify=False) as http:
            for number in count():
                if self.stopping:
                    return
                await self._submit_one(http, f"{who}-{number}", gateways)
                await asyncio.sleep(THINK_S * random.random())

    async def _submit_one(self, http: httpx2.AsyncClient, key: str, gateways: Iterator[str]) -> None:
        job = {"topic": "fleet", "payload": {"ledger": str(self.ledger)}}
        for failures, url in enumerate(gateways):
            self.tried += 1
            with suppress(httpx2.TransportError):
                reply = await http.post(f"{url}/v1/jobs", json=job, headers={"Idempotency-Key": key})
                if reply.status_code < 300:
                    self.acknowledged[key] = reply.json()["id"]
                    return
                assert reply.status_code >= 500 or reply.json()["retryable"], reply.text
            await asyncio.sleep(min(1.0, 0.1 * 2**failures))


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[StoreWithBus]:
    store = open_store(url, topics=Topics(), runtime=SYSTEM, timeout_s=10.0)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def read_events(store: StoreWithBus) -> list[JobEvent]:
    events: list[JobEvent] = []
    while page := await store.list_events(after=events[-1].number if events else 0, limit=PAGE):
        events += page
    return events


def options_of(way: Sequence[Proxy], config: Path, store: servers.Server, *nats: servers.Server) -> list[str]:
    urls = [proxy.url(server.url) for proxy, server in zip(way, (store, *nats), strict=True)]
    return ["--config", str(config), "--store", urls[0], *(f"--bus={url}?sync=always" for url in urls[1:])]


async def soak_fleet(name: str, directory: Path, *, seconds: float, tells: bool = False) -> Tally:
    combination, tally, chance = FLEETS[name], Tally(name), random.Random()
    ledger, config = directory / "ledger.db", directory / "plane.toml"
    make_ledger(ledger)
    config.write_text(('[plane]\ndispatch = "outbox"\n' if combination.outbox else "") + CONFIG)
    async with AsyncExitStack() as stack:
        store = stack.enter_context(store_server(combination.store))
        nats = [stack.enter_context(nats_server())] if combination.nats else []
        ways = [[await stack.enter_async_context(Proxy(server.port)) for server in (store, *nats)] for _ in range(WAYS)]
        options = [options_of(way, config, store, *nats) for way in ways]
        fleet = await stack.enter_async_context(Fleet(members_of(options, COUNTS), directory / "fleet.err"))
        await fleet.wait_ready()
        people = People(fleet.gateways, ledger)
        nemesis = Nemesis(fleet.members, [*chain(*ways)], [store, *nats], chance, lease_s=LEASE_S)
        began = time.monotonic()
        await attack(people, nemesis, tally, seconds=seconds, tells=tells)
        async with reading(store.url) as opened:
            left = await wait_finished(opened)
            events, arrivals = await read_events(opened), read_ledger(ledger)
        tally.seconds = time.monotonic() - began
    tally.acknowledged, tally.strikes = set(people.acknowledged.values()), nemesis.strikes
    tally.violations += judge(people.acknowledged, events, arrivals)
    tally.violations += [f"unfinished after {FINISHED_WITHIN_S} s: {left}"] if left else []
    starts = sum(member.starts for member in fleet.members)
    tally.figures = {
        "tried": people.tried,
        "kills": nemesis.kills,
        "stops": nemesis.stops,
        "network": nemesis.network,
        "server kills": nemesis.server_kills,
        "server stops": nemesis.server_stops,
        "ended by themselves": max(0, starts - len(fleet.members) - nemesis.kills),
        "calm": round(tally.seconds - seconds),
    } | figures(events, arrivals)
    if 2 * len(people.acknowledged) < people.tried or 2 * tally.figures["succeeded"] < len(people.acknowledged):
        tally.violations.append("less than half of the operations succeeded: this run shows nothing")
    return tally


async def attack(people: People, nemesis: Nemesis, tally: Tally, *, seconds: float, tells: bool) -> None:
    """Ends when every submission is acknowledged."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for who in range(PEOPLE):
            group.create_task(people.submit(who))
        striking = group.create_task(nemesis.strike_for_ever())
        while tally.seconds < seconds:
            await asyncio.sleep(0.25)
            tally.seconds, tally.strikes = time.monotonic() - began, nemesis.strikes
            tally.acknowledged = set(people.acknowledged.values())
            if tells:
                tally.show()
        people.stopping = True
        striking.cancel()


async def wait_finished(store: StoreWithBus, *, within_s: float = FINISHED_WITHIN_S) -> dict[str, int]:
    """What is not, when nobody waits any longer."""
    deadline = time.monotonic() + within_s
    while True:
        with suppress(StoreUnavailable):
            left = {str(state): number for (_, state), number in (await store.count_jobs()).items() if number}
            if not left or time.monotonic() > deadline:
                return left
        await asyncio.sleep(0.2)
