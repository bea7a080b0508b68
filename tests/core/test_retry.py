"""Back-off: it doubles, stops at its cap, and is spread over the whole of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.retry import Backoff


@pytest.mark.parametrize(("failures", "ceiling"), [(1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (1000, 30)])
def test_ceiling_doubles_up_to_the_cap(failures: int, ceiling: float) -> None:
    assert Backoff().delay(failures, 0.5) == ceiling / 2


@given(failures=st.integers(1, 10**9), chance=st.floats(0, 1, exclude_max=True))
def test_delay_is_never_negative_nor_above_the_cap(failures: int, chance: float) -> None:
    assert 0 <= Backoff().delay(failures, chance) <= 30
