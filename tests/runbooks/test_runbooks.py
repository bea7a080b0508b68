"""Every command of every runbook is typed at a plane in that very trouble."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from plane_shell import Plane

from holdfast.cli import cli
from holdfast.cli.runbook import READ_ONLY
from holdfast.ops.drills.catalogue import find_drill
from holdfast.ops.runbooks import SOURCE, Runbook, Section, filled, find_runbook, list_runbooks, places
from runbooks import lock_troubles, troubles
from runbooks.planes import Planes, metric, planes_in_trouble, store_of, until
from runbooks.troubles import Found

ROOT = Path(__file__).parent.parent.parent
ALERTS = yaml.safe_load((ROOT / "ops/alerts.yaml").read_text())


class Trouble(NamedTuple):
    make: Callable[[Planes], tuple[Plane, Found]]
    metric: str = ""
    """As the expression of the page's alert selects it: what a counter has gained, or a gauge says, in this trouble …"""
    above: float = 0.0
    """… is more than this."""


TROUBLES = {
    "lock-renewals-failing": Trouble(lock_troubles.failing_renewals, 'holdfast_lock_renewals_total{result="failed"}'),
    "locks-abandoned": Trouble(lock_troubles.abandoned_lease, "holdfast_lock_abandoned_total"),
    "locks-not-owned": Trouble(lock_troubles.late_renewal, "holdfast_lock_not_owned_total"),
    "lock-wait-high": Trouble(lock_troubles.held_decision, "holdfast_lock_wait_seconds_sum", above=1),
    "lock-wait-growing": Trouble(lock_troubles.held_decision, "holdfast_lock_wait_seconds_sum", above=1),
    "lock-fallback": Trouble(lock_troubles.local_lock, "holdfast_lock_fallback_total"),
    "dispatch-retrying": Trouble(troubles.refused_publish, "holdfast_dispatch_retries_total"),
    "dispatch-rollback-failed": Trouble(troubles.failed_rollback, "holdfast_dispatch_rollback_failed_total", above=1.5),
    "dispatch-wait-high": Trouble(troubles.too_few_workers, "holdfast_dispatch_wait_seconds_sum", above=60),
    "jobs-stale": Trouble(troubles.unrecovered_jobs(1), 'holdfast_jobs_stale{state!="SCHEDULED"}'),
    "jobs-stale-growing": Trouble(troubles.unrecovered_jobs(21), "holdfast_jobs_stale", above=20),
    "orphans-growing": Trouble(troubles.undispatched_jobs, "holdfast_jobs_orphan_replayed_total", above=10),
    "blind-window": Trouble(troubles.unrecovered_jobs(1), "holdfast_blind_window_seconds", above=60),
    "jobs-failing": Trouble(troubles.dead_letter, 'holdfast_jobs_ended_total{state=~"FAILED|TIMEOUT"}'),
    "workers-stuck": Trouble(troubles.stuck_worker, 'holdfast_workers{condition="stuck"}'),
    "workers-lost": Trouble(
        troubles.lost_worker, 'holdfast_jobs_recovered_total{reason=~"lease-expired.*|worker-silent"}'
    ),
    "attempts-refused": Trouble(troubles.late_worker, "holdfast_attempts_refused_total"),
    "loop-stalled": Trouble(troubles.hung_scheduler, 'holdfast_loop_idle_seconds{loop!="pruner"}', above=180),
    "plane-down": Trouble(troubles.nobody_answers),
    "policy-fail-open": Trouble(troubles.unasked_policy, "holdfast_policy_fail_open_total"),
    "policy-diverged": Trouble(troubles.replica_behind),
    "approvals-expiring": Trouble(troubles.expired_approval, 'holdfast_approvals_decided_total{state="expired"}'),
    "effects-unknown": Trouble(troubles.unknown_effect, 'holdfast_effects_total{what="unknown"}'),
    "lock-scheduler-job": Trouble(lock_troubles.held_dispatch),
    "lock-workflow-run": Trouble(lock_troubles.held_run),
    "lock-approval": Trouble(lock_troubles.held_decision),
    "lock-admission": Trouble(lock_troubles.held_admission),
    "lock-reconciler": Trouble(lock_troubles.held_window("reconciler:default")),
    "lock-replayer": Trouble(lock_troubles.held_window("replayer:pending")),
    "lock-workflow-reconciler": Trouble(lock_troubles.held_window("workflow-engine:reconciler:default")),
    "lock-snapshot": Trouble(lock_troubles.held_window("scheduler:snapshot:writer")),
}
NOT_BY_ONE_PLANE = {
    "plane-down": "`up` is what Prometheus says of a plane that it cannot ask",
    "policy-diverged": "the versions of two planes are compared; the trouble sees that they differ",
}
"""Pages whose alert does not ask for a metric that one plane serves."""
SEEN = {
    "lock-renewals-failing": r'result="failed"} [1-9]',
    "locks-abandoned": r'reason="paused"} [1-9]',
    "locks-not-owned": r'op="renew"} [1-9]',
    "lock-wait-high": "a-stranger:1",
    "lock-wait-growing": "a-stranger:1",
    "lock-fallback": r'fallback_total{namespace="scheduler.job"} [1-9]',
    "dispatch-retrying": "publish-failed",
    "dispatch-rollback-failed": "DISPATCHED",
    "dispatch-wait-high": "workers-full",
    "jobs-stale": "recovery-overdue",
    "jobs-stale-growing": "recovery-overdue",
    "orphans-growing": "nobody-dispatches",
    "blind-window": "recovery-overdue",
    "jobs-failing": "broken",
    "workers-stuck": "worker-takes-none",
    "workers-lost": "job.lost",
    "attempts-refused": "word-refused",
    "loop-stalled": r'idle_seconds{loop="scheduler"} [2-9]\d\d',
    "plane-down": "Check that the plane is up",
    "policy-fail-open": "failed-open",
    "policy-diverged": r"holdfast_policy_version [1-9]",
    "approvals-expiring": "ann",
    "effects-unknown": "unknown",
    "lock-scheduler-job": "a-stranger:1",
    "lock-workflow-run": "a-stranger:1",
    "lock-approval": "a-stranger:1",
    "lock-admission": "a-stranger:1",
    "lock-reconciler": "window-held",
    "lock-replayer": "window-held",
    "lock-workflow-reconciler": "window-held",
    "lock-snapshot": "window-held",
}
"""A pattern that the evidence of the page must contain, in that trouble."""


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planes]:
    with planes_in_trouble(tmp_path_factory.mktemp("planes")) as both:
        yield both


