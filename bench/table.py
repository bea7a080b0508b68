"""From samples to the table: medians, paired ratios, goals, and whether they are met. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import NamedTuple

from bench.harness import Sample

MET, MISSED, NO_GOAL = "met", "MISSED", ""


class Goal(NamedTuple):
    """`least` must be reached; `aim` is what we hope for. `most` turns both into upper bounds."""

    least: float | None
    aim: float | None
    unit: str
    most: bool = False

    def reached(self, value: float, limit: float) -> bool:
        return value <= limit if self.most else value >= limit

    def verdict(self, value: float) -> str:
        if self.least is not None and not self.reached(value, self.least):
            return MISSED
        if self.aim is None or self.reached(value, self.aim):
            return f"{MET}, aim too" if self.aim is not None else MET
        return MET if self.least is not None else "aim not met"

    def shown(self) -> str:
        sign = "≤" if self.most else "≥"
        least = f"{sign} {_number(self.least)} {self.unit}".strip() if self.least is not None else ""
        aim = f"aim {_number(self.aim)} {self.unit}".strip() if self.aim is not None else ""
        return ", ".join(filter(None, (least, aim)))


@dataclass(frozen=True, kw_only=True)
class Row:
    work: str
    ours: str
    peer: str = ""
    ratio: str = ""
    goal: str = ""
    verdict: str = NO_GOAL


class Figure(NamedTuple):
    """A figure of a contender: whose, what it is called there, and how it is shown."""

    contender: str
    name: str
    unit: str
    #: Instead of the contender's name, where it stands in the column of the others.
    label: str = ""

    def of(self, sample: Sample) -> float:
        return sample[self.contender][self.name]

    def shown(self, samples: Sequence[Sample]) -> str:
        return f"{_number(median(map(self.of, samples)))} {self.unit}".strip()

    def labelled(self, samples: Sequence[Sample]) -> str:
        return f"{self.label or self.contender}: {self.shown(samples)}"


def faster(work: str, samples: Sequence[Sample], ours: Figure, peer: Figure, goal: Goal | None = None) -> Row:
    """How many times more of something we do."""
    return _compared(work, samples, ours, peer, goal, lambda our, their: our / their)


def lower(work: str, samples: Sequence[Sample], ours: Figure, peer: Figure, goal: Goal | None = None) -> Row:
    """How many times less of something we need."""
    return _compared(work, samples, ours, peer, goal, lambda our, their: their / our)


def overhead(work: str, samples: Sequence[Sample], ours: Figure, peer: Figure, goal: Goal) -> Row:
    """How many per cent longer ours takes, from two times."""
    return _compared(work, samples, ours, peer, goal, lambda our, their: (our / their - 1) * 100)


def bounded(work: str, samples: Sequence[Sample], ours: Figure, goal: Goal, peer: Figure | None = None) -> Row:
    """A figure of ours with a goal of its own; the peer's stands beside it for reading."""
    values = [ours.of(sample) for sample in samples]
    return Row(
        work=work,
        ours=f"{_number(median(values))} {_spread(values)} {ours.unit}".replace("  ", " ").strip(),
        peer=peer.labelled(samples) if peer else "",
        goal=goal.shown(),
        verdict=goal.verdict(median(values)),
    )


def as_text(rows: Sequence[Row]) -> str:
    """A Markdown table that also reads well as plain text."""
    head = ("work", "ours", "theirs", "paired ratio [middle half]", "goal", "")
    cells = [head, *((row.work, row.ours, row.peer, row.ratio, row.goal, row.verdict) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _compared(
    work: str,
    samples: Sequence[Sample],
    ours: Figure,
    peer: Figure,
    goal: Goal | None,
    ratio: Callable[[float, float], float],
) -> Row:
    # Inside a repetition both ran within seconds of each other: what else the machine did touched both.
    ratios = [ratio(ours.of(sample), peer.of(sample)) for sample in samples]
    middle = median(ratios)
    return Row(
        work=work,
        ours=ours.shown(samples),
        peer=peer.labelled(samples),
        ratio=f"{_number(middle)} {goal.unit if goal else '×'} {_spread(ratios)}".strip(),
        goal=goal.shown() if goal else "",
        verdict=goal.verdict(middle) if goal else NO_GOAL,
    )


def _spread(values: Sequence[float]) -> str:
    if len(values) < 3:
        return ""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return f"[{_number(low)}..{_number(high)}]"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"
