"""Locks in a hostile world: clients of several processes, one store, one guarded resource per key.

The lock library is the real one, on the real SQLite store. In some stories the store is replaced by
a copy that lags behind, as a promoted replica does. Judged at the end: L1 to L8, and P3.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from locks import invariants
from locks.invariants import Resource
from locks.reference import Tenure, Waiter

from holdfast.locks import LockClass, LockError, Locks, StaleFence, Unavailable
from holdfast.locks.lease import Lease
from holdfast.locks.port import LockStore
from holdfast.locks.stores import open_store
from simulation.databases import Contents
from simulation.lock_link import LinkedStore, Markers, Witness, let_go_of
from simulation.nemesis import Nemesis
from simulation.network import LATE_S_MAX, Unanswered
from simulation.stand_ins import standing_in
from simulation.world import Process, here

TTL_S = 4.0
RAGE_S = 5.0
CALM_S = LATE_S_MAX + 1.0
"""At most; it ends when every client has. By then whatever was still on its way has arrived."""
PROBE_S = TTL_S + 3.5
"""Whatever was left behind (a holder, a waiter ahead that is gone) has expired by then."""
CLASSES = (
    LockClass("sim", ttl=TTL_S, wait=5.0),
    LockClass("sim", ttl=TTL_S, wait=5.0, local_mutex=True, local_passes=3),
    LockClass("sim", ttl=TTL_S, wait=5.0, on_renewal_failure="continue"),
)
"""One of them for all clients of a story: work that stops, locks that are passed on inside a process,
and work that goes on without its lease, with nothing but the fence to stop it."""
LOOKS_PER_TTL = 10
"""The keeper's, fewer than outside: else half of all steps would be idle looks. What a lease allows for
their lateness changes with it."""
PATIENCE_S = 15.0
"""For the resource, which is the user's own: a database may be slower than a lease is long."""


@dataclass
class Client:
    """One process that takes locks and adds to a list, with everything an owner of it may suffer."""

    story: LockStory
    name: str
    process: Process = field(init=False)
    _life: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.process = self.story.world.process(self.name)
        self._life = self.process.start(self.live())

    @property
    def has_ended(self) -> bool:
        return self._life.done()

    def pause(self, seconds: float) -> None:
        self.process.pause(seconds)

    def stall(self, seconds: float) -> None:
        self.process.stall(seconds)

    def cut(self, seconds: float) -> None:
        self.story.network.cut(self.process, self.story.server, seconds)

    def step_clock(self, seconds: float) -> None:
        self.process.wall_step_us += round(seconds * 1_000_000)

    def kill(self, down_s: float) -> None:
        self.process.crash()
        self.story.world.after(down_s, self.start)

    async def live(self) -> None:
        runtime, observer = self.process.runtime, Markers(self.story.reached)
        while True:
            locks = Locks("sqlite:///:memory:", holder=self.name, runtime=runtime, observer=observer)
            try:
                async with locks, asyncio.TaskGroup() as group:
                    for _ in range(self.story.tasks):
                        group.create_task(self.work(locks))
            except Unavailable:  # no way to the store: a service manager starts it again
                await asyncio.sleep(0.5)
            else:
                return

    async def work(self, locks: Locks) -> None:
        world = self.story.world
        while not self.story.calm:
            await asyncio.sleep(world.chance.uniform(0.1, 2.0))
            key = world.chance.choice(self.story.keys)
            try:
                async with locks.hold(self.story.lock_class, key) as lease:
                    world.tell(self.name, f"holds {key} with fence {lease.fence}")
                    self.story.entered(lease, key)
                    await self.add(lease, self.story.resources[key])
            except StaleFence:
                self.story.reached["refused by the resource"] += 1
            except (LockError, Unanswered) as error:
                world.tell(self.name, f"{type(error).__name__} at {key}")

    async def add(self, lease: Lease, resource: Resource) -> None:
        """Read, think, write, as agents do: each step under the lease, each with its sequence."""
        world = self.story.world
        value = f"{self.name}-{len(self.story.sent)}"
        self.story.sent.add(value)
        seen: tuple[str, ...] = ()
        for _ in range(world.chance.choice((1, 2, 4, 8))):
            seen = await self.ask(lease, resource, "read", lambda seq: resource.read(lease.fence, seq))
            await asyncio.sleep(world.chance.choice((0.01, 1.0, TTL_S / 2)) * world.chance.random())
            if self.story.calm:
                break
        await self.ask(lease, resource, "write", lambda seq: resource.write(lease.fence, seq, (*seen, value)))
        resource.acknowledged.append(value)
        world.tell(self.name, f"wrote {value}")

    async def ask(self, lease: Lease, resource: Resource, verb: str, act: Callable[[int], Any]) -> Any:
        lease.check()
        self.story.check_window(lease)
        seq = self.story.last_seq[lease] = lease.next_seq()

        async def happen() -> Any:
            try:
                return act(seq)
            except StaleFence:
                if seq == self.story.last_seq[lease] and lease.fence == self.story.highest[resource.name]:
                    self.story.broke(f"L7: {resource.name} refused its rightful holder {self.name}")
                raise

        return await self.story.network.call(self.process, self.story.shelf, verb, happen, timeout_s=PATIENCE_S)


