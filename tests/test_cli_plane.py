"""`holdfast job|dead-letter|effect|worker` against a real plane: answers, exit codes, next steps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from plane_shell import Plane, one_line, plane_in_thread
from servers import free_port


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with plane_in_thread(tmp_path_factory.mktemp("plane")) as shared:
        yield shared


def test_submit_then_get_then_list(plane: Plane) -> None:
    job = plane.json("job", "submit", "mail", "--payload", '{"to": "ann"}', "-l", "team=red", "--priority", "5")

    table = plane.shell("job", "get", job["id"])
    rows = dict(line.split(maxsplit=1) for line in table.stdout.splitlines())
    [listed] = plane.json("job", "list", "--topic", "mail", "--state", "scheduled", "-l", "team=red")

    assert (job["payload"], job["labels"], job["priority"]) == ({"to": "ann"}, {"team": "red"}, 5)
    assert (rows["state"], rows["attempts"], rows["payload"]) == ("SCHEDULED", "0/3", '{"to": "ann"}')
    assert listed["id"] == job["id"]
    assert plane.json("job", "list", "--topic", "mail", "-l", "team=blue") == []


@pytest.mark.parametrize("source", ["@file", "-"])
def test_payload_comes_from_a_file_or_from_stdin(plane: Plane, tmp_path: Path, source: str) -> None:
    (tmp_path / "order.json").write_text("[1, 2]")
    given = f"@{tmp_path}/order.json" if source == "@file" else "-"

    done = plane.shell("job", "submit", "mail", "--payload", given, "-o", "jsonl", stdin="[1, 2]")

    assert json.loads(done.stdout)["payload"] == [1, 2]


def test_the_same_key_gives_the_same_job_and_another_payload_is_exit_code_4(plane: Plane) -> None:
    first = plane.json("job", "submit", "mail", "--payload", "1", "--key", "order-7")
    again = plane.json("job", "submit", "mail", "--payload", "1", "--key", "order-7")
    other = plane.shell("job", "submit", "mail", "--payload", "2", "--key", "order-7")

    assert first["id"] == again["id"]
    assert other.exit_code == 4
    assert "--key" in one_line(other)


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit"],
        ["submit", "mail", "--payload", "{not json"],
        ["submit", "mail", "--payload", "NaN"],
        ["submit", "mail", "--payload", "@/no/such/file"],
        ["submit", "mail", "-l", "team"],
        ["submit", "mail", "--priority", "101"],
        ["submit", "not a topic"],
        ["list", "--state", "ASLEEP"],
        ["list", "--cursor", "?"],
        ["list", "--tenant", "not/a/tenant"],
        ["list", "--url", "locks.db"],
        ["list", "--url", "http://127.0.0.1:port"],
        ["list", "--profile", "nobody"],
    ],
)
def test_what_cannot_be_asked_is_exit_code_2(plane: Plane, arguments: list[str]) -> None:
    refused = plane.shell("job", *arguments)

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Error: " in refused.stderr


@pytest.mark.parametrize(
    ("written", "hint"),
    [(b"like this", "needs its quotes"), (b"\xff\xfe", "text in UTF-8"), (b"[" * 100_000, "nested too deeply")],
)
def test_a_payload_that_is_no_json_is_told_why(plane: Plane, tmp_path: Path, written: bytes, hint: str) -> None:
    (tmp_path / "payload").write_bytes(written)

    refused = plane.shell("job", "submit", "mail", "--payload", f"@{tmp_path}/payload")

    assert hint in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["job", "get", "nobody"],
        ["job", "get", "nobody", "--wait"],
        ["job", "watch", "nobody"],
        ["job", "events", "nobody"],
        ["job", "cancel", "nobody"],
        ["job", "retry", "nobody"],
        ["dead-letter", "show", "999999"],
        ["dead-letter", "replay", "999999"],
        ["effect", "show", "nobody", "charge"],
        ["effect", "resolve", "nobody", "charge", "--state", "absent", "--reason", "asked the bank"],
        ["worker", "drain", "nobody"],
        ["run", "cancel", "nobody"],
        ["run", "pause", "nobody"],
        ["run", "resume", "nobody"],
        ["run", "rerun", "nobody", "--from", "a"],
        ["audit", "show", "999999"],
        ["incident", "export", "--number", "999"],
        ["policy", "matrix", "reset", "--risk", "high", "--reason", "over"],
    ],
)
def test_what_is_not_there_is_exit_code_3_with_the_next_command(plane: Plane, arguments: list[str]) -> None:
    refused = plane.shell(*arguments)

    assert refused.exit_code == 3
    # One command, said once, and not one that looks at what is not there.
    [then] = re.findall("`holdfast [^`]+`", one_line(refused))
    assert "get nobody" not in then


def test_a_scope_that_is_none_is_explained_without_a_pattern(plane: Plane) -> None:
    for command in (["freeze"], ["unfreeze"]):
        refused = plane.shell(*command, "--scope", "topic:mail", "--reason", "too many", "--by", "ann")

        assert refused.exit_code == 2
        assert "all, tenant=NAME or topic=NAME" in one_line(refused)
        assert "regex" not in refused.output


def test_waiting_tells_success_failure_and_patience_apart(plane: Plane) -> None:
    good = plane.ended("good", "waiter-1", "succeeded", result={"sum": 3})
    bad = plane.ended("once.waiter", "waiter2", "failed", error={"code": "Boom", "message": "it broke"})
    never = plane.json("job", "submit", "nobody-works-on-this")["id"]

    succeeded = plane.shell("job", "get", good, "--wait")
    failed = plane.shell("job", "get", bad, "--wait", "-o", "json")
    waiting = plane.shell("job", "get", never, "--wait-timeout", "0.1")
    submitted = plane.shell("job", "submit", "nobody-works-on-this", "--wait-timeout", "0.1")

    assert (succeeded.exit_code, succeeded.stderr) == (0, "")
    assert '{"sum": 3}' in succeeded.stdout
    assert (failed.exit_code, json.loads(failed.stdout)["error"]["code"]) == (1, "Boom")
    assert f"holdfast job retry {bad}" in failed.stderr
    assert waiting.exit_code == 6
    assert never in one_line(waiting)
    assert submitted.exit_code == 6


def test_who_waits_for_nobody_is_told(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["holdfast.cli.job"], "_PATIENCE_S", 0.05)

    waiting = plane.shell("job", "submit", "nobodys-topic", "--session", "s", "--wait-timeout", "0.2")
    job = waiting.stderr.splitlines()[0].removeprefix("submitted ")
    looked = plane.shell("job", "get", job)

    hint = f"holdfast why job {job}"
    assert f"it waits: no worker of pool default takes topic nobodys-topic (`{hint}`)" in waiting.stderr
    assert hint in waiting.stderr.splitlines()[-1]
    assert hint in looked.stderr
    assert ["session", "s"] in [line.split() for line in looked.stdout.splitlines()]


def test_watch_and_events_tell_the_whole_life(plane: Plane) -> None:
    job = plane.ended("watched", "watched-1", "succeeded", result=1)

    watched = plane.shell("job", "watch", job, "-o", "jsonl")
    kinds = [json.loads(line)["kind"] for line in watched.stdout.splitlines()]
    narrowed = plane.shell("job", "watch", job, "--kind", "job.s*")
    listed = plane.json("job", "events", job)
    first = plane.shell("job", "events", job, "--limit", "1")
    cursor = first.stderr.removeprefix("more: --cursor ").strip()

    assert watched.exit_code == 0
    assert kinds == ["job.submitted", "job.dispatched", "job.started", "job.succeeded"]
    assert [line.split()[2] for line in narrowed.stdout.splitlines()] == [
        "job.submitted",
        "job.started",
        "job.succeeded",
    ]
    assert [event["kind"] for event in listed] == kinds
    assert "  1  worker=watched-1" in narrowed.stdout
    assert [event["kind"] for event in plane.json("job", "events", job, "--cursor", cursor)] == kinds[1:]


def test_watching_a_job_that_fails_is_exit_code_1(plane: Plane) -> None:
    job = plane.ended("once.watched", "watched2", "failed")

    watched = plane.shell("job", "watch", job)

    assert watched.exit_code == 1
    assert "FAILED" in watched.stderr


def test_cancel_ends_a_waiting_job_and_asks_the_worker_of_a_running_one(plane: Plane) -> None:
    waiting = plane.json("job", "submit", "nobody-works-on-this")
    stale = plane.shell("job", "cancel", waiting["id"], "--version", "99")
    cancelled = plane.shell("job", "cancel", waiting["id"], "--reason", "wrong number", "-o", "json")
    running = plane.started("long", "canceller")["job_id"]
    asked = plane.shell("job", "cancel", running)

    assert stale.exit_code == 4
    assert (cancelled.exit_code, json.loads(cancelled.stdout)["error"]["message"]) == (0, "wrong number")
    assert cancelled.stderr == ""
    assert asked.exit_code == 0
    assert f"holdfast job watch {running}" in asked.stderr


def test_cancel_and_retry_of_a_finished_job_are_exit_code_4(plane: Plane) -> None:
    job = plane.ended("done", "finisher", "succeeded")

    for verb in ("cancel", "retry"):
        refused = plane.shell("job", verb, job)

        assert refused.exit_code == 4
        assert "SUCCEEDED" in one_line(refused)


def test_retry_gives_one_new_job(plane: Plane) -> None:
    job = plane.ended("once.retrier", "retrier", "failed")

    first, second = plane.json("job", "retry", job), plane.json("job", "retry", job)

    assert first["id"] == second["id"] != job
    assert first["replay_of"] == job


def test_dead_letters_show_their_evidence_and_are_replayed_once(plane: Plane) -> None:
    job = plane.ended("once.mourner", "mourner", "failed", error={"code": "Boom", "message": "it broke"})

    letter = next(one for one in plane.json("dead-letter", "list") if one["job_id"] == job)
    number = str(letter["number"])
    shown = plane.shell("dead-letter", "show", number)
    whole = plane.json("dead-letter", "show", number)
    first, second = plane.json("dead-letter", "replay", number), plane.json("dead-letter", "replay", number)

    assert letter["reason"] == "no-attempts-left"
    assert "Boom" in shown.stdout
    assert "job.failed" in shown.stdout
    assert f"holdfast dead-letter replay {number}" in shown.stderr
    assert [event["kind"] for event in whole["events"]][-1] == "job.failed"
    assert first["id"] == second["id"]


def test_an_effect_is_shown_whatever_page_it_is_on(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("holdfast.cli.effect"), "_PAGE", 1)
    taken = plane.started("ledger", "clerk")
    job, fence = taken["job_id"], taken["fence"]
    for key in ("a", "b", "c"):
        plane.work("effect/prepare", worker="clerk", job_id=job, fence=fence, key=key)

    assert [plane.json("effect", "show", job, key)["key"] for key in ("a", "b", "c")] == ["a", "b", "c"]
    assert plane.shell("effect", "show", job, "d").exit_code == 3


def test_an_unknown_effect_is_on_the_worklist_until_a_person_settles_it(plane: Plane) -> None:
    taken = plane.started("refund", "teller")
    job, fence = taken["job_id"], taken["fence"]
    plane.work("effect/prepare", worker="teller", job_id=job, fence=fence, key="charge")
    told = {"job_id": job, "fence": fence, "outcome": "failed", "error": {"code": "killed", "message": ""}}
    plane.work("complete", worker="teller", outcomes=[told])

    [listed] = [one for one in plane.json("effect", "list") if one["job_id"] == job]
    shown = plane.shell("effect", "show", job, "charge")
    settled = plane.json(
        "effect", "resolve", job, "charge", "--state", "committed", "--result", "42", "--reason", "asked the bank"
    )
    again = plane.shell("effect", "resolve", job, "charge", "--state", "absent", "--reason", "no")

    assert listed["state"] == "unknown"
    assert "holdfast effect resolve" in shown.stderr
    assert (settled["state"], settled["result"], settled["note"]) == ("committed", 42, "asked the bank")
    assert [one for one in plane.json("effect", "list") if one["job_id"] == job] == []
    assert [one["key"] for one in plane.json("effect", "list", "--job", job)] == ["charge"]
    assert again.exit_code == 4


@pytest.mark.parametrize("options", [["--state", "absent"], ["--state", "absent", "--reason", " "], ["--reason", "x"],
                                     ["--state", "absent", "--reason", "x", "--result", "1"]])  # fmt: skip
def test_an_effect_is_not_settled_without_a_reason_and_a_state(plane: Plane, options: list[str]) -> None:
    assert plane.shell("effect", "resolve", "job", "charge", *options).exit_code == 2


def test_workers_are_listed_and_drained(plane: Plane) -> None:
    plane.work("hello", worker="drained-1", name="drained", topics=["a", "b.*"], slots=3, pool="mail")

    table = plane.shell("worker", "list").stdout.splitlines()
    drained = plane.shell("worker", "drain", "drained-1")
    [listed] = [one for one in plane.json("worker", "list") if one["id"] == "drained-1"]

    [line] = [line.split() for line in table if line.startswith("drained-1")]
    assert table[0].split() == ["ID", "POOL", "CONDITION", "LOAD", "LAST_SEEN", "TOPICS"]
    assert (line[1:4], line[-2:]) == (["mail", "ready", "0/3"], ["a", "b.*"])
    assert drained.exit_code == 0
    assert listed["draining"]


def test_a_plane_that_is_away_is_exit_code_5(plane: Plane) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    away = plane.shell("job", "list", "--url", url)
    unasked = plane.shell("job", "list", HOLDFAST_API_KEY="wrong")

    assert away.exit_code == 5
    assert url in one_line(away)
    assert unasked.exit_code == 5
    assert "HOLDFAST_API_KEY" in one_line(unasked)
    assert "wrong" not in unasked.output


def test_a_worker_whose_port_is_taken_is_exit_code_1(plane: Plane, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("from holdfast.worker import Worker\n\nidle = Worker()\nidle.task('t')(print)\n")
    taken = plane.url.removeprefix("http://")

    command = [sys.executable, "-m", "holdfast", "worker", "idle.py:idle", "--health", taken]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "name a free HOST:PORT" in done.stderr


def test_a_password_in_a_url_is_refused_and_not_shown(plane: Plane) -> None:
    for command in (["job", "list"], ["config", "list"], ["worker", "run", "tasks:worker"]):
        refused = plane.shell(*command, "--url", "http://ada:s3cr3t@127.0.0.1:1")

        assert refused.exit_code == 2
        assert "HOLDFAST_API_KEY" in refused.stderr
        assert "s3cr3t" not in refused.output


def test_tenants_do_not_see_each_other(plane: Plane) -> None:
    job = plane.json("job", "submit", "mail", "--tenant", "acme")

    assert plane.shell("job", "get", job["id"], HOLDFAST_TENANT="acme").exit_code == 0
    assert plane.shell("job", "get", job["id"]).exit_code == 3


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("job list", "there is no job yet"),
        ("job list --state FAILED", "there is no job that fits"),
        ("run list", "there is no run yet"),
        ("run list --workflow payout", "there is no run that fits"),
        ("effect list", "no effect waits for a person"),
        ("effect list --state all", "there is no effect yet"),
        ("effect list --state committed", "there is no effect that fits"),
        ("approval list", "no approval waits for a decision"),
        ("approval list --state all", "there is no approval yet"),
        ("approval list --assignee ann", "there is no approval that fits"),
        ("dead-letter list", "there is no dead letter yet"),
        ("schedule list", "there is no schedule yet"),
        ("webhook list", "there is no webhook yet"),
        ("workflow list", "there is no workflow yet"),
        ("audit list", "there is no change yet"),
    ],
)
def test_empty_list_says_whether_there_is_none_or_none_of_those(plane: Plane, command: str, said: str) -> None:
    listed = plane.shell(*command.split(), "--tenant", "nobody")

    assert (listed.exit_code, listed.stderr) == (0, f"{said}\n")
    assert plane.shell(*command.split(), "--tenant", "nobody", "-o", "json").stdout == "[]\n"
