"""The stories of the plane once more, on Redis: the store's own client and scripts, over a server in memory.

Connections stall and break, before a command and after it; the server is restarted, and keeps what it had on its
disk; its memory is full for a while. A copy that lags behind does not take over: of that the plane on Redis promises
less (docs/reference/promises.md), and tests with real servers show it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from flow.watched_bus import Seen

from holdfast.config import Settings
from holdfast.core.job import Job
from holdfast.core.topic import Topics
from holdfast.stores import open_store
from holdfast.stores.batch_writer import InDoubt
from holdfast.stores.redis.link import WRITE
from holdfast.stores.redis.writer import JUMP, RedisBatches
from holdfast.stores.server_clock import ServerClock
from simulation.plane_story import TOPICS, PlaneStory
from simulation.redis_plane_look import KEYS, Onlooker, check_lists, check_rows
from simulation.redis_witness import URL, RedisWitness
from simulation.world import here

PATIENT = Topics(tuple(dataclasses.replace(topic, lease_s=12.0, dispatch_timeout_s=12.0) for topic in TOPICS.declared))
WAYS = ((0.0, 0.5, TOPICS), (0.0, 2.0, TOPICS), (0.12, 2.0, PATIENT))
"""How far away the server is, how long planes wait for its answer, and how much time jobs have. Who waits for less gives up
more that still arrives; where the server is far away, planes come in between each other's reading and writing."""
AWAY_S = (0.05, 3.0)
FULL_S = (0.3, 6.0)
OVERTAKEN_MAX = 3
"""Where nothing goes wrong: who was overtaken has the next turn, and soon time enough to use it."""
CLOCKS_S_MAX = 0.5
"""Half of what the quickest of many looks at the clock takes, where nearly all are slow."""
_WRITE = WRITE.text.encode()


class RedisPlaneStory(RedisWitness, PlaneStory):
    def _set_up_store(self) -> None:
        super()._set_up_store()
        self.far_s, self.patience_s, self.topics = self.world.chance.choice(WAYS)
        self.settings = Settings(store=URL, topics=self.topics)
        self.jobs = Onlooker(self, self.topics)
        self.wanted = self.world.chance.choice((2, 4, 6))  # the more there is to write, the more come in between
        self.restarts = 0
        self.overtaken: Counter[str] = Counter()
        """How many writes of a plane came too late, one after the other."""
        self.applied: set[str] = set()
        """Writes that were, by their words."""
        self.believed: dict[str, bool | None] = {}
        """Whether the plane that sent a write was told that it was applied. None: it was told that nobody knows."""

    def _strikes(self) -> list[Callable[[], None]]:
        return [self.restart, self.fill]

    def _stand_ins(self) -> dict[str, Any]:
        stand_ins = super()._stand_ins() | self._redis_stand_ins()
        return stand_ins | {
            "holdfast.app.open_store": functools.partial(open_store, timeout_s=self.patience_s),
            "holdfast.stores.redis.writer.RedisBatches._write": self._noting(RedisBatches._write),
            "holdfast.stores.server_clock.ServerClock.now": self._comparing(ServerClock.now),
            # As with those of the loops: the floor, further down.
            "holdfast.stores.redis.database.LISTEN_S": 1.0,
        }

    # -- what befalls the server -------------------------------------------------------------------

    def restart(self) -> None:
        self.reached["server restarted"] += 1
        self.world.tell("store", "goes down")
        self.restarts += 1
        self.redis.is_away = True
        self.redis.restart()
        self.end_streams()
        self.world.after(self.world.chance.uniform(*AWAY_S), self._come_back)

    def _come_back(self) -> None:
        self.world.tell("store", "is back")
        self.redis.is_away = False

    def fill(self) -> None:
        self.reached["memory full"] += 1
        self.world.tell("store", "has no memory left")
        self.redis.is_full = True
        self.world.at(min(self.world.clock_s + self.world.chance.uniform(*FULL_S), self.calms_down_at), self._free)

    def _free(self) -> None:
        self.world.tell("store", "has memory again")
        self.redis.is_full = False

    # -- what is seen on the way -------------------------------------------------------------------

    def _ran(self, script: bytes, keys: list[bytes], arguments: list[bytes], answer: Any) -> None:
        super()._ran(script, keys, arguments, answer)
        if script == _WRITE:
            self._saw_write(arguments[1].decode(), answer.decode())

    def _saw_write(self, word: str, answer: str) -> None:
        self.world.tell("store", f"write {word}: {answer}")
        self.reached[f"write {answer}"] += 1
        plane = word.partition(":")[0]
        self.overtaken[plane] = self.overtaken[plane] + 1 if answer == "moved" else 0
        if self.calm and self.overtaken[plane] > OVERTAKEN_MAX:
            self.broke(f"J8: {plane} was overtaken {self.overtaken[plane]} times in a row")
        if answer == "written":
            if word in self.applied:
                self.broke(f"U1: {word} was written twice")
            self.applied.add(word)

    def _noting(self, write: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(batches: Any, draft: Any, **options: Any) -> None:
            writes = batches._writes
            believed: bool | None = None
            try:
                await write(batches, draft, **options)
                believed = True
            except (InDoubt, asyncio.CancelledError, GeneratorExit):
                raise
            except Exception:
                believed = False
                raise
            finally:
                if batches._writes > writes:
                    self.believed[f"{batches._plane}:{batches._writes}"] = believed

        return wrapped

    def _comparing(self, now: Callable[[ServerClock], float]) -> Callable[[ServerClock], float]:
        """A plane that is behind writes leases that end before their holders stop to trust them; one that is ahead ends them."""

        def wrapped(clock: ServerClock) -> float:
            shown = now(clock)
            ahead_s = shown - self.jobs.now()
            if abs(ahead_s) > CLOCKS_S_MAX:
                self.broke(f"P2: the clock of {here().name} is {ahead_s:+.1f} s ahead of the server's")
            return shown

        return wrapped

    # -- the end -----------------------------------------------------------------------------------

    def is_over(self) -> bool:
        self.check_kept()
        return super().is_over()

    def check_kept(self) -> None:
        """What is in the server fits together, at any moment."""
        self.commits()
        ids = [name.decode() for name in self.redis.find(KEYS.jobs.encode()) or ()]
        jobs: list[Job | None] = self.ask(self.jobs.find_jobs, ids)
        check_rows(self.events, jobs)
        check_lists(self.redis, jobs, self.topics)

    def check_numbers(self) -> None:
        """U1: without gaps, but that a server which was restarted goes on far above: it might have forgotten some."""
        steps = [after.number - before.number for before, after in itertools.pairwise(self.events)]
        jumps = [step for step in steps if step != 1]
        assert set(jumps) <= {1 + n * JUMP for n in range(1, self.restarts + 1)}, (
            f"U1: numbers are not gap-free: {jumps}"
        )
        assert sum(jumps) <= self.restarts * (JUMP + 1), f"U1: numbers went on too far above: {jumps}"

    def look_back(self) -> tuple[Seen, list[Job]]:
        looked = super().look_back()
        self.check_kept()
        for word, believed in self.believed.items():
            was = word in self.applied
            assert believed in (None, was), (
                f"U1: {word} was {'' if was else 'not '}written, and its plane was told otherwise"
            )
        return looked
