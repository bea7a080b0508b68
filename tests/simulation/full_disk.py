"""A disk that is full for a while: SQLite's own transactions fail at their commit, and nothing of them is kept."""

from __future__ import annotations

from typing import Any

import apsw

from simulation.lock_link import Witness

FULL_S = (0.3, 6.0)


class Disk:
    """Of the store, jobs and locks alike."""

    def __init__(self, story: Witness, connection: Any, *, rage_s: float) -> None:
        self._story = story
        self._connection = connection
        self._free_by = story.world.clock_s + rage_s
        """Calm is calm: by then there is room again."""

    def fill(self) -> None:
        world = self._story.world
        world.tell("store", "has no room on its disk")
        self._connection.set_commit_hook(self._refuse)
        world.at(min(world.clock_s + world.chance.uniform(*FULL_S), self._free_by), self.free)

    def free(self) -> None:
        self._story.world.tell("store", "has room again")
        self._connection.set_commit_hook(None)

    def _refuse(self) -> bool:
        self._story.reached["disk full"] += 1
        raise apsw.FullError("database or disk is full")
