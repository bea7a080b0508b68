"""The stories of locks once more, on Redis: the store's own client and script, over a server in memory."""

from __future__ import annotations

from typing import Any

from locks.reference import Tenure, Waiter

from simulation.lock_story import LockStory
from simulation.redis_server import RedisServer
from simulation.redis_witness import PREFIX, RedisWitness
from simulation.world import STARTED_AT_S, WALL_AT_START_US


class RedisStory(RedisWitness, LockStory):
    _snapshot: Any = None
    """What the copy has that takes over."""

    def _stand_ins(self) -> dict[str, Any]:
        return super()._stand_ins() | self._redis_stand_ins()

    # -- a server that is replaced -----------------------------------------------------------------

    def _replicate(self) -> None:
        self._snapshot = self.redis.snapshot()
        self.world.after(self.world.chance.uniform(0.5, 3.0), self._replicate)

    def fail_over(self) -> None:
        self.reached["failover"] += 1
        self.redis = RedisServer(self._now_us, self._ran)
        self.redis.restore(self._snapshot)
        self.end_streams()
        tenures, queues = {}, {}
        for key in (f"{PREFIX}sim:{key}" for key in self.keys):
            if held := self.redis.find(key.encode()):
                token, fence, _ = held.decode().split(":", 2)
                tenures[key] = Tenure(token, self._ms(self.redis.expires_ms(key.encode())), int(fence))
            queues[key] = self._waiters(key)
        self.reference.fail_over(tenures, queues)

    def _waiters(self, key: str) -> list[Waiter]:
        entries = self.redis.find(f"{{{key}}}:waiters".encode()) or {}
        queue = self.redis.find(f"{{{key}}}:queue".encode()) or []
        return [self._waiter(token.decode(), entries[token]) for token in queue]

    def _waiter(self, token: str, entry: bytes) -> Waiter:
        alive_ms, ttl_ms, queue_ms, *_ = map(int, entry.decode().strip("[]").split(",")[:3])
        return Waiter(token, ttl_ms, queue_ms, self._ms(alive_ms))

    @staticmethod
    def _ms(wall_ms: int) -> int:
        """On the clock of the reference."""
        return wall_ms - WALL_AT_START_US // 1000 + int(STARTED_AT_S * 1000)
