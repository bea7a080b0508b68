"""Other people's words on a terminal: none of them may steer it, whatever the command and the form of its output."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from plane_shell import API_KEY, Plane, plane_in_thread

from holdfast.cli.logs import log_to_stderr
from holdfast.cli.refusals import Failed

EVIL = "\x1b]0;mine\x07 \x9b2J \u202e \x7f \x08"
"""A new title, a clean screen, a line from right to left, and a letter taken back."""
STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
WORKFLOW = """\
name: flow
description: "\\e]0;mine\\a"
steps:
  - id: ask
    kind: approval
    message: "\\e]0;mine\\a"
  - id: test
    kind: condition
    depends_on: [ask]
    test: input == "\\x1b]0;mine\\x07"
"""
READING = """\
job list
job get {failed}
why job {failed}
dead-letter list
dead-letter show 1
approval list
approval show {approval}
why approval {approval}
effect list
job events {failed}
run list
run get {run}
run timeline {run}
why run {run}
workflow list
workflow show flow
schedule list
schedule show nightly
worker list
why worker w1
incident list
incident export
freeze list
policy show
policy history
policy matrix get
policy matrix history
audit list
audit list --plane
audit export
lock classes
top --once
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with plane_in_thread(tmp_path_factory.mktemp("terminal")) as own:
        yield own


@pytest.fixture(scope="module")
def names(plane: Plane) -> dict[str, str]:
    """Of things that have a word in every place where one may be."""
    with httpx2.Client(base_url=plane.url, headers={"authorization": f"Bearer {API_KEY}"}, trust_env=False) as http:

        def say(path: str, body: Any) -> Any:
            answer = http.post(path, json=body, headers={"holdfast-actor": "eve"})
            assert answer.status_code < 300, answer.text
            return answer.json()

        rule = {
            "name": "pay",
            "match": {"topic": "pay"},
            "action": "require_approval",
            "reason": EVIL,
            "approval": {"effect_preview": EVIL},
        }
        document = {"format": 1, "default": {"action": "allow"}, "rules": [rule]}
        say("/v1/policy:publish", {"document": document, "reason": EVIL})
        said = {"payload": {EVIL: EVIL}, "labels": {"word": EVIL}}
        say("/v1/work/hello", {"worker": "w1", "name": "w1", "topics": ["once.*"], "slots": 10})
        failed = say("/v1/jobs", {"topic": "once.x", **said})
        [work] = say("/v1/work/claim", {"worker": "w1", "wait_s": 5, "start": True})["deliveries"]
        ref = {"job_id": work["job_id"], "fence": work["fence"]}
        say("/v1/work/progress", {"worker": "w1", **ref, "progress": EVIL})
        ended = {**ref, "outcome": "failed", "error": {"code": EVIL, "message": EVIL, EVIL: EVIL}, "retryable": False}
        say("/v1/work/complete", {"worker": "w1", "outcomes": [ended]})
        stopped = say("/v1/jobs", {"topic": "once.x", "delay_s": 1000, **said})
        say(f"/v1/jobs/{stopped['id']}:cancel", {"reason": EVIL})
        say("/v1/workflows", {"document": WORKFLOW})
        run = say("/v1/runs", {"workflow": "flow", "input": EVIL, "labels": {"word": EVIL}})
        say("/v1/schedules", {"name": "nightly", "every_s": 3600, "job": {"topic": "t", **said}})
        say("/v1/incidents", {"title": f"slow {EVIL}"})
        say("/v1/incidents/1:note", {"text": EVIL})
        say("/v1/freezes", {"scope": "topic=never", "reason": f"r {EVIL}"})
        say("/v1/matrix:set", {"cell": "namespace=approval", "rules": {"failures": 2}, "reason": f"r {EVIL}"})
        while http.get("/v1/policy").json()["here"]["version"] != 1:
            pass
        say("/v1/jobs", {"topic": "pay", **said})
        while not (approvals := http.get("/v1/approvals").json()["items"]):
            pass
        return {"failed": failed["id"], "run": run["id"], "approval": approvals[0]["id"]}


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_words_do_not_steer_the_terminal(plane: Plane, names: dict[str, str], output: str) -> None:
    form = [] if output == "table" else ["-o", output]
    done = {line: plane.shell(*shlex.split(line.format(**names)), *form) for line in READING.splitlines()}

    assert {line: one.output for line, one in done.items() if one.exit_code} == {}
    shown = {line: STEERING.findall(one.stdout + one.stderr) for line, one in done.items()}
    assert {line: found for line, found in shown.items() if found} == {}


def test_refusal_does_not_steer_the_terminal() -> None:
    assert STEERING.findall(Failed(f"no: {EVIL}").format_message()) == []


@contextmanager
def logging_for_people() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    try:
        log_to_stderr(verbose=False, log_format="text")
        yield logging.getLogger("holdfast")
    finally:
        root.handlers = kept


def test_log_for_people_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_for_people() as log:
        try:
            raise ValueError(EVIL)
        except ValueError:
            log.exception("attempt.failed %s", EVIL)
    shown = capsys.readouterr().err

    assert "ValueError" in shown
    assert STEERING.findall(shown) == []


def test_what_somebody_says_is_no_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_for_people() as log:
        log.warning("lock.policy_changed reason=%s", "mine\n2026-11-19 ERROR holdfast job.lost")
    shown = capsys.readouterr().err

    assert len(shown.splitlines()) == 1
    assert "job.lost" in shown
