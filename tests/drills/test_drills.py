"""Drills on a throw-away plane: those that show the promises best pass, and a broken promise is seen by its drill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result
from harness import sooner_or_later

from holdfast.cli import cli
from holdfast.ops.drills.catalogue import DRILLS
from holdfast.ops.drills.findings import Figure, Finding, Report, Sign
from holdfast.ops.drills.processes import descendants
from holdfast.ops.drills.report import to_json

BROKEN = Path(__file__).parent / "broken"
TESTS = Path(__file__).parent.parent

CHEAP = ("stale-release", "pause-worker", "lease-storm")
BREAKING = [
    ("stale-release", "release blindly", "P3"),
    ("pause-worker", "no fence check at the resource", "P1"),
    ("publish-failure", "publish before the state is written", "P6"),
    ("pause-worker", "let late results overwrite the end", "P5"),
]
IS_ALL = os.environ.get("HOLDFAST_TEST_DRILLS") == "all"
"""As `make drill` sets it; without it only those that cost little."""

pytestmark = pytest.mark.timeout(240)


def drill(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["drill", *arguments])


def run(name: str, out: Path) -> Result:
    return drill("run", name, "--out", str(out), "-o", "json")


@pytest.mark.parametrize("name", [one.name for one in DRILLS] if IS_ALL else CHEAP)
def test_drill_passes_on_a_plane_of_its_own(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path)

    assert done.exit_code == 0, done.output
    [report] = json.loads(done.stdout)
    assert (report["drill"], report["verdict"]) == (name, "kept")
    assert all(finding["kept"] for finding in report["findings"])
    assert report["timeline"]["marks"]
    suite = ET.parse(tmp_path / "report.xml").getroot()[0]
    assert (suite.get("name"), suite.get("failures"), suite.get("errors")) == (name, "0", "0")
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "http://www.w3.org/2000/svg" in page
    assert page.count("://") == page.count("://www.w3.org/"), "the page loads nothing"


@pytest.mark.parametrize(("name", "mutant", "promise"), BREAKING if IS_ALL else BREAKING[:3])
def test_a_promise_broken_on_purpose_is_seen_by_its_drill(
    name: str, mutant: str, promise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{BROKEN}:{TESTS}:{TESTS.parent / 'src'}")
    monkeypatch.setenv("HOLDFAST_TEST_MUTANT", mutant)

    done = run(name, tmp_path)

    assert done.exit_code == 7, done.output
    [report] = json.loads(done.stdout)
    assert report["verdict"] == "broken"
    assert promise in {finding["promise"] for finding in report["findings"] if not finding["kept"]}
    assert f"{name} (" in done.stderr
    assert int(ET.parse(tmp_path / "report.xml").getroot()[0].get("failures", "0")) >= 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_drill_that_is_told_to_end_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    rehearsing, out = tmp_path / "rehearsing", tmp_path / "out"
    rehearsing.mkdir()
    command = [sys.executable, "-m", "holdfast", "drill", "run", "pause-worker", "--out", str(out)]
    with (tmp_path / "said").open("wb") as said:
        drilling = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(rehearsing)}, stdout=said, stderr=said)
    try:
        actors = sooner_or_later(lambda: (found := descendants(drilling.pid))[1:] and found, within_s=60)

        drilling.send_signal(number)
        ended = drilling.wait(60)
    finally:
        drilling.kill()
        drilling.wait()

    assert (ended, list(rehearsing.iterdir()), out.exists()) == (code, [], False), (tmp_path / "said").read_text()
    assert [pid for pid in actors if Path(f"/proc/{pid}").exists()] == []


def test_a_staging_plane_is_left_alone_without_its_name() -> None:
    refused = drill("run", "pause-worker", "--plane", "http://127.0.0.1:7070")

    assert refused.exit_code == 2
    assert "--consent 127.0.0.1:7070" in refused.stderr


def test_a_drill_that_would_disturb_others_does_not_run_on_a_staging_plane() -> None:
    refused = drill("run", "kill-everything", "--plane", "http://127.0.0.1:7070", "--consent", "127.0.0.1:7070")

    assert refused.exit_code == 2
    assert "would disturb others" in refused.stderr


@pytest.mark.parametrize(
    ("option", "url", "code"),
    [
        ("--store", "redis://127.0.0.1:1", 5),
        ("--store", "postgresql://127.0.0.1:1/x", 5),
        ("--bus", "nats://127.0.0.1:1", 5),
        ("--bus", "kafka://127.0.0.1:1", 2),
    ],
)
def test_a_server_that_cannot_be_asked_is_named_before_anything_begins(
    option: str, url: str, code: int, tmp_path: Path
) -> None:
    refused = drill("run", "--all", option, url, "--out", str(tmp_path / "report"))

    assert refused.exit_code == code, refused.output
    assert refused.stderr.startswith("Error: ")
    assert refused.stderr.endswith("Check --store and --bus\n")
    assert "begins" not in refused.stderr
    assert not (tmp_path / "report").exists()


def test_what_was_found_is_told_though_it_cannot_be_kept(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")

    done = drill("run", "stale-release", "--out", str(in_the_way / "report"))

    assert done.exit_code == 1
    assert "stale-release  P3        kept" in done.stdout
    assert "Name another folder with --out" in done.stderr


def test_the_report_is_shown_again_in_every_form(tmp_path: Path) -> None:
    report = Report(
        drill="pause-worker",
        title="A pause",
        hypothesis="It is taken over <soon>.",
        promises=("P1",),
        site="sqlite",
        began_at=0.0,
        findings=[Finding(promise="P1", claim="late writes accepted", measured=2, at_most=0)],
        figures={Figure.TAKEOVER_S: 1.25},
    )
    report.timeline.mark("anna", Sign.FAULT, "anna is stopped", at=0.5)
    (tmp_path / "report.json").write_bytes(to_json([report]))

    shown = {form: drill("report", str(tmp_path), "--format", form) for form in ("text", "json", "junit", "html")}

    assert {done.exit_code for done in shown.values()} == {0}
    assert "BROKEN P1  late writes accepted: 2 (wanted: at most 0)" in shown["text"].stdout
    assert json.loads(shown["json"].stdout)[0]["verdict"] == "broken"
    assert 'failures="1"' in shown["junit"].stdout
    assert "It is taken over &lt;soon&gt;." in shown["html"].stdout


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    assert drill("run", "no-such", "--out", str(tmp_path)).exit_code == 3
    assert drill("report", str(tmp_path)).exit_code == 3
    assert drill("run", "--out", str(tmp_path)).exit_code == 2


def test_every_drill_is_on_its_page() -> None:
    page = (TESTS.parent / "docs/reference/drills.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]

    assert [(name.strip(" `"), promises.split()) for name, promises in rows] == [
        (one.name, list(one.promises)) for one in DRILLS
    ]
