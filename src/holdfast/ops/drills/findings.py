"""What a drill found: claims with what was measured, figures, and a timeline to draw. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypedDict


class Figure(StrEnum):
    """What every drill that can measures, under the same name."""

    TAKEOVER_S = "takeover_s"
    """From the fault until somebody else had the work."""
    STALE_REFUSED = "stale_refused"
    """Words and writes of those who had lost their lease, refused."""
    DUPLICATES = "duplicates"
    LOST = "lost"
    BLIND_S = "blind_window_s"
    """From the end of the lease until somebody else had the work: nobody looked after it."""


class Verdict(StrEnum):
    KEPT = "kept"
    BROKEN = "broken"
    """A promise did not hold."""
    NOT_RUN = "not run"
    """The drill could not be carried out: nothing is known about the promise."""


class Bounds(TypedDict, total=False):
    """What is wanted of a number, and in what it is measured."""

    unit: str
    at_least: float
    at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim of a promise, and what was measured of it."""

    promise: str
    claim: str
    measured: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def kept(self) -> bool:
        above = self.at_least is None or self.measured >= self.at_least
        return above and (self.at_most is None or self.measured <= self.at_most)

    @property
    def wanted(self) -> str:
        """The bound in words."""
        if self.at_least is not None and self.at_least == self.at_most:
            return number(self.at_least, self.unit)
        low = "" if self.at_least is None else f"at least {number(self.at_least, self.unit)}"
        high = "" if self.at_most is None else f"at most {number(self.at_most, self.unit)}"
        return ", ".join(filter(None, (low, high)))


def number(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value:.2f} s"
    return f"{value:g}"


class Trouble(StrEnum):
    """What a lane of the picture goes through."""

    LEASE = "lease"
    PAUSED = "paused"
    DEAD = "dead"
    CUT_OFF = "cut off"
    OUTAGE = "outage"
    SLOW = "slow"


class Sign(StrEnum):
    FAULT = "fault"
    REFUSED = "refused"
    ACCEPTED = "accepted"
    NOTE = "note"


@dataclass(slots=True, kw_only=True)
class Band:
    lane: str
    kind: Trouble
    start: float
    end: float | None
    """None: until the end of the drill."""
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    lane: str
    kind: Sign
    at: float
    label: str


@dataclass(slots=True)
class Timeline:
    """Lanes, bands and marks, in seconds since the drill began."""

    lanes: list[str] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def lane(self, name: str) -> None:
        if name not in self.lanes:
            self.lanes.append(name)

    def begin(self, lane: str, kind: Trouble, label: str, *, at: float) -> Band:
        self.lane(lane)
        band = Band(lane=lane, kind=kind, start=at, end=None, label=label)
        self.bands.append(band)
        return band

    def mark(self, lane: str, kind: Sign, label: str, *, at: float) -> None:
        self.lane(lane)
        self.marks.append(Mark(lane=lane, kind=kind, at=at, label=label))


@dataclass(slots=True, kw_only=True)
class Report:
    """One drill, carried out once."""

    drill: str
    title: str
    hypothesis: str
    promises: tuple[str, ...]
    site: str
    """Which store and bus, without passwords."""
    began_at: float
    """By the wall clock, for people."""
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    figures: dict[Figure, float] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    steps: list[str] = field(default_factory=list)
    """What was done, as it was told."""
    trouble: str = ""
    """Why it could not be carried out."""

    @property
    def verdict(self) -> Verdict:
        if any(not finding.kept for finding in self.findings):
            return Verdict.BROKEN
        return Verdict.NOT_RUN if self.trouble or not self.findings else Verdict.KEPT
