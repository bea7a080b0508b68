"""The policy matrix: whose word counts, and what another one would have made of the last day."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from holdfast.core.matrix import (
    STRICT,
    Cell,
    Rules,
    cell_from,
    cell_record,
    check_selector,
    governs,
    ruled,
    settings_for,
)
from holdfast.core.renewals import Ending, Episode, counts_from, hour_id, hour_record, would_be
from holdfast.errors import Invalid
from holdfast.locks.policy import LockClass

RUN = LockClass("workflow.run", ttl=30, risk="high")
MAIL = LockClass("mail", ttl=30, risk="low", on_renewal_failure="continue")


def cell(selector: str, until: float | None = None, **rules: object) -> Cell:
    return Cell(selector=selector, rules=Rules(**rules), reason="x", since=0.0, until=until)  # type: ignore[arg-type]


def test_a_namespace_beats_its_risk_and_both_beat_an_incident() -> None:
    cells = [
        cell("namespace=workflow.run", failures=2),
        cell("incident:risk=high", failures=1, action="fence", fallback="fail"),
        cell("risk=high", failures=5, action="continue"),
        cell("risk=low", failures=9),
    ]

    assert settings_for(RUN, cells, now=1.0) == {
        "renewal_failures": 2,
        "on_renewal_failure": "continue",
        "on_store_error": "fail",
    }


def test_a_cell_whose_time_is_over_has_no_word() -> None:
    cells = [cell("risk=high", until=10.0, failures=1)]

    assert ruled(RUN, cells, now=9.9).renewal_failures == 1
    assert ruled(RUN, cells, now=10.0) == RUN


def test_strict_lets_nothing_go_on_without_its_lock() -> None:
    cells = [replace(cell(f"incident:{selector}"), rules=rules) for selector, rules in STRICT.items()]

    assert ruled(MAIL, cells, now=0.0).on_renewal_failure == "fence"
    assert ruled(RUN, cells, now=0.0).renewal_failures == 1


@pytest.mark.parametrize("selector", ["", "all", "risk=none", "namespace=", "namespace=A", "risk=high\n", "topic=x"])
def test_what_is_no_selector_is_refused(selector: str) -> None:
    with pytest.raises(Invalid, match="risk=low"):
        check_selector(selector)


def test_windows_are_not_in_the_matrix() -> None:
    assert governs(RUN)
    assert not governs(LockClass("sweep", ttl=2, pattern="ttl_hold"))


def test_it_comes_back_as_it_was_stored() -> None:
    stored = cell_record(cell("risk=high", until=5.0, failures=1))

    assert (stored.id, stored.version, stored.due) == ("risk=high", 1, 5.0)
    assert cell_from(stored).rules == Rules(failures=1)


@pytest.mark.parametrize(
    ("ending", "failures", "draft", "would"),
    [
        (Ending.RECOVERED, 1, {}, "recovered"),
        (Ending.RECOVERED, 2, {"renewal_failures": 2}, "fenced"),
        (Ending.RECOVERED, 2, {"renewal_failures": 2, "on_renewal_failure": "continue"}, "suspect"),
        (Ending.FENCED, 3, {}, "fenced"),
        (Ending.FENCED, 3, {"on_renewal_failure": "continue"}, "suspect"),
        (Ending.FENCED, 3, {"renewal_failures": 5}, "tried again"),
        (Ending.SUSPECT, 3, {}, "fenced"),
        (Ending.FALLBACK, 0, {}, "failed"),
        (Ending.FALLBACK, 0, {"on_store_error": "local"}, "fallback"),
    ],
)
def test_what_would_have_been(ending: Ending, failures: int, draft: dict[str, object], would: str) -> None:
    assert would_be(Episode("workflow.run", ending, failures), RUN.with_policy(**draft)) == would


def test_hours_of_all_processes_are_added_up() -> None:
    episode = Episode("workflow.run", Ending.FENCED, 3)
    records = [hour_record(3600.0, holder, Counter({episode: n}), version=1) for n, holder in enumerate("abc", start=1)]

    assert counts_from(records) == {episode: 6}
    assert hour_id(3600.0, "a") < hour_id(36000.0, "a") < hour_id(360000.0, "a"), "ids sort by time"
