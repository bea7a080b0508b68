"""Workflows as people write them: the builder makes what could be written by hand, and the pages say all there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast import workflows
from holdfast.core import workflow
from holdfast.core.document import Refused
from holdfast.core.workflow_check import parse
from holdfast.workflows import (
    Retry,
    Workflow,
    approval,
    compensation,
    condition,
    delay,
    for_each,
    job,
    notify,
    parallel,
    run,
    switch,
    transform,
)

BY_HAND = """
name: trip
timeout_s: 3600
output: "${steps.book.output}"
steps:
  - {id: look, kind: job, topic: trip.look, payload: {to: "${input.to}"}, retry: {max_attempts: 3}, risk: low}
  - {id: dear, kind: condition, depends_on: [look], test: steps.look.output.price > 500}
  - {id: allowed, kind: approval, depends_on: [dear=true], message: "Book?", approvers: [ann], timeout_s: 60}
  - {id: kind_of, kind: switch, depends_on: [look], cases: {air: input.air}, default: rail}
  - {id: book, kind: job, topic: trip.book, depends_on: [dear=false, allowed], compensate: {topic: trip.cancel}}
  - {id: rest, kind: delay, depends_on: [book], seconds: 5, on_error: continue}
  - {id: each, kind: for_each, depends_on: [look], items: input.who, parallel: 3, step: {kind: notify, webhook: mail}}
  - {id: race, kind: parallel, wait: any, branches: {a: {kind: transform, value: 1}, b: {kind: workflow, workflow: w}}}
"""


def trip() -> Workflow:
    made = Workflow("trip", timeout_s=3600, output="${steps.book.output}")
    look = made.step("look", job("trip.look", {"to": "${input.to}"}, retry=Retry(max_attempts=3), risk="low"))
    made.step("dear", condition("steps.look.output.price > 500"), after=look)
    made.step("allowed", approval("Book?", approvers=["ann"]), after="dear=true", timeout_s=60)
    made.step("kind_of", switch({"air": "input.air"}, default="rail"), after=look)
    made.step("book", job("trip.book", undo=compensation("trip.cancel")), after=["dear=false", "allowed"])
    made.step("rest", delay(5), after="book", on_error="continue")
    made.step("each", for_each("input.who", notify("mail"), at_once=3), after=look)
    made.step("race", parallel("any", a=transform(1), b=run("w")))
    return made


def test_it_makes_the_definition_that_could_be_written_by_hand() -> None:
    assert trip().definition() == parse(BY_HAND)


def test_what_is_wrong_is_refused_as_by_hand() -> None:
    made = trip()
    made.step("lost", transform("${steps.nowhere.output}"))

    with pytest.raises(Refused, match="there is no such step"):
        made.definition()


def test_there_is_a_function_for_every_kind() -> None:
    made = {"Retry", "Workflow", "compensation"}

    assert set(workflows.__all__) - made == {
        "approval", "condition", "delay", "for_each", "job", "notify", "parallel", "run", "switch", "transform",
    }  # fmt: skip


# -- the pages ------------------------------------------------------------------------------------------

DOCS = Path(__file__).parent.parent / "docs"
REFERENCE = (DOCS / "reference" / "workflows.md").read_text()
SECTIONS = {
    "The document": workflow.Definition,
    "Fields of every step": workflow.AnyStep,
    "Retries": workflow.Retry,
    "Compensation": workflow.Compensation,
    "job": workflow.JobStep,
    "approval": workflow.ApprovalStep,
    "condition": workflow.ConditionStep,
    "switch": workflow.SwitchStep,
    "delay": workflow.DelayStep,
    "transform": workflow.TransformStep,
    "notify": workflow.NotifyStep,
    "workflow": workflow.WorkflowStep,
    "for_each": workflow.ForEachStep,
    "parallel": workflow.ParallelStep,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_reference_has_every_field_and_no_other(section: str) -> None:
    [text] = re.findall(rf"^##+ {section}\n(.*?)(?=^#|\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    shape = SECTIONS[section]
    inherited = set(workflow.AnyStep.__struct_fields__) if shape is not workflow.AnyStep else set()
    own = set(shape.__struct_fields__) - (inherited if issubclass(shape, workflow.AnyStep) else set())

    assert documented - {"kind"} == own


@pytest.mark.parametrize("page", ["how-to/workflows.md", "reference/workflows.md"])
def test_every_definition_on_a_page_can_be_applied(page: str) -> None:
    for document in re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL):
        assert parse(document).steps
