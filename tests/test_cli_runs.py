"""`holdfast workflow|run` against a real plane, and without one: answers, exit codes, next steps."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from urllib.parse import urlsplit

import pytest
from plane_shell import Plane, one_line, plane_in_thread

PAUSE = "name: pause\nsteps:\n  - {id: wait, kind: delay, seconds: 0}\n  - {id: ask, kind: job, topic: nobody, depends_on: [wait]}\n"
QUICK = "name: quick\noutput: ${input}\nsteps:\n  - {id: same, kind: transform, value: '${input}'}\n"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with plane_in_thread(tmp_path_factory.mktemp("plane")) as shared:
        for document in (PAUSE, QUICK):
            done = shared.shell("workflow", "apply", "-", stdin=document)
            assert done.exit_code == 0, done.output
        yield shared


def test_validate_needs_no_plane_and_tells_the_line(plane: Plane, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(PAUSE)
    (tmp_path / "bad.yaml").write_text(PAUSE.replace("[wait]", "[nowhere]"))
    nobody = {"HOLDFAST_URL": "http://127.0.0.1:9"}

    assert plane.shell("workflow", "validate", str(tmp_path / "good.yaml"), **nobody).exit_code == 0
    refused = plane.shell("workflow", "validate", str(tmp_path / "bad.yaml"), **nobody)
    assert refused.exit_code == 2
    assert f"{tmp_path / 'bad.yaml'}:4:" in one_line(refused)
    assert "nowhere" in refused.stderr


@pytest.mark.parametrize(("form", "told"), [("text", "ask"), ("mermaid", "flowchart")])
def test_a_graph_of_what_is_stored_and_of_a_file(plane: Plane, tmp_path: Path, form: str, told: str) -> None:
    (tmp_path / "pause.yaml").write_text(PAUSE)

    of_file = plane.shell("workflow", "graph", str(tmp_path / "pause.yaml"), "--as", form)
    stored = plane.shell("workflow", "graph", "pause", "--as", form)

    assert of_file.stdout == stored.stdout
    assert told in stored.stdout
    assert plane.json("workflow", "graph", "pause", "--as", form) == {
        "name": "pause",
        "as": form,
        "drawing": stored.stdout.removesuffix("\n"),
    }


def test_list_and_show(plane: Plane) -> None:
    assert [row["name"] for row in plane.json("workflow", "list")] == ["pause", "quick"]
    assert plane.json("workflow", "show", "quick")["revision"] == 1
    assert [row["revision"] for row in plane.json("workflow", "show", "quick", "--revisions")] == [1]
    absent = plane.shell("workflow", "show", "nowhere")
    assert absent.exit_code == 3
    assert "workflow list" in one_line(absent)


def test_start_and_wait(plane: Plane) -> None:
    done = plane.shell("run", "start", "quick", "--input", '{"a": 1}', "--key", "k", "--wait", "-o", "json")
    assert done.exit_code == 0, done.output
    assert '"output": {' in done.stdout
    other = plane.shell("run", "start", "quick", "--input", "2", "--key", "k")
    assert other.exit_code == 4
    watched = plane.shell("run", "watch", plane.json("run", "list", "--workflow", "quick")[0]["id"])
    assert watched.exit_code == 0
    assert "run.succeeded" in watched.stdout


class Door(ThreadingTCPServer):
    """Lets requests through to a plane, one to a connection; but of those that wait the first few are not answered."""

    daemon_threads = True

    def __init__(self, plane: Plane, *, unanswered: int) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.plane = urlsplit(plane.url)
        self.unanswered = unanswered

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Passing(BaseRequestHandler):
    server: Door

    def handle(self) -> None:
        asked = self.request.recv(65536)
        if b"?wait=" in asked and self.server.unanswered:
            self.server.unanswered -= 1
            return
        with socket.create_connection((self.server.plane.hostname, self.server.plane.port)) as link:
            link.sendall(asked.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
            while answer := link.recv(65536):
                self.request.sendall(answer)


@pytest.mark.parametrize("noun", ["job", "run"])
def test_wait_outlives_a_plane_that_is_killed_before_it_answers(plane: Plane, noun: str) -> None:
    if noun == "job":
        name = plane.ended("t", "w", "succeeded")
    else:
        name = plane.json("run", "start", "quick", "--input", "1")["id"]
    with Door(plane, unanswered=5) as door:
        threading.Thread(target=door.serve_forever, daemon=True).start()
        done = plane.shell(noun, "get", name, "--wait", HOLDFAST_URL=door.url)
        door.shutdown()

    assert done.exit_code == 0, done.output
    assert door.unanswered == 0


def test_a_dry_run_shows_the_plan(plane: Plane) -> None:
    before = plane.json("run", "list")
    planned = plane.shell("run", "start", "pause", "--dry-run")
    assert planned.exit_code == 0
    assert "ask" in planned.stdout
    assert plane.json("run", "list") == before


def test_pause_resume_cancel_rerun(plane: Plane) -> None:
    run = plane.json("run", "start", "pause")["id"]
    assert plane.json("run", "pause", run, "--reason", "lunch")["state"] == "paused"
    again = plane.shell("run", "pause", run)
    assert again.exit_code == 4
    assert f"run get {run}" in one_line(again)
    assert plane.json("run", "resume", run)["state"] == "running"
    assert plane.shell("run", "cancel", run, "--no-compensation").exit_code == 0
    ended = plane.shell("run", "get", run, "--wait")
    assert ended.exit_code == 1
    assert plane.json("run", "rerun", run, "--from", "ask")["generation"] == 1
    assert {row["name"] for row in plane.json("run", "steps", run)} == {"wait", "ask"}
    assert "run.rerun" in {row["kind"] for row in plane.json("run", "timeline", run)}
    late = plane.shell("run", "get", run, "--wait-timeout", "0")
    assert late.exit_code == 6


def test_a_busy_session_is_told_with_what_to_do_about_it(plane: Plane) -> None:
    first = plane.json("run", "start", "pause", "--session", "s")["id"]
    refused = plane.shell("run", "start", "pause", "--session", "s", "--session-policy", "reject")

    assert refused.exit_code == 4
    assert first in refused.stderr
    assert "--session-policy enqueue" in one_line(refused)
    assert "workflow list" not in refused.stderr
