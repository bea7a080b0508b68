"""What a subject of the benchmark is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.harness import Contender, Sample
from bench.table import Row


@dataclass(frozen=True, kw_only=True)
class Subject:
    name: str
    #: "redis", "postgres", or "disk" (an empty directory). Every contender is called with its `url`.
    server: str
    contenders: Sequence[Contender]
    #: How long each contender is measured; passed to it.
    seconds: float
    repetitions: int
    rows: Callable[[Sequence[Sample]], list[Row]]