class Probe(Client):
    """Comes at the end, when nobody else wants anything any more: every lock can be had."""

    async def work(self, locks: Locks) -> None:
        for n, key in enumerate(self.story.keys, 1):
            wait_s = RAGE_S + CALM_S + n * PROBE_S - self.story.world.passed_s
            async with locks.hold(self.story.lock_class, key, wait=wait_s):
                self.story.probed.add(key)


class LockStory(Witness):
    """One seed's story. `run` raises `AssertionError` for a broken promise."""

    def __init__(self, seed: int, *, without: frozenset[int] = frozenset()) -> None:
        super().__init__(seed, without=without)
        self.shelf = self.world.process("resource")
        chance = self.world.chance
        self.keys = ("k1", "k2")[: chance.choice((1, 1, 2))]
        self.lock_class = chance.choice(CLASSES)
        # Two can pass a lock on. Elsewhere the second mostly waits, and waiting teaches little.
        self.tasks = 2 if self.lock_class.local_mutex else chance.choice((1, 1, 2))
        self.replicated = chance.random() < 0.3
        self.resources = {key: Resource(key) for key in self.keys}
        self.sent: set[str] = set()
        self.highest: Counter[str] = Counter()
        """The highest fence that anybody has held a key with."""
        self.last_seq: dict[Lease, int] = {}
        self.calm = False
        self.probed: set[str] = set()
        self._copy: Contents | None = None
        self._set_up_store()

    def run(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(standing_in(self._stand_ins()))
            stack.callback(self._let_go)
            stack.callback(self.world.end)
            self._tell()

    def _stand_ins(self) -> dict[str, Any]:
        return {
            "holdfast.locks.locks.open_store": lambda *_, **__: LinkedStore(self, here(), here().name),
            "holdfast.locks.policy.LOOKS_PER_TTL": LOOKS_PER_TTL,
            "holdfast.locks.keeper.LOOKS_PER_TTL": LOOKS_PER_TTL,
        }

    def _let_go(self) -> None:
        let_go_of(self.store)

    def _tell(self) -> None:
        world = self.world
        clients = [Client(self, f"c{n}") for n in range(world.chance.choice((2, 2, 3)))]
        nemesis = Nemesis(self.network, clients, ttl_s=TTL_S)
        if self.replicated:
            self._replicate()
            nemesis.extra = [self.fail_over] * 2
        nemesis.rage(until=RAGE_S)
        world.run(until=RAGE_S)
        self.calm = True
        world.run(until=RAGE_S + CALM_S, unless=lambda: all(client.has_ended for client in clients))
        probe = Probe(self, "probe")
        world.run(until=RAGE_S + CALM_S + PROBE_S * len(self.keys) + 1.0, unless=lambda: probe.has_ended)
        self.judge()

    def judge(self) -> None:
        self.check_watched()
        for key, resource in self.resources.items():
            invariants.check_fenced_accept(resource)
            invariants.check_no_lost_ack(resource, sent=self.sent)
            assert key in self.probed, f"L7: nobody could have {key} at the end"

    # -- what is seen on the way -------------------------------------------------------------------

    def entered(self, lease: Lease, key: str) -> None:
        self.leases[lease.token] = lease
        if lease.fence not in self.granted[lease.token]:
            self.broke(f"L1: {key} is held with fence {lease.fence}, which was never granted")
        self.highest[key] = max(self.highest[key], lease.fence)

    def check_window(self, lease: Lease) -> None:
        """L6, by what was really sent, not by what the lease believes."""
        end = self.trusted[lease.token] + lease.lock_class.renewal.trust_s
        if self.world.clock_s >= end and not lease.carries_on:
            self.broke(f"L6: {lease.key} is used {self.world.clock_s - end:.3f} s after its window")
        if lease.belief.trusted_until > end:
            self.broke(f"L6: {lease.key} is trusted {lease.belief.trusted_until - end:.3f} s too long")

    # -- a store that is replaced ----------------------------------------------------------------------

    def _set_up_store(self) -> None:
        self.store = self._open_store()

    def _open_store(self, copy: Contents | None = None) -> LockStore:
        url = f"sqlite:///:memory:{self.world.chance.getrandbits(64)}"
        store: Any = open_store(url, holder="store", prefix="holdfast:", runtime=self.server.runtime, timeout_s=TTL_S)
        self.open(store)
        if copy is not None:
            store._shared.writer._connection.become(copy)
        return store  # type: ignore[no-any-return]

    def _replicate(self) -> None:
        store: Any = self.store
        self._copy = store._shared.writer._connection.copy()
        self.world.after(self.world.chance.uniform(0.5, 3.0), self._replicate)

    def fail_over(self) -> None:
        """The copy takes over. What was acknowledged since it was made is gone, grants included."""
        self.reached["failover"] += 1
        old, self.store = self.store, self._open_store(self._copy)
        let_go_of(old)
        replica: Any = self.store
        execute = replica._shared.writer._connection.execute
        tenures = {
            key: Tenure(token, expires, fence)
            for key, token, expires, fence in execute("SELECT key, token, expires, fence FROM holdfast_locks")
        }
        queues: dict[str, list[Waiter]] = {}
        for key, *waiter in execute(
            "SELECT key, token, ttl_ms, queue_ms, alive_until FROM holdfast_waiters ORDER BY place"
        ):
            queues.setdefault(key, []).append(Waiter(*waiter))
        self.reference.fail_over(tenures, queues)
