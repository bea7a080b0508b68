"""Which story is told where: `flow.telling` says it."""

from __future__ import annotations

import pytest

from flow.telling import place, places_of, tell

__all__ = ["place"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    tell(metafunc, places_of(metafunc.function))
