"""What a subject of the benchmark is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.harness import Contender, Sample
from bench.jobs_peers import Environment
from bench.table import Row


@dataclass(frozen=True, kw_only=True)
class Subject:
    name: str
    #: A name that `Places` knows, or "disk" (an empty directory). Every contender is called with its `url`.
    server: str
    #: A second server, where there is one. Every contender is called with its `bus_url`.
    bus: str = ""
    contenders: Sequence[Contender]
    #: How long each contender is measured; passed to it. 0 where it is given an amount of work instead.
    seconds: float = 0.0
    repetitions: int
    #: Passed to every contender as well; a quick look passes `quick_arguments` on top of them.
    arguments: Mapping[str, object] = field(default_factory=dict)
    quick_arguments: Mapping[str, object] = field(default_factory=dict)
    #: Where the others that take part are installed, before the first repetition.
    peers: Sequence[Environment] = ()
    #: Called once before the first repetition with what the contenders are called with.
    prepare: Callable[..., None] | None = None
    rows: Callable[[Sequence[Sample]], list[Row]]
