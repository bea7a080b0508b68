"""The fixtures of `holdfast.testing`. pytest finds them by itself where Holdfast is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.testing.clock import Clock
    from holdfast.testing.plane import LocalPlane


@pytest.fixture
def holdfast_clock() -> Clock:
    """The time of `holdfast_plane`: `advance(3600)` makes an hour pass at once."""
    from holdfast.testing.clock import Clock  # noqa: PLC0415  (tests that do not ask for it load nothing)

    return Clock()


@pytest.fixture
def holdfast_plane(holdfast_clock: Clock) -> Iterator[LocalPlane]:
    """A plane of this test's own, in this process, on a store in memory."""
    from holdfast.testing.plane import LocalPlane  # noqa: PLC0415

    plane = LocalPlane(clock=holdfast_clock)
    yield plane
    plane.close()
