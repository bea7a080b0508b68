"""What is promised is promised of the oldest servers, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import servers
from harness import BACKENDS, OLDEST, Backend, make_backend


@pytest.fixture(params=[*BACKENDS, *OLDEST])
def backend(request: pytest.FixtureRequest, running: dict[str, servers.Server | None], tmp_path: Path) -> Backend:
    return make_backend(request.param, running, tmp_path)
