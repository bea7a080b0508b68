"""The same commands, in the same order, some of them at once: all stores answer the same and keep the same.

Half of the histories are always the same, half are new every day: the number in a failing test's name says which they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import servers
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.stores import postgres_database, redis_database
from holdfast.stores.batch import BatchLedger
from holdfast.stores.sqlite_jobs import SqliteLedger
from plane.agreeing import Disagreement, Place, Stage, emptied_schema, files, namespaces
from plane.store_machine import Histories

TODAY = int(time.time()) // 86_400
HISTORIES = 16
MUTANT_HISTORIES_MAX = 60
STEPS = 25


@pytest.fixture
def places(
    running: dict[str, servers.Server | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Place]]:
    for module in (postgres_database, redis_database):
        monkeypatch.setattr(module, "CLOCK_S", 1e9)  # all tell the same time, which is not the servers'
    with emptied_schema(running) as schema:
        yield {"SQLite": files(tmp_path), "Postgres": schema, "Redis": namespaces(running)}


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
def test_stores_answer_the_same_and_keep_the_same(places: dict[str, Place], number: int) -> None:
    with Stage(places) as stage:
        tell_histories(stage, number, at_most=HISTORIES)


@pytest.mark.parametrize(
    ("other", "ledger", "rule", "broken"),
    [
        pytest.param("Redis", SqliteLedger, "is_at_work", lambda *_: False, id="SQLite runs two jobs of a session"),
        pytest.param("Redis", BatchLedger, "settle", lambda *_: None, id="Redis delivers what was started"),
        pytest.param("Redis", BatchLedger, "find_key", lambda *_: None, id="Redis forgets its keys"),
        pytest.param("Postgres", BatchLedger, "leave_effects_unknown", lambda *_: [], id="Postgres forgets an effect"),
    ],
)
def test_store_with_one_thing_wrong_is_found(
    places: dict[str, Place],
    monkeypatch: pytest.MonkeyPatch,
    other: str,
    ledger: Any,
    rule: str,
    broken: Callable[..., Any],
) -> None:
    monkeypatch.setattr(ledger, rule, broken)
    with Stage({"SQLite": places["SQLite"], other: places[other]}, inline=True) as stage, pytest.raises(Disagreement):
        tell_histories(stage, 0, at_most=MUTANT_HISTORIES_MAX, shrink=False)
