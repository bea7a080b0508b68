"""How long `import holdfast.locks` takes in a process of its own, against the one module that everybody here needs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence

from bench.harness import ROOT, Contender, Figures, Sample
from bench.subject import Subject
from bench.table import Figure, Goal, Row, bounded

TIMES = 15
_TIMED = "import time; began = time.perf_counter(); import {module}; print(time.perf_counter() - began)"


def importing(url: str, seconds: float, module: str) -> Figures:
    return {"ms": statistics.median(_taken_s(module) for _ in range(TIMES)) * 1000}


def _taken_s(module: str) -> float:
    command = [sys.executable, "-c", _TIMED.format(module=module)]
    # As it is for a user: compiled before, whatever the environment says of this.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    return float(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, text=True).stdout)


def _rows(samples: Sequence[Sample]) -> list[Row]:
    ours, theirs = Figure("holdfast.locks", "ms", "ms"), Figure("asyncio", "ms", "ms")
    return [bounded("import holdfast.locks", samples, ours, Goal(100, None, "ms", most=True), theirs)]


IMPORT = Subject(
    name="import",
    server="disk",
    contenders=[
        Contender(name="holdfast.locks", run=importing, arguments={"module": "holdfast.locks"}),
        Contender(name="asyncio", run=importing, arguments={"module": "asyncio"}),
    ],
    repetitions=5,
    rows=_rows,
)
