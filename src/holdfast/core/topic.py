"""What a topic allows its jobs: the limits by which recovery and retries are decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core.family import fits
from holdfast.core.retry import Backoff
from holdfast.core.schema import Schema
from holdfast.core.states import Risk

REMEMBERED_MAX = 1024
"""Names, so that callers who invent them do not fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """`name` may end in `*` to stand for a family. Times in seconds."""

    name: str
    pool: str = "default"
    risk: Risk = Risk.MEDIUM
    max_attempts: int = 3
    lease_s: float = 30.0
    dispatch_timeout_s: float = 300.0
    running_timeout_s: float = 900.0
    backoff: Backoff = field(default_factory=Backoff)
    pending_timeout_s: float = 60.0
    """How long a decision may take before the replayer asks again."""
    schema: Schema | None = None
    """What payloads must be like; None: as they like."""
    running_max: int = 0
    """Jobs of this topic at work at once, of all tenants together; 0: no limit. Of a family: of each topic in it."""
    live_jobs_max: int = 0
    """Jobs of this topic that one tenant may have which have not ended; 0: no limit but the tenant's own."""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {self.max_attempts}")
        if min(self.lease_s, self.dispatch_timeout_s, self.running_timeout_s, self.pending_timeout_s) <= 0:
            raise ValueError("lease_s and the timeouts must be more than 0 seconds")
        if self.running_max < 0 or self.live_jobs_max < 0:
            raise ValueError("running_max and live_jobs_max must be 0 or more; 0 is no limit")


@dataclass(frozen=True, slots=True)
class Topics:
    """The declared topics. An undeclared name has the defaults unless `closed`."""

    declared: tuple[Topic, ...] = ()
    closed: bool = False
    _found: dict[str, Topic | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Asked for with every step of every job: what was found by name before."""

    def get(self, name: str) -> Topic:
        """For a job that exists: one whose topic is no longer declared must still be recovered."""
        return self.find(name) or Topic(name=name)

    def find(self, name: str) -> Topic | None:
        """The exact declaration, else the longest family that matches, else the defaults."""
        if name not in self._found:
            if len(self._found) >= REMEMBERED_MAX:
                self._found.clear()
            self._found[name] = self._look_up(name)
        return self._found[name]

    def _look_up(self, name: str) -> Topic | None:
        families = [t for t in self.declared if fits(name, t.name)]
        if families:
            return max(families, key=lambda t: (t.name == name, len(t.name)))
        return None if self.closed else Topic(name=name)
