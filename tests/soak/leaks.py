"""Does a process grow? Its memory, open files, connections and tasks, early and late."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1_000_000


class Sample(NamedTuple):
    rss_mb: float
    files: int
    connections: int
    tasks: int = 0


ALLOWED = Sample(rss_mb=15.0, files=6, connections=6, tasks=6)
"""What may be more at the end: caches fill, and somebody may just be connecting."""


def look_at(pid: int, *, tasks: int = 0) -> Sample | None:
    """None: it is gone."""
    place = Path(f"/proc/{pid}")
    try:
        rss = int((place / "statm").read_text().split()[1]) * PAGE_MB
        files = [str(file.readlink()) for file in (place / "fd").iterdir()]
    except OSError:
        return None
    return Sample(rss, len(files), sum(file.startswith("socket:") for file in files), tasks)


def find_leaks(samples: Sequence[Sample]) -> list[str]:
    """The second tenth against the last: the first is for warming up. Medians, for a pause may hit any moment."""
    tenth = len(samples) // 10
    if not tenth:
        return []
    early, late = samples[tenth : 2 * tenth], samples[-tenth:]
    found = []
    for name, allowed in ALLOWED._asdict().items():
        before, after = (median(getattr(sample, name) for sample in part) for part in (early, late))
        if after > before + allowed:
            found.append(f"{name} grew from {before:.0f} to {after:.0f}")
    return found
