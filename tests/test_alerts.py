"""Alerts and dashboards ask only for what is served, and every alert fires where it must and nowhere else.

What PromQL means is `promtool`'s to say: `tools/promtool` gets it where it can be had.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from locks.virtual import VirtualRuntime, on_virtual_time
from metrics_plane import standing

ROOT = Path(__file__).parent.parent
ALERTS: dict[str, Any] = yaml.safe_load((ROOT / "ops/alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"] if "alert" in rule]
CASES = yaml.safe_load((ROOT / "ops/alerts_test.yaml").read_text())["tests"]
DASHBOARDS = sorted((ROOT / "ops/grafana").glob("*.json"))
OF_PROMETHEUS = {"instance", "job", "le"}


def page_of(alert: str) -> str:
    """HoldfastLockRenewalsFailing → lock-renewals-failing."""
    return re.sub(r"(?<!^)([A-Z])", r"-\1", alert.removeprefix("Holdfast")).lower()


def documented() -> dict[str, set[str]]:
    """Every metric with its labels, as docs/reference/metrics.md has them: tests/test_metrics.py holds it to that."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(holdfast_\w+)` \| ([^|]*) \|", page, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def expressions() -> Iterator[tuple[str, str]]:
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_expression_asks_for_what_is_served(where: str, expression: str) -> None:
    known = documented()
    labels: set[str] = set()
    for name, selected in re.findall(r"\b(holdfast_\w+)(?:\{([^}]*)\})?", expression):
        metric = name if name in known else re.sub(r"_(bucket|count|sum)$", "", name)
        assert metric in known, f"{where}: nobody serves {name}"
        asked = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selected))
        assert asked <= known[metric] | OF_PROMETHEUS, f"{where}: {name} has no label {asked - known[metric]}"
        labels |= known[metric]
    grouped = {label.strip() for by in re.findall(r"\bby \(([^)]*)\)", expression) for label in by.split(",")} - {""}
    recorded = re.findall(r"\bholdfast:", expression)
    assert recorded or grouped <= labels | OF_PROMETHEUS, f"{where}: no metric in it has {grouped - labels}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_alert_says_how_grave_it_is_and_where_to_look(rule: dict[str, Any]) -> None:
    told = rule["annotations"]
    uids = {json.loads(path.read_text())["uid"] for path in DASHBOARDS}

    assert rule["alert"].startswith("Holdfast")
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert told["summary"].endswith(".")
    assert told["runbook_url"] == f"docs/runbooks/{page_of(rule['alert'])}.md"
    assert (ROOT / told["runbook_url"]).exists()
    assert told["dashboard_url"].removeprefix("/d/") in uids


def test_every_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    wanted = Counter(rule["alert"] for rule in RULES)
    asked = [check for case in CASES for check in case["alert_rule_test"]]

    assert Counter(check["alertname"] for check in asked if check["exp_alerts"]) == wanted
    assert Counter(check["alertname"] for check in asked if not check["exp_alerts"]) == wanted


def test_dashboards_are_as_they_are_described() -> None:
    spec = importlib.util.spec_from_file_location("dashboards", ROOT / "ops/dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    described = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(described)

    assert {path.stem: path.read_text() for path in DASHBOARDS} == {
        name: described.text(name) for name in described.DASHBOARDS
    }, "run: python ops/dashboards.py"


def test_every_metric_is_on_a_dashboard() -> None:
    shown = "".join(path.read_text() for path in DASHBOARDS)

    assert [name for name in documented() if name not in shown] == []


# -- promtool --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".venv/promtool/usr/bin")
    if found is None:
        pytest.skip("NO PROMTOOL: what the alerts mean was not checked. Run tools/promtool, or install prometheus")
    return found


def run(*command: str, **options: Any) -> str:
    done = subprocess.run(command, cwd=ROOT / "ops", check=False, capture_output=True, text=True, timeout=60, **options)
    said: str = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_rules_are_rules(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", "alerts.yaml")


def test_alerts_fire_where_they_must_and_nowhere_else(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", "alerts_test.yaml")


@on_virtual_time
async def test_what_is_served_passes_the_linter(
    runtime: VirtualRuntime, promtool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with standing(runtime, monkeypatch) as plane:
        await plane.submit()
        served = (await plane.http.get("/metrics")).text

    assert run(promtool, "check", "metrics", input=served) == ""
