"""What is promised is promised of the oldest servers, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from backends import NAMES, OLDEST, Running
from harness import Backend, make_backend


@pytest.fixture(params=[*NAMES, *OLDEST])
def backend(request: pytest.FixtureRequest, running: Running, tmp_path: Path) -> Backend:
    return make_backend(request.param, running, tmp_path)
