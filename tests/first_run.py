"""The first run of a clone: one worker compiles what all of them import, and the others find it done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

COMPILED = Path(__file__).parent / "__pycache__/compiled"
"""Is there once a worker has imported everything. Where it is there for nothing, or missing, a run takes some seconds longer."""
WAIT_S_MAX = 60.0


@contextmanager
def one_ahead(config: pytest.Config) -> Iterator[None]:
    """Import everything in this block. Nearly all that it costs for the first time is compiling and rewriting asserts; four
    workers who begin at once would each do all of it."""
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is None or sys.dont_write_bytecode or COMPILED.exists():
        yield
    elif worker == "gw0":
        try:
            yield
        finally:
            COMPILED.parent.mkdir(exist_ok=True)
            COMPILED.touch()
    else:
        deadline = time.monotonic() + WAIT_S_MAX
        while not COMPILED.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield
