"""The lock-set test that Jepsen made famous, with real processes: is any acknowledged update lost?

Five processes add to sets under a lock of 2 s; every 5 s all but one of them are stopped for longer than that,
and then go on where they were. Once with guards, once with the lock alone. `make soak-lock-set` runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import redis
import servers
from progress import PROGRESS

from soak.adder import piece

ADDER = Path(__file__).with_name("adder.py")
PAUSE_PER_TTL = (1.5, 2.5)
VIOLATED = 7


@dataclass(frozen=True)
class Plan:
    updates: int = 100_000
    """Acknowledged ones, at least."""
    rounds: int = 3
    """Of pauses, at least: a quick machine is not done before anybody was stopped."""
    clients: int = 5
    sets: int = 8
    """Each with a lock of its own. All clients want all of them."""
    ttl_s: float = 2.0
    pause_every_s: float = 5.0
    think_s: float = 0.01


@dataclass
class Tally:
    kind: str
    acknowledged: set[str] = field(default_factory=set)
    refused: int = 0
    """Writes that came too late, and were not made."""
    pauses: int = 0
    kept: list[str] = field(default_factory=list)
    """What is in the sets at the end."""
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        return len(self._missing())

    def _missing(self) -> list[str]:
        return sorted(self.acknowledged.difference(self.kept))

    def violations(self, plan: Plan) -> list[str]:
        """Whatever a set must not be, whether or not anything was lost: nobody's value, or one twice."""
        found = []
        if len(set(self.kept)) != len(self.kept):
            found.append(f"{self.kind}: {len(self.kept) - len(set(self.kept))} values are there twice")
        mine = {f"c{n}" for n in range(plan.clients)}
        strange = [value for value in self.kept if value.split(".")[0] not in mine]
        if strange:
            found.append(f"{self.kind}: nobody added {strange[:3]}")
        if self.kind == "guards" and self.lost:
            some = ", ".join(map(repr, self._missing()[:3]))
            found.append(f"guards: {self.lost} of {len(self.acknowledged)} acknowledged updates are lost: {some}")
        return found


async def run(kind: str, plan: Plan, *, tells: bool = False) -> Tally:
    """On a server of its own, until enough is acknowledged, or somebody ends it: then it is judged as far as it came."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = servers.redis_server().start()
    tally, began = Tally(kind), time.monotonic()
    clients = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, str(ADDER), f"c{n}", server.url, str(plan.ttl_s), str(plan.sets)),
            *(str(plan.think_s), kind),
            stdout=asyncio.subprocess.PIPE,
        )
        for n in range(plan.clients)
    ]
    listening = [asyncio.create_task(listen(client, tally)) for client in clients]
    pausing = asyncio.create_task(pause(clients, plan, tally))
    try:
        least = plan.rounds * (plan.clients - 1)
        while not stopped.is_set() and (len(tally.acknowledged) < plan.updates or tally.pauses < least):
            await asyncio.sleep(0.2)
            ended = [client.returncode for client in clients if client.returncode is not None]
            assert not ended, f"a client ended by itself, with {ended}"
            tally.seconds = time.monotonic() - began
            if tells:
                show(tally, plan)
    finally:
        pausing.cancel()
        with suppress(asyncio.CancelledError):
            await pausing
        for client in clients:
            with suppress(ProcessLookupError):
                client.kill()
        await asyncio.gather(*listening, *(client.wait() for client in clients))
        tally.kept = read_sets(server.url, plan.sets)
        server.remove()
    return tally


async def listen(client: asyncio.subprocess.Process, tally: Tally) -> None:
    """To the last line: what was said before a kill counts."""
    assert client.stdout is not None
    async for line in client.stdout:
        if not line.endswith(b"\n"):
            break  # it was killed as it said so
        word, _, value = line.decode().strip().partition(" ")
        if word == "added":
            tally.acknowledged.add(value)
        elif word == "refused":
            tally.refused += 1


async def pause(clients: Sequence[asyncio.subprocess.Process], plan: Plan, tally: Tally) -> None:
    """All but one, for longer than a lease lasts."""
    chance = random.Random()
    while True:
        await asyncio.sleep(plan.pause_every_s)
        victims = chance.sample(clients, len(clients) - 1)
        try:
            for victim in victims:
                victim.send_signal(signal.SIGSTOP)
            await asyncio.sleep(plan.ttl_s * chance.uniform(*PAUSE_PER_TTL))
        finally:
            for victim in victims:
                victim.send_signal(signal.SIGCONT)
        await asyncio.sleep(plan.ttl_s / 2)  # they do what they were about to do
        tally.pauses += len(victims)


def read_sets(url: str, sets: int) -> list[str]:
    values: list[str] = []
    with redis.Redis.from_url(url) as client:
        for number in range(sets):
            shelf = 0
            while (kept := client.get(piece(number, shelf)[1])) is not None:
                values += json.loads(kept)
                shelf += 1
    return values


def show(tally: Tally, plan: Plan) -> None:
    rate = len(tally.acknowledged) / max(tally.seconds, 0.001)
    PROGRESS.show(
        f"{tally.kind}: {len(tally.acknowledged)} of {plan.updates} acknowledged, {rate:.0f}/s, {tally.pauses} pauses, "
        f"{tally.refused} refused"
    )


HEAD = "| | acknowledged | lost | refused | pauses | seconds |\n|---|---|---|---|---|---|"


def row(tally: Tally) -> str:
    share = f" ({tally.lost / len(tally.acknowledged):.2%})" if tally.lost else ""
    return (
        f"| {tally.kind} | {len(tally.acknowledged):,} | {tally.lost:,}{share} | {tally.refused:,} "
        f"| {tally.pauses:,} | {tally.seconds:.0f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak.lock_set", description=__doc__)
    parser.add_argument("--updates", type=int, default=Plan.updates, help="acknowledged ones, with guards")
    plan = Plan(updates=parser.parse_args().updates)
    print(f"{plan.clients} processes, leases of {plan.ttl_s:g} s, all but one stopped every {plan.pause_every_s:g} s")
    guarded = asyncio.run(run("guards", plan, tells=True))
    PROGRESS.end()
    print(f"{HEAD}\n{row(guarded)}", flush=True)
    # What a lease alone loses shows in a tenth of the time.
    bare = asyncio.run(run("bare", replace(plan, updates=plan.updates // 10), tells=True))
    PROGRESS.end()
    print(f"{HEAD}\n{row(guarded)}\n{row(bare)}")
    violations = [found for tally in (guarded, bare) for found in tally.violations(plan)]
    for found in violations:
        print(f"BROKEN {found}")
    if not bare.lost:
        print("The bare lease lost nothing: no pause came between a read and a write, so this run shows little.")
    return VIOLATED if violations else 0


if __name__ == "__main__":
    sys.exit(main())