@pytest.fixture(autouse=True)
def _healed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "planes" in request.fixturenames:
        request.getfixturevalue("planes").heal()


def typed(plane: Plane, command: str, *, may_fail: bool) -> str:
    """What the command says. It may fail only where the trouble is that nobody answers."""
    words = shlex.split(command.replace("$HOLDFAST_URL", plane.url))
    if words[0] == "curl":
        name = words[-1]
        assert name.removesuffix("_count") in (ROOT / "docs/reference/metrics.md").read_text(), name
        return "" if may_fail else _metrics(plane, name)
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


def is_counter(selector: str) -> bool:
    return selector.partition("{")[0].endswith(("_total", "_sum"))


@pytest.mark.parametrize("name", sorted(TROUBLES))
def test_commands_of_a_runbook_work_in_its_trouble(name: str, planes: Planes) -> None:
    runbook = find_runbook(name)
    assert runbook is not None
    trouble = TROUBLES[name]
    before = planes.read(trouble.metric) if is_counter(trouble.metric) else {}
    plane, found = trouble.make(planes)
    if trouble.metric:
        until(lambda: metric(plane, trouble.metric) - before.get(plane.url, 0.0) > trouble.above)
    said = {}
    for section in (Section.EVIDENCE, Section.COMMAND, Section.VERIFICATION):
        commands = [filled(command, found) for command in runbook.commands(section)]
        assert commands, f"{name} has no {section}"
        assert [command for command in commands if places(command)] == []
        said[section] = "\n".join(typed(plane, command, may_fail=name == "plane-down") for command in commands)

    assert re.search(SEEN[name], said[Section.EVIDENCE]), said[Section.EVIDENCE]


def test_every_page_has_its_trouble_and_every_alert_its_page() -> None:
    pages = {runbook.name: runbook for runbook in list_runbooks()}

    assert sorted(pages) == sorted(TROUBLES)
    assert asked_for().keys() == {runbook.alert for runbook in pages.values()} - {""}


def test_every_trouble_is_the_one_that_its_alert_fires_for() -> None:
    """Each names what its alert asks for, and the test above sees that in the plane before any command is typed."""
    asked = asked_for()
    alerted = {runbook.name: asked[runbook.alert] for runbook in list_runbooks() if runbook.alert}

    assert {name for name, trouble in TROUBLES.items() if trouble.metric} == alerted.keys() - NOT_BY_ONE_PLANE.keys()
    for name, trouble in TROUBLES.items():
        wanted = re.sub(r"_sum$", "_", trouble.metric)  # of a histogram, whichever part
        assert trouble.metric == "" or wanted in alerted[name], f"{name} does not ask for {trouble.metric}"


def asked_for() -> dict[str, str]:
    """The expressions of each alert."""
    asked: dict[str, str] = {}
    for rule in (rule for group in ALERTS["groups"] for rule in group["rules"] if "alert" in rule):
        asked[rule["alert"]] = asked.get(rule["alert"], "") + rule["expr"]
    return asked


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
    assert "`worker-full`\n    it is at work\n    nothing; more workers if it lasts\n" in shown.stdout
    answered = [line for line in shown.stdout.splitlines() if line.startswith("    ")]
    assert any(line.startswith("    holdfast_workers{") for line in answered)
    assert any(f"worker {found['WORKER']}" in line for line in answered), answered
    [listed] = [one for one in plane.json("worker", "list") if one["id"] == found["WORKER"]]
    assert not listed["draining"], "a command that changes something is the person's to type"


def test_runbooks_are_listed_and_an_unknown_one_is_refused(planes: Planes) -> None:
    listed = planes.well.plane.json("runbook")

    assert {one["name"] for one in listed} == set(TROUBLES)
    assert planes.well.plane.shell("runbook", "no-such").exit_code == 3


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
