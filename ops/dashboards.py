"""Writes the Grafana dashboards beside it: `python ops/dashboards.py`. A panel is a title, a unit and what it shows.

Five pages, one for each question: is it well (overview), who waits for whom (locks), do jobs get to
workers (dispatch), do people decide (approvals), what happened outside (effects). Every alert of
alerts.yaml leads to one of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "grafana"
WIDTH, HEIGHT = 8, 8
COLUMNS = 24 // WIDTH


class Panel(NamedTuple):
    title: str
    unit: str
    """Of Grafana: short, s, percentunit, ops."""
    shows: dict[str, str]
    """What each line is called, and its expression."""


def rate(metric: str, *by: str, where: str = "") -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}{where}[$__rate_interval]))"


def quantile(which: float, metric: str, *by: str) -> str:
    return f"histogram_quantile({which}, {rate(f'{metric}_bucket', *by, 'le')})"


OVERVIEW = [
    Panel("Live jobs", "short", {"{{state}}": "max by (state) (holdfast_jobs)"}),
    Panel("Jobs submitted and ended", "ops", {
        "submitted": rate("holdfast_jobs_submitted_total"),
        "{{state}}": rate("holdfast_jobs_ended_total", "state"),
    }),
    Panel("Workers", "short", {"{{condition}}": "max by (condition) (holdfast_workers)"}),
    Panel("Jobs past their limit", "short", {"{{state}}": "sum by (state) (holdfast_jobs_stale)"}),
    Panel("Longest time that a job was nobody's", "s", {"blind window": "max (holdfast_blind_window_seconds)"}),
    Panel("Put right by the reconciler", "ops", {"{{reason}}": rate("holdfast_jobs_recovered_total", "reason")}),
    Panel("Late words of old attempts, refused", "ops", {"{{what}}": rate("holdfast_attempts_refused_total", "what")}),
    Panel("Since the last good tick", "s", {"{{loop}}": "max by (loop) (holdfast_loop_idle_seconds)"}),
    Panel("Frozen scopes", "short", {"{{scope}}": "max by (scope) (holdfast_frozen)"}),
    Panel("Runs", "ops", {
        "started": rate("holdfast_runs_started_total"),
        "{{state}}": rate("holdfast_runs_ended_total", "state"),
        "recovered: {{reason}}": rate("holdfast_runs_recovered_total", "reason"),
    }),
    Panel("Planes", "short", {"{{version}}": "count by (version) (holdfast_build_info)"}),
    Panel("Failed ticks", "ops", {"{{loop}}": rate("holdfast_loop_failures_total", "loop")}),
]  # fmt: skip

LOCKS = [
    Panel("Wait for a lock, 99 of 100", "s", {"{{namespace}}": quantile(0.99, "holdfast_lock_wait_seconds", "namespace")}),
    Panel("Gave up waiting", "ops", {"{{namespace}}": rate("holdfast_lock_wait_gave_up_total", "namespace")}),
    Panel("Renewals that fail", "percentunit", {
        "{{namespace}}": rate("holdfast_lock_renewals_total", "namespace", where='{result="failed"}')
        + " / " + rate("holdfast_lock_renewals_total", "namespace"),
    }),
    Panel("Leases lost under their holders", "ops", {
        "{{namespace}} {{policy}} {{reason}}": rate("holdfast_lock_abandoned_total", "namespace", "policy", "reason"),
    }),
    Panel("Too late: not owned", "ops", {"{{namespace}} {{op}}": rate("holdfast_lock_not_owned_total", "namespace", "op")}),
    Panel("Local only", "ops", {"{{namespace}}": rate("holdfast_lock_fallback_total", "namespace")}),
    Panel("Held, 99 of 100", "s", {"{{namespace}}": quantile(0.99, "holdfast_lock_held_seconds", "namespace")}),
    Panel("Stale operations that guards refused", "ops", {"{{namespace}}": rate("holdfast_lock_fence_refused_total", "namespace")}),
    Panel("Event loop stuck", "s", {"{{instance}}": "max by (instance) (holdfast_loop_lag_seconds)"}),
    Panel("Leases granted", "ops", {"{{namespace}}": rate("holdfast_lock_acquired_total", "namespace")}),
    Panel("Releases skipped after a loss", "ops", {"{{namespace}}": rate("holdfast_lock_release_skipped_total", "namespace")}),
    Panel("Changes of a class at run time", "ops", {"{{namespace}}": rate("holdfast_lock_policy_changes_total", "namespace")}),
]  # fmt: skip

DISPATCH = [
    Panel("From dispatchable to dispatched, 95 of 100", "s", {"{{topic}}": quantile(0.95, "holdfast_dispatch_wait_seconds", "topic")}),
    Panel("Deliveries", "ops", {"{{topic}}": rate("holdfast_jobs_dispatched_total", "topic")}),
    Panel("Dispatches that come round again", "ops", {"{{phase}}": rate("holdfast_dispatch_retries_total", "phase")}),
    Panel("Publishes rolled back", "ops", {"{{topic}}": rate("holdfast_dispatch_rollback_total", "topic")}),
    Panel("Rollbacks that failed", "ops", {"{{topic}}": rate("holdfast_dispatch_rollback_failed_total", "topic")}),
    Panel("Dispatchable for 10 s, and lay there", "ops", {"jobs": rate("holdfast_jobs_orphan_replayed_total")}),
    Panel("From dispatched to begun, 95 of 100", "s", {"{{topic}}": quantile(0.95, "holdfast_start_wait_seconds", "topic")}),
    Panel("How long attempts take, 95 of 100", "s", {"{{topic}}": quantile(0.95, "holdfast_attempt_seconds", "topic")}),
    Panel("Age of the worker snapshot", "s", {"age": "min (holdfast_snapshot_age_seconds)"}),
    Panel("Looks at schedules", "ops", {"{{outcome}}": rate("holdfast_schedule_ticks_total", "outcome")}),
    Panel("Pruned", "ops", {"jobs": rate("holdfast_jobs_pruned_total")}),
]  # fmt: skip

APPROVALS = [
    Panel("Waiting for a person", "short", {"jobs": 'max (holdfast_jobs{state="APPROVAL_REQUIRED"})'}),
    Panel("Decided", "ops", {"{{state}}": rate("holdfast_approvals_decided_total", "state")}),
    Panel("Time to a decision, the middle and 9 of 10", "s", {
        "middle": quantile(0.5, "holdfast_approval_wait_seconds"),
        "9 of 10": quantile(0.9, "holdfast_approval_wait_seconds"),
    }),
    Panel("Approvals that did not hold at dispatch", "ops", {"{{reason}}": rate("holdfast_approvals_refused_total", "reason")}),
    Panel("Decisions of the policy", "ops", {"{{action}}": rate("holdfast_policy_decisions_total", "action")}),
    Panel("Policy could not be asked", "ops", {"{{risk}} {{mode}}": rate("holdfast_policy_failures_total", "risk", "mode")}),
    Panel("Ran unasked", "ops", {"{{risk}}": rate("holdfast_policy_fail_open_total", "risk")}),
    Panel("Version of the policy", "short", {"{{instance}}": "max by (instance) (holdfast_policy_version)"}),
    Panel("Versions that a plane could not use", "ops", {"{{instance}}": rate("holdfast_policy_unusable_total", "instance")}),
]  # fmt: skip

EFFECTS = [
    Panel("Left in the middle, and found out about, in six hours", "short", {
        "unknown": 'max (increase(holdfast_effects_total{what="unknown"}[6h]))',
        "settled": 'max (increase(holdfast_effects_total{what="settled"}[6h]))',
    }),
    Panel("How attempts may go about effects", "ops", {
        "{{what}}": rate("holdfast_effects_total", "what", where='{what=~"run|remembered|blocked"}'),
    }),
    Panel("Late words refused", "ops", {"{{what}}": rate("holdfast_effects_total", "what", where='{what="refused"}')}),
    Panel("Webhooks", "ops", {"{{outcome}}": rate("holdfast_webhook_tries_total", "outcome")}),
    Panel("Advances of runs that came too late", "ops", {"{{reason}}": rate("holdfast_run_writes_refused_total", "reason")}),
]  # fmt: skip

DASHBOARDS = {"overview": OVERVIEW, "locks": LOCKS, "dispatch": DISPATCH, "approvals": APPROVALS, "effects": EFFECTS}


def dashboard(name: str, panels: list[Panel]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "uid": f"holdfast-{name}",
        "title": f"Holdfast: {name}",
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},
        "links": [{"type": "dashboards", "tags": ["holdfast"], "title": "Holdfast"}],
        "panels": [
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": source,
                "gridPos": {
                    "x": WIDTH * (number % COLUMNS),
                    "y": HEIGHT * (number // COLUMNS),
                    "w": WIDTH,
                    "h": HEIGHT,
                },
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + place), "datasource": source, "expr": expression, "legendFormat": legend}
                    for place, (legend, expression) in enumerate(panel.shows.items())
                ],
            }
            for number, panel in enumerate(panels)
        ],
    }


def text(name: str) -> str:
    return json.dumps(dashboard(name, DASHBOARDS[name]), indent=2) + "\n"


if __name__ == "__main__":
    for one in DASHBOARDS:
        (FOLDER / f"{one}.json").write_text(text(one))
