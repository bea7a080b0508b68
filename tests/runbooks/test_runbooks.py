"""Every command of every runbook is typed at a plane in that very trouble."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from plane_shell import Plane

from holdfast.cli import cli
from holdfast.cli.runbook import READ_ONLY
from holdfast.ops.drills.catalogue import find_drill
from holdfast.ops.runbooks import SOURCE, Runbook, Section, filled, find_runbook, list_runbooks, places
from runbooks import troubles
from runbooks.troubles import Planes, planes_in_trouble, store_of

ROOT = Path(__file__).parent.parent.parent
TROUBLES = {
    "lock-renewals-failing": troubles.held_job_lock,
    "locks-abandoned": troubles.held_job_lock,
    "locks-not-owned": troubles.held_job_lock,
    "lock-wait-high": troubles.held_job_lock,
    "lock-wait-growing": troubles.held_job_lock,
    "lock-fallback": troubles.held_job_lock,
    "dispatch-retrying": troubles.refused_publish,
    "dispatch-rollback-failed": troubles.swallowed_delivery,
    "dispatch-wait-high": troubles.waiting_job,
    "jobs-stale": troubles.unreconciled_job,
    "jobs-stale-growing": troubles.unreconciled_job,
    "orphans-growing": troubles.waiting_job,
    "blind-window": troubles.unreconciled_job,
    "jobs-failing": troubles.dead_letter,
    "workers-stuck": troubles.stuck_worker,
    "workers-lost": troubles.lost_worker,
    "attempts-refused": troubles.late_worker,
    "loop-stalled": troubles.held_job_lock,
    "plane-down": troubles.nobody_answers,
    "policy-fail-open": troubles.new_policy,
    "policy-diverged": troubles.new_policy,
    "approvals-expiring": troubles.waiting_approval,
    "effects-unknown": troubles.unknown_effect,
    "lock-scheduler-job": troubles.held_job_lock,
    "lock-workflow-run": troubles.held_run_lock,
    "lock-approval": troubles.held_approval_lock,
    "lock-admission": troubles.held_admission_lock,
    "lock-reconciler": troubles.held_window("reconciler:default"),
    "lock-replayer": troubles.held_window("replayer:pending"),
    "lock-workflow-reconciler": troubles.held_window("workflow-engine:reconciler:default"),
    "lock-snapshot": troubles.held_window("scheduler:snapshot:writer"),
}
SEEN = {
    "dispatch-retrying": "publish-failed",
    "dispatch-rollback-failed": "DISPATCHED",
    "dispatch-wait-high": "no-worker",
    "jobs-stale": "lease-expired|recovery-overdue",
    "blind-window": "lease-expired|recovery-overdue",
    "jobs-failing": "broken",
    "workers-stuck": "delivery-under-way|worker-takes-none",
    "workers-lost": "job.lost",
    "attempts-refused": "word-refused",
    "approvals-expiring": "ann",
    "effects-unknown": "unknown",
    "lock-scheduler-job": "granted",
    "lock-reconciler": "window-held",
    "plane-down": "Check that the plane is up",
}
"""A pattern that the evidence of the page must contain, in that trouble."""


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planes]:
    with planes_in_trouble(tmp_path_factory.mktemp("planes")) as three:
        yield three


def typed(plane: Plane, command: str, *, may_fail: bool) -> str:
    """What the command says. It may fail only where the trouble is that nobody answers."""
    words = shlex.split(command.replace("$HOLDFAST_URL", plane.url))
    if words[0] == "curl":
        metric = words[-1]
        assert metric.removesuffix("_count") in (ROOT / "docs/reference/metrics.md").read_text(), metric
        return "" if may_fail else _metrics(plane, metric)
    assert words[0] == "holdfast", command
    if words[1:3] == ["drill", "run"]:  # `make drill` runs them
        assert find_drill(words[3]) is not None, command
        return ""
    done = plane.shell(*words[1:], HOLDFAST_STORE=store_of(plane))
    assert done.exit_code == 0 or (may_fail and done.exit_code == 5), (command, done.output)
    return done.output


def _metrics(plane: Plane, name: str) -> str:
    page = plane._http.get("/metrics").text
    assert name.removesuffix("_total").removesuffix("_count") in page, name
    return "\n".join(line for line in page.splitlines() if line.startswith(name))


@pytest.mark.parametrize("name", sorted(TROUBLES))
def test_commands_of_a_runbook_work_in_its_trouble(name: str, planes: Planes) -> None:
    runbook = find_runbook(name)
    assert runbook is not None
    plane, found = TROUBLES[name](planes)
    said = {}
    for section in (Section.EVIDENCE, Section.COMMAND, Section.VERIFICATION):
        commands = [filled(command, found) for command in runbook.commands(section)]
        assert commands, f"{name} has no {section}"
        assert [command for command in commands if places(command)] == []
        said[section] = "\n".join(typed(plane, command, may_fail=name == "plane-down") for command in commands)

    assert re.search(SEEN.get(name, ""), said[Section.EVIDENCE]), said[Section.EVIDENCE]


def test_every_page_has_its_trouble_and_every_alert_its_page() -> None:
    pages = {runbook.name: runbook for runbook in list_runbooks()}

    assert sorted(pages) == sorted(TROUBLES)
    alerts = ROOT / "ops" / "alerts.yaml"
    declared = set(re.findall(r"alert: (Holdfast\w+)", alerts.read_text())) if alerts.exists() else set()
    assert declared <= {runbook.alert for runbook in pages.values()}


@pytest.mark.parametrize("runbook", list_runbooks(), ids=lambda runbook: runbook.name)
def test_evidence_changes_nothing(runbook: Runbook) -> None:
    """What `holdfast runbook` runs by itself is on the list of what only reads."""
    for command in runbook.commands(Section.EVIDENCE):
        words = shlex.split(command)
        if words[0] == "curl":
            continue
        path, group = [], cli.commands
        for word in words[1:]:
            if word not in group:
                break
            path.append(word)
            group = getattr(group[word], "commands", {})
        assert " ".join(path) in READ_ONLY


def test_runbook_shows_the_evidence_beside_the_text(planes: Planes) -> None:
    plane, found = troubles.stuck_worker(planes)

    given = [f"{name}={value}" for name, value in found.items()]
    shown = plane.shell("runbook", "HoldfastWorkersStuck", *(part for one in given for part in ("--with", one)))

    assert shown.exit_code == 0, shown.output
    assert f"$ holdfast why worker {found['WORKER']}" in shown.stdout
    answered = [line for line in shown.stdout.splitlines() if line.startswith("    ")]
    assert any(line.startswith("    holdfast_workers{") for line in answered)
    assert any(f"worker {found['WORKER']}" in line for line in answered), answered
    [listed] = [one for one in plane.json("worker", "list") if one["id"] == found["WORKER"]]
    assert not listed["draining"], "a command that changes something is the person's to type"


def test_runbooks_are_listed_and_an_unknown_one_is_refused(planes: Planes) -> None:
    listed = planes.well.json("runbook")

    assert {one["name"] for one in listed} == set(TROUBLES)
    assert planes.well.shell("runbook", "no-such").exit_code == 3


def test_pages_come_with_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    [wheel] = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)

    command = [sys.executable, "-m", "holdfast", "runbook", "-o", "json"]
    listed = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
        timeout=60,
    )

    assert {one["name"] for one in json.loads(listed.stdout)} == set(TROUBLES)
    pages = installed / "holdfast/ops/runbooks_pages"
    assert {page.name for page in pages.iterdir()} == {page.name for page in SOURCE.iterdir()}
