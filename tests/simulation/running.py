"""Run stories by their seeds; replay one; leave out what it does not need to fail."""

from __future__ import annotations

import asyncio
import functools
import gc
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from simulation.governed_story import GovernedStory
from simulation.lock_story import LockStory
from simulation.network import Network
from simulation.plane_story import PlaneStory
from simulation.redis_plane_story import RedisPlaneStory
from simulation.redis_story import RedisStory
from simulation.session_story import SessionStory
from simulation.stand_ins import standing_in
from simulation.world import STARTED_AT_S, Told, World

GARBAGE_MAX = 6_000
"""Objects, before it is looked for: a few stories' worth, which are still in the caches of the machine."""


SILENT = logging.CRITICAL + 1
TASKS = "_all_tasks" if hasattr(asyncio.tasks, "_all_tasks") else "_scheduled_tasks"
UNLISTED = {f"asyncio.tasks.{TASKS}.add": bool}
"""Nobody asks for all tasks there are, and to list them takes longer than to make them: a lane has its own list."""


class Story(Protocol):
    world: World
    network: Network
    reached: Counter[str]

    def run(self) -> None: ...


STORIES: dict[str, Callable[..., Story]] = {
    "lock": LockStory,
    "redis": RedisStory,
    "plane": PlaneStory,
    "calm": functools.partial(PlaneStory, calm=True),
    "governed": GovernedStory,
    "sessions": SessionStory,
    "plane-redis": RedisPlaneStory,
    "calm-redis": functools.partial(RedisPlaneStory, calm=True),
}
"""Each kind of story, by the name it is replayed under."""


@dataclass(frozen=True)
class Ending:
    kind: str
    seed: int
    violation: str | None
    faults: list[str]
    reached: Counter[str]
    simulated_s: float
    steps: int
    told: list[Told]

    @property
    def story(self) -> list[str]:
        """Line by line."""
        return [str(line) for line in self.told]

    @property
    def digest(self) -> str:
        return hashlib.sha256("".join(self.story).encode()).hexdigest()[:16]

    @property
    def replay(self) -> str:
        return f"make replay STORY={self.kind} SEED={self.seed}"


@contextmanager
def quiet() -> Iterator[None]:
    """The product logs what befalls it, and here everything does."""
    logger = logging.getLogger("holdfast")
    before = logger.level
    if before == SILENT:  # for many stories at once: to set it makes every logger that there is forget what it knows
        yield
        return
    logger.setLevel(SILENT)
    try:
        yield
    finally:
        logger.setLevel(before)


def run(kind: str, seed: int, *, without: frozenset[int] = frozenset()) -> Ending:
    with quiet(), standing_in(UNLISTED):
        story = STORIES[kind](seed, without=without)
        violation = None
        try:
            story.run()
        except AssertionError as broken:
            violation = str(broken) or "a promise was broken"
        except Exception as error:  # noqa: BLE001  (whatever it is, it is not what was promised)
            violation = f"{type(error).__name__}: {error}"
    world = story.world
    return Ending(
        kind=kind,
        seed=seed,
        violation=violation,
        faults=story.network.faults,
        reached=story.reached,
        simulated_s=world.clock_s - STARTED_AT_S,
        steps=world.steps,
        told=world.told,
    )


def shrink(ending: Ending) -> tuple[Ending, frozenset[int]]:
    """Leave faults out, many at a time and then few, for as long as the story still fails."""
    without: frozenset[int] = frozenset()
    share = max(1, len(ending.faults) // 2)
    while True:
        left = [n for n in range(len(ending.faults)) if n not in without]
        for start in range(0, len(left), share):
            tried = without | frozenset(left[start : start + share])
            again = run(ending.kind, ending.seed, without=tried)
            if again.violation is not None:
                ending, without = again, tried
        if share == 1:
            return ending, without
        share //= 2


@dataclass
class Tally:
    """Many stories at once."""

    stories: int = 0
    simulated_s: float = 0.0
    steps: int = 0
    faults: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    violations: list[Ending] = field(default_factory=list)

    def add(self, ending: Ending) -> None:
        self.stories += 1
        self.simulated_s += ending.simulated_s
        self.steps += ending.steps
        self.faults += len(ending.faults)
        self.reached += ending.reached
        if ending.violation is not None:
            self.violations.append(ending)

    def merge(self, other: Tally) -> None:
        self.stories += other.stories
        self.simulated_s += other.simulated_s
        self.steps += other.steps
        self.faults += other.faults
        self.reached += other.reached
        self.violations += other.violations


def run_many(kind: str, seeds: Iterable[int]) -> Tally:
    tally = Tally()
    with swept_in_between():
        for seed in seeds:
            tally.add(run(kind, seed))
    return tally


@contextmanager
def swept_in_between() -> Iterator[None]:
    """A story becomes garbage when it is over, all of it at once. Looking for some while it is told takes longer
    than all else that is done beside the story itself."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # for good: what there is now is there to stay
    gc.set_threshold(GARBAGE_MAX, 1, 1)
    try:
        with quiet():
            yield
    finally:
        gc.set_threshold(*before)
