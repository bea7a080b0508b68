"""`holdfast schedule|webhook`, and sessions of `holdfast job`, against a real plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plane_shell import Plane, one_line, plane_in_thread


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with plane_in_thread(tmp_path_factory.mktemp("plane")) as shared:
        yield shared


def test_schedule_from_the_cradle_to_the_grave(plane: Plane) -> None:
    made = plane.json(
        "schedule", "add", "nightly", "--cron", "0 3 * * *", "--zone", "Europe/Berlin", "--job", "report",
        "--payload", '{"full": true}', "-l", "team=red", "--missed", "skip", "--overlap", "skip",
    )  # fmt: skip
    shown = plane.shell("schedule", "show", "nightly", "--next", "3")
    fired = plane.json("schedule", "trigger", "nightly")
    [listed] = plane.json("schedule", "list")

    assert (made["missed"], made["overlap"], made["job"]["payload"]) == ("skip", "skip", {"full": True})
    assert shown.stdout.count("Z\n") >= 3
    assert plane.json("job", "get", fired["last"])["labels"] == {"team": "red", "schedule": "nightly"}
    assert listed["last"] == fired["last"]
    assert plane.json("schedule", "pause", "nightly")["paused"]
    assert not plane.json("schedule", "resume", "nightly")["paused"]
    assert plane.shell("schedule", "remove", "nightly").exit_code == 0
    gone = plane.shell("schedule", "show", "nightly")
    assert (gone.exit_code != 0, "schedule list" in one_line(gone)) == (True, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--every", "60"],
        ["--every", "60", "--job", "t", "--run", "w"],
        ["--job", "t"],
        ["--job", "t", "--every", "60", "--cron", "* * * * *"],
        ["--job", "t", "--cron", "* *"],
    ],
)
def test_schedule_that_says_too_little_or_too_much_is_exit_code_2(plane: Plane, arguments: list[str]) -> None:
    assert plane.shell("schedule", "add", "odd", *arguments).exit_code == 2


def test_webhook_from_the_cradle_to_the_grave(plane: Plane) -> None:
    added = plane.shell(
        "webhook", "add", "ops", "https://receiver.invalid/", "--event", "run.*", "--event", "job.failed"
    )
    [listed] = plane.json("webhook", "list")
    posted = plane.json("webhook", "test", "ops")
    [line] = plane.json("webhook", "log", "ops")
    shown = plane.shell("webhook", "test", "ops").stdout

    assert "whsec_" in added.stdout
    assert "not shown again" in added.stderr
    assert (listed["events"], "whsec_" in str(listed)) == (["run.*", "job.failed"], False)
    assert line["id"] == posted["id"]
    assert [row.split()[0] for row in shown.splitlines()].count("tries") == 1
    assert plane.json("webhook", "rotate", "ops")["secret"] not in added.stdout
    assert plane.json("webhook", "enable", "ops")["enabled"]
    assert plane.shell("webhook", "retry", posted["id"]).exit_code != 0
    assert plane.shell("webhook", "remove", "ops").exit_code == 0
    assert plane.json("webhook", "list") == []


def test_webhook_to_a_private_address_is_refused(plane: Plane) -> None:
    refused = plane.shell("webhook", "add", "inside", "http://127.0.0.1:7070/")

    assert refused.exit_code == 2
    assert "allow_private" in one_line(refused)


def test_session_of_a_job_is_busy_until_it_is_interrupted(plane: Plane) -> None:
    first = plane.json("job", "submit", "chat", "--session", "s", "--actor", "ana")
    refused = plane.shell("job", "submit", "chat", "--session", "s", "--session-policy", "reject")
    plane.json("job", "submit", "chat", "--session", "s", "--session-policy", "interrupt")

    assert first["actor"] == "ana"
    assert (refused.exit_code, first["id"] in one_line(refused)) == (4, True)
    assert plane.json("job", "get", first["id"])["state"] == "CANCELLED"
