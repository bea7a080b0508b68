"""The same commands, in the same order, some of them at once: all stores answer the same and keep the same.

Half of the histories are always the same, half are new every day: the number in a failing test's name says which they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from backends import Compared, Running, plane_stores
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from simulation.stand_ins import standing_in

from holdfast.stores.batch import BatchLedger
from holdfast.stores.sqlite.jobs import SqliteLedger
from plane.agreeing import Disagreement, Stage
from plane.store_machine import Histories

FIRST = "sqlite"
"""The one that the others are compared with."""
TODAY = int(time.time()) // 86_400
HISTORIES = 16
MUTANT_HISTORIES_MAX = 60
STEPS = 25


@pytest.fixture
def places(running: Running, tmp_path: Path) -> Iterator[dict[str, Compared]]:
    stores = plane_stores()
    with ExitStack() as stack:
        for store in stores.values():
            for telling in store.stories.values():  # all tell the same time, which is not the servers'
                stack.enter_context(standing_in(telling.stand_ins))
        yield {
            name: stack.enter_context(stores[name].compared(running, tmp_path))
            for name in sorted(stores, key=lambda name: name != FIRST)
        }


def tell_histories(stage: Stage, number: int, *, at_most: int, shrink: bool = True) -> None:
    """Raises `Disagreement`, with the steps that lead to it."""
    run_state_machine_as_test(
        seed(number)(lambda: Histories(stage)),  # type: ignore[arg-type]
        settings=settings(
            max_examples=at_most,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(600)  # of which one that fails takes most, to find the shortest history that does
@pytest.mark.parametrize("number", [0, TODAY])
def test_stores_answer_the_same_and_keep_the_same(places: dict[str, Compared], number: int) -> None:
    with Stage(places) as stage:
        tell_histories(stage, number, at_most=HISTORIES)


@pytest.mark.parametrize(
    ("other", "ledger", "rule", "broken"),
    [
        pytest.param("redis", SqliteLedger, "is_at_work", lambda *_: False, id="SQLite runs two jobs of a session"),
        pytest.param("redis", BatchLedger, "settle", lambda *_: None, id="Redis delivers what was started"),
        pytest.param("redis", BatchLedger, "find_key", lambda *_: None, id="Redis forgets its keys"),
        pytest.param("postgres", BatchLedger, "leave_effects_unknown", lambda *_: [], id="Postgres forgets an effect"),
    ],
)
def test_store_with_one_thing_wrong_is_found(
    places: dict[str, Compared],
    monkeypatch: pytest.MonkeyPatch,
    other: str,
    ledger: Any,
    rule: str,
    broken: Callable[..., Any],
) -> None:
    monkeypatch.setattr(ledger, rule, broken)
    with Stage({FIRST: places[FIRST], other: places[other]}, inline=True) as stage, pytest.raises(Disagreement):
        tell_histories(stage, 0, at_most=MUTANT_HISTORIES_MAX, shrink=False)
