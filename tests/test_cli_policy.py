"""`holdfast policy` against a real plane: what it checks, shows and changes, and how it says no."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from plane_shell import Plane, one_line, plane_in_thread

from holdfast.cli import cli

GOOD = """\
format: 1
rules:
  - name: no-shell
    match: {topic: shell.*}
    action: deny
    reason: no shell here
default: {action: allow}
"""


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with plane_in_thread(tmp_path) as own:
        yield own


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    return path


def test_check_asks_no_plane(file: Path) -> None:
    done = CliRunner().invoke(cli, ["policy", "check", str(file)])

    assert done.exit_code == 0
    assert done.stderr == f"{file}: 1 rules, default allow: nothing wrong\n"


def test_check_names_every_line_that_is_wrong(file: Path) -> None:
    file.write_text(GOOD.replace("shell.*", "sh%ell").replace("reason: no shell here", "when: payload.x ="))

    done = CliRunner().invoke(cli, ["policy", "check", str(file)])

    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert [line.removeprefix("Error: ").removeprefix(f"{file}:").partition(" ")[0] for line in lines] == [
        "3:",
        "4:",
        "6:",
    ]


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_check_of_what_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "strange.yaml"
    if content is not None:
        file.write_bytes(content)

    done = CliRunner().invoke(cli, ["policy", "check", str(file)])

    assert done.exit_code == 2
    assert "strange.yaml" in one_line(done)


def test_publish_show_history_rollback(plane: Plane, file: Path) -> None:
    empty = plane.shell("policy", "show")
    plane.json("policy", "publish", str(file), "--reason", "begin", "--by", "alice")
    file.write_text(GOOD.replace("shell.*", "sh.*"))
    plane.json("policy", "publish", str(file), "--reason", "shorter", "--expect", "1")
    back = plane.json("policy", "rollback", "1", "--reason", "too short")
    listed = plane.json("policy", "history")
    shown = plane.shell("policy", "show", "--version", "2")
    active = plane.shell("policy", "show")

    assert "everything is allowed" in empty.stderr
    assert (back["version"], back["newest"]) == (1, 2)
    assert [(v["version"], v["active"], v["by"], v["reason"]) for v in listed] == [
        (2, False, "", "shorter"),
        (1, True, "alice", "begin"),
    ]
    assert '"sh.*"' in shown.stdout
    assert active.stdout.splitlines()[0].split() == ["version", "1"]


def test_conflicts_are_exit_code_4_and_absences_3(plane: Plane, file: Path) -> None:
    plane.json("policy", "publish", str(file), "--reason", "begin")

    late = plane.shell("policy", "publish", str(file), "--reason", "late", "--expect", "0")
    active = plane.shell("policy", "rollback", "1", "--reason", "again")
    gone = plane.shell("policy", "rollback", "7", "--reason", "further")

    assert (late.exit_code, active.exit_code, gone.exit_code) == (4, 4, 3)
    assert "version 1 of the policy is active, not 0" in one_line(late)
    assert "holdfast policy history" in one_line(gone)


@pytest.mark.parametrize("arguments", [["publish", "FILE"], ["rollback", "1"], ["publish", "FILE", "--reason", " "]])
def test_what_changes_something_wants_a_reason(file: Path, arguments: list[str]) -> None:
    done = CliRunner().invoke(cli, ["policy", *(str(file) if word == "FILE" else word for word in arguments)])

    assert done.exit_code == 2
    assert "--reason" in done.stderr


def test_diff_is_exit_code_1_if_there_is_any(plane: Plane, file: Path) -> None:
    new = plane.shell("policy", "diff", str(file))
    plane.json("policy", "publish", str(file), "--reason", "begin")
    same = plane.shell("policy", "diff", str(file))
    file.write_text(GOOD.replace("deny", "allow"))
    other = plane.shell("policy", "diff", str(file), "--version", "1")

    assert (new.exit_code, same.exit_code, other.exit_code) == (1, 0, 1)
    assert same.stdout == ""
    assert {line for line in other.stdout.splitlines() if line[0] in "+-" and line[1] == " "} == {
        '-      "action": "deny",',
        '+      "action": "allow",',
    }


def test_simulate_shows_what_would_be_decided_otherwise(plane: Plane, file: Path) -> None:
    plane.json("job", "submit", "mail")
    shell = plane.json("job", "submit", "shell.run")

    done = plane.shell("policy", "simulate", str(file))
    told = plane.json("policy", "simulate", str(file), "--jobs", "1")

    assert done.stderr.splitlines() == [
        "2 jobs looked at, 1 would be decided otherwise",
        "allow: 2 → 1",
        "deny: 0 → 1",
    ]
    assert done.stdout.splitlines()[1].split()[:5] == [shell["id"], "shell.run", "allow", "deny", "no-shell"]
    assert (told["jobs"], told["changed"]) == (1, 1)


def test_rules_come_from_stdin_too(plane: Plane) -> None:
    done = plane.shell("policy", "publish", "-", "--reason", "begin", "-o", "json", stdin=GOOD)

    assert json.loads(done.stdout)["version"] == 1
