"""`holdfast approval` against a real plane: the list of what waits, the decisions, and how it says no."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plane_shell import Plane, one_line, plane_in_thread

POLICY = """\
format: 1
rules:
  - name: payouts
    match: {topic: pay.out}
    action: require_approval
    reason: money moves
    approval: {approvers: [ann, bob]}
  - name: answers
    match: {topic: pay.strict}
    action: require_approval
    approval:
      choices: [respond, reject]
      response_schema: {type: object, required: [limit], properties: {limit: {type: integer}}}
  - name: apart
    match: {topic: pay.apart}
    action: require_approval
    approval: {separate: true}
default: {action: allow}
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("approvals")
    with plane_in_thread(folder) as own:
        publish(own, folder / "policy.yaml")
        yield own


def publish(plane: Plane, file: Path) -> None:
    file.write_text(POLICY)
    assert plane.shell("policy", "publish", str(file), "--reason", "a test").exit_code == 0
    while plane.json("policy", "show")["here"]["version"] != 1:
        time.sleep(0.01)


@pytest.fixture
def waiting(plane: Plane) -> dict[str, Any]:
    """An approval that nobody has decided."""
    job = plane.json("job", "submit", "pay.out", "--payload", '{"amount": 5}', "--actor", "rita")
    [approval] = plane.json("approval", "list", "--job", job["id"])
    return dict(approval)


def test_what_waits_is_listed_and_shown_with_the_next_step(plane: Plane, waiting: dict[str, Any]) -> None:
    listed = plane.shell("approval", "list", "--assignee", "ann")
    shown = plane.shell("approval", "show", waiting["id"])

    assert waiting["id"] in listed.stdout
    assert "money moves" in shown.stdout
    assert f"holdfast approval approve {waiting['id']} --version 1" in shown.stderr


def test_yes_is_repeated_and_the_no_after_it_is_told_who_was_first(plane: Plane, waiting: dict[str, Any]) -> None:
    yes = ("approval", "approve", waiting["id"], "--by", "ann", "--reason", "fine")
    assert plane.json(*yes)["state"] == "approved"
    assert plane.shell(*yes).exit_code == 0

    late = plane.shell("approval", "reject", waiting["id"], "--by", "bob", "--reason", "no")

    assert late.exit_code == 4
    assert "approve by ann" in one_line(late)


def test_no_denies_the_job(plane: Plane, waiting: dict[str, Any]) -> None:
    plane.json("approval", "reject", waiting["id"], "--by", "bob", "--reason", "not this month")
    job = plane.json("job", "get", waiting["job_id"])
    assert (job["state"], job["error"]["message"]) == ("DENIED", "not this month")


def test_arguments_are_edited(plane: Plane, waiting: dict[str, Any]) -> None:
    arguments = ("--arguments", '{"amount": 4}', "--reason", "a typo")
    edited = plane.json("approval", "edit", waiting["id"], "--by", "ann", *arguments)
    assert (edited["state"], edited["arguments"]) == ("approved", {"amount": 4})
    assert plane.json("job", "get", waiting["job_id"])["payload"] == {"amount": 4}
    assert (edited["original"]["arguments"], edited["verdict"]["via"]) == ({"amount": 5}, "cli")
    shown = plane.shell("approval", "show", waiting["id"]).stdout
    rows = {name: rest.strip() for name, _, rest in (line.partition(" ") for line in shown.splitlines())}
    assert (rows["arguments"], rows["original"]) == ('{"amount": 4}', '{"amount": 5}')
    assert (rows["digest"], rows["original_digest"]) == (edited["digest"], waiting["digest"])


def test_delegate_decides(plane: Plane, waiting: dict[str, Any]) -> None:
    plane.json("approval", "delegate", waiting["id"], "carl", "--by", "ann", "--reason", "on holiday")
    assert plane.json("approval", "approve", waiting["id"], "--by", "carl")["verdict"]["by"] == "carl"


def test_answer_that_nobody_asked_for_is_refused(plane: Plane, waiting: dict[str, Any]) -> None:
    refused = plane.shell("approval", "respond", waiting["id"], "--by", "ann", "--response", "1")
    assert refused.exit_code == 2
    assert "it takes approve, reject, edit" in one_line(refused)


def test_show_offers_what_this_approval_takes_and_nothing_else(plane: Plane) -> None:
    def offered(topic: str) -> tuple[str, str]:
        job = plane.json("job", "submit", topic, "--payload", '{"amount": 5}', "--actor", "rita")
        [approval] = plane.json("approval", "list", "--job", job["id"])
        return approval["id"], plane.shell("approval", "show", approval["id"]).stderr

    usual, said = offered("pay.out")
    assert said == f"decide with `holdfast approval approve {usual} --version 1`, or edit, reject\n"
    strict, said = offered("pay.strict")
    assert said == f"decide with `holdfast approval respond {strict} --version 1 --response JSON`, or reject\n"


ASKS = """\
name: asks
steps:
  - id: ok
    kind: approval
    message: Pay ${input.amount} to ann?
    response_schema: {type: object, required: [ceiling]}
"""


def test_show_tells_the_question_of_a_step_and_what_an_answer_must_be(plane: Plane, tmp_path: Path) -> None:
    (tmp_path / "asks.yaml").write_text(ASKS)
    assert plane.shell("workflow", "apply", str(tmp_path / "asks.yaml")).exit_code == 0
    run = plane.json("run", "start", "asks", "--input", '{"amount": 5}')
    [approval] = plane.json("approval", "list", "--job", run["id"])
    shown = plane.shell("approval", "show", approval["id"]).stdout

    assert "Pay 5 to ann?" in shown
    assert "ceiling" in shown


def test_answer_reaches_the_job(plane: Plane) -> None:
    job = plane.json("job", "submit", "pay.strict", "--payload", '{"amount": 5}', "--actor", "rita")
    [approval] = plane.json("approval", "list", "--job", job["id"])
    wrong = plane.shell("approval", "respond", approval["id"], "--by", "ann", "--response", '{"limit": "much"}')
    assert wrong.exit_code == 2
    assert "the answer does not fit what was asked for: $.limit" in one_line(wrong)
    answered = plane.json("approval", "respond", approval["id"], "--by", "ann", "--response", '{"limit": 300}')
    assert (answered["state"], answered["response"]) == ("approved", {"limit": 300})
    assert plane.json("job", "get", job["id"])["decision"]["approval"]["response"] == {"limit": 300}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 2),  # nobody says who decides
        (["--by", "zoe"], 4),
        (["--by", "ann", "--version", "7"], 4),
    ],
)
def test_what_is_no_decision_changes_nothing(
    plane: Plane, waiting: dict[str, Any], options: list[str], code: int
) -> None:
    assert plane.shell("approval", "approve", waiting["id"], *options).exit_code == code
    assert plane.json("approval", "show", waiting["id"]) == waiting


def test_whoever_may_not_decide_is_told_who_may(plane: Plane, waiting: dict[str, Any]) -> None:
    refused = one_line(plane.shell("approval", "approve", waiting["id"], "--by", "zoe"))
    assert "ann, bob" in refused
    assert "delegate" in refused


def test_whoever_asks_without_a_name_is_told_how_to_give_one(plane: Plane) -> None:
    refused = plane.shell("job", "submit", "pay.apart")
    assert refused.exit_code == 2
    assert "HOLDFAST_ACTOR" in one_line(refused)


def test_unknown_approval_is_absent(plane: Plane) -> None:
    refused = plane.shell("approval", "show", "nobody")
    assert refused.exit_code == 3
    assert "holdfast approval list" in one_line(refused)
