"""A dry run says what would run, what would not, and what nobody can know yet."""

from __future__ import annotations

from typing import Any

import pytest

from core.test_run import DIAMOND, workflow
from holdfast.core.run_plan import PlannedStep, Prospect, plan
from holdfast.core.workflow_check import parse
from holdfast.core.workflow_graph import Graph


def planned(text: str, run_input: Any) -> dict[str, PlannedStep]:
    return {step.id: step for step in plan(Graph.of(parse(text)), run_input)}


@pytest.mark.parametrize(("amount", "taken", "skipped"), [(500, "large", "small"), (5, "small", "large")])
def test_what_the_input_decides_is_decided(amount: int, taken: str, skipped: str) -> None:
    steps = planned(DIAMOND, {"amount": amount})

    assert steps["check"].case == str(amount > 100).lower()
    assert steps[taken].prospect is Prospect.RUNS
    assert steps[skipped].prospect is Prospect.SKIPPED
    assert steps["join"].prospect is Prospect.RUNS


def test_what_a_job_decides_is_left_open_and_so_is_what_hangs_on_it() -> None:
    steps = planned(
        workflow("""
  - {id: a, kind: job, topic: t}
  - {id: b, kind: condition, depends_on: [a], test: steps.a.output.ok}
  - {id: c, kind: job, topic: t, depends_on: [b=true]}
  - {id: d, kind: job, topic: t, depends_on: [a], when: steps.a.output.ok}
  - {id: e, kind: job, topic: t, depends_on: [c]}
"""),
        {},
    )

    assert {name: step.prospect.value for name, step in steps.items()} == {
        "a": "runs",
        "b": "runs",
        "c": "depends",
        "d": "depends",
        "e": "depends",
    }


def test_transforms_are_followed_items_counted_and_failures_foreseen() -> None:
    steps = planned(
        workflow("""
  - {id: list, kind: transform, value: {hosts: "${input.hosts}"}}
  - {id: fan, kind: for_each, depends_on: [list], items: steps.list.output.hosts, step: {kind: job, topic: t}}
  - {id: bad, kind: condition, test: input.nowhere}
  - {id: never, kind: job, topic: t, when: "size(input.hosts) > 5"}
"""),
        {"hosts": ["a", "b"]},
    )

    assert steps["fan"].items == 2
    assert steps["bad"].prospect is Prospect.FAILS
    assert steps["never"] == PlannedStep("never", "job", Prospect.SKIPPED, "when: size(input.hosts) > 5")
