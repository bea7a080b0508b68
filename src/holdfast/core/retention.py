"""How long what has ended is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DAY_S = 24 * 3600.0

NEVER = float("-inf")


class Limits(NamedTuple):
    """Times of the store's clock: what ended at or after them stays. `NEVER` keeps everything."""

    ended_before: float
    letters_before: float
    """For jobs with a dead letter that nobody has replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """In seconds; 0 keeps it for ever."""

    finished_jobs_s: float = 30 * DAY_S
    """Counted from the end of the job, or of its last replay. Everything about it goes with it."""
    dead_letters_s: float = 90 * DAY_S
    """A dead letter that nobody has replayed keeps its job for this long, where that is longer."""

    def __post_init__(self) -> None:
        if self.finished_jobs_s < 0 or self.dead_letters_s < 0:
            raise ValueError("must be 0 or more seconds; 0 keeps everything")

    def limits(self, *, now: float) -> Limits:
        return Limits(
            now - self.finished_jobs_s if self.finished_jobs_s else NEVER,
            now - self.dead_letters_s if self.dead_letters_s else NEVER,
        )
