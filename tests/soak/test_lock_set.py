"""The lock-set test in small: nothing acknowledged is lost with guards, and the same pauses show on a bare lease."""

from __future__ import annotations

import pytest

from soak.lock_set import Plan, Tally, row, run

SMALL = Plan(updates=500, sets=6, ttl_s=0.5, pause_every_s=0.6, think_s=0.02)
RUNS_MAX = 6


async def test_nothing_acknowledged_is_lost_with_guards() -> None:
    tally = await run("guards", SMALL)

    assert tally.violations(SMALL) == []
    assert tally.pauses >= SMALL.clients - 1, "somebody was stopped"


async def test_a_bare_lease_loses_some_and_that_is_seen() -> None:
    """The checker can fail: the same load, the same pauses, no fence."""
    for _ in range(RUNS_MAX):
        tally = await run("bare", SMALL)
        if tally.lost:
            break  # else no pause came between a read and its write

    assert tally.lost > 0
    assert f"| bare | {len(tally.acknowledged):,} | {tally.lost:,} (" in row(tally)


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (["c0.0.0"], "1 of 2 acknowledged"),
        (["c0.0.0", "c1.0.0", "c1.0.0"], "twice"),
        (["c0.0.0", "c1.0.0", "c9.0.0"], "nobody added"),
    ],
)
def test_what_a_set_must_not_be(kept: list[str], found: str) -> None:
    tally = Tally("guards", acknowledged={"c0.0.0", "c1.0.0"}, kept=kept)

    [violation] = tally.violations(SMALL)

    assert found in violation
