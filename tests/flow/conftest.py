"""Which story is told where: `flow.telling` says it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulation.stand_ins import standing_in

from flow.telling import place, places_of, tell

__all__ = ["place"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    tell(metafunc, places_of(metafunc.function))


@pytest.fixture
def unhurried() -> Iterator[None]:
    """For a story in which nothing happens for minutes. It is not about how often somebody looks, and to look is all that it
    would cost."""
    looks = ("holdfast.scheduler.POLL_S", "holdfast.workflow_engine.POLL_S", "flow.stage.CLAIM_S")
    with standing_in(dict.fromkeys(looks, 2.0)):
        yield
