"""DBOS on Postgres: a workflow of ten steps that do nothing, one after the other and 16 at once.

Steps run where the workflow runs, in this process, as its documentation shows: each is recorded when
it has ended. `python -m bench.peers.dbos_chain chain RUNS` prints the figures as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles

from dbos import DBOS  # type: ignore[import-not-found]

STEPS = 10
CALLERS = 16
WARM_UP_RUNS = 20


def noop() -> None:
    pass


def main(runs: int) -> None:
    DBOS(config={"name": "bench", "system_database_url": os.environ["BENCH_POSTGRES"]})
    step = DBOS.step()(noop)

    @DBOS.workflow()  # type: ignore[untyped-decorator]
    def chain() -> None:
        for _ in range(STEPS):
            step()

    DBOS.launch()
    for _ in range(WARM_UP_RUNS):
        chain()
    taken_ms = []
    for _ in range(runs):
        started = time.perf_counter()
        chain()
        taken_ms.append((time.perf_counter() - started) * 1000)
    started = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as callers:
        list(callers.map(lambda _: chain(), range(runs)))
    together_s = time.perf_counter() - started
    hundredths = quantiles(taken_ms, n=100)
    print(json.dumps({"p50_ms": hundredths[49], "p99_ms": hundredths[98], "steps_s": runs * STEPS / together_s}))
    sys.stdout.flush()
    DBOS.destroy()


if __name__ == "__main__":
    main(int(sys.argv[2]))
