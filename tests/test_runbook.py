"""What a runbook asks of a plane: its metrics, a probe job, the timeouts in force, who looks after what.

Rows 67 to 69 and 88.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from plane_shell import API_KEY, Plane, plane_in_thread

from holdfast.cli import cli
from holdfast.config import Settings


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with plane_in_thread(tmp_path_factory.mktemp("plane")) as shared:
        yield shared


def test_probe_job_goes_through_and_shows_what_it_cost(plane: Plane) -> None:
    plane.work("hello", worker="prober-1", name="prober", topics=["probe"], slots=1)
    submitted = plane.json("job", "submit", "probe", "--payload", '{"probe": true}', "--key", "probe-1")
    [delivery] = plane.work("claim", worker="prober-1", wait_s=10, start=True)["deliveries"]
    outcome = {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": "succeeded"}
    plane.work("complete", worker="prober-1", outcomes=[outcome])

    probe = plane.json("job", "get", submitted["id"])

    assert (probe["state"], probe["attempts"], probe["schedulings"], probe["retries"]) == ("SUCCEEDED", 1, 1, {})


def test_metrics_are_served_on_the_port_of_the_plane(plane: Plane) -> None:
    plane.json("job", "submit", "measured")

    refused = plane._http.get("/metrics", headers={"authorization": ""})
    served = plane._http.get("/metrics")

    assert Settings().port == 7070
    assert refused.status_code == 401
    assert 'holdfast_jobs_submitted_total{topic="measured"} 1.0' in served.text
    assert API_KEY not in served.text


def test_timeouts_in_force_are_listed_with_their_origin(tmp_path: Path) -> None:
    file = tmp_path / "plane.toml"
    file.write_text(
        '[plane]\nstore = "sqlite:///a.db"\nport = 7071\n[topics."mail.*"]\ndispatch_timeout_s = 5\nrunning_timeout_s = 60\n'
    )

    done = CliRunner(env={"HOLDFAST_PORT": "7072", "HOLDFAST_API_KEY": "s3cr3t", "HOLDFAST_STORE": None}).invoke(
        cli, ["config", "list", "--config", str(file), "-o", "json"]
    )

    listed = {row["name"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)}
    assert listed["topics.mail.*.dispatch_timeout_s"] == ("5", str(file))
    assert listed["topics.mail.*.running_timeout_s"] == ("60", str(file))
    assert listed["topics.*.dispatch_timeout_s"] == ("300.0", "default")
    assert listed["plane.port"] == ("7072", "HOLDFAST_PORT")
    assert listed["plane.store"] == ("sqlite:///a.db", str(file))
    assert listed["retention.finished_jobs_s"] == ("2592000.0", "default")
    assert "s3cr3t" not in done.output


def test_file_that_a_plane_would_refuse_is_refused_here(tmp_path: Path) -> None:
    file = tmp_path / "plane.toml"
    file.write_text('[topics."mail.*"]\ntimeout = 5\n')

    done = CliRunner().invoke(cli, ["config", "list", "--config", str(file)])

    assert (done.exit_code, done.stdout) == (2, "")
    assert "dispatch_timeout_s" in done.stderr


def test_locks_of_the_plane_are_shown_by_key(plane: Plane) -> None:
    store = f"sqlite:///{plane.home}/plane.db"

    held = plane.json("lock", "list", "--store", store)
    shown = plane.json("lock", "show", "reconciler:default", "--store", store)

    assert {"holdfast:reconciler:default", "holdfast:scheduler:snapshot:writer"} <= {lock["key"] for lock in held}
    assert (shown["key"], shown["fence"] > 0) == ("holdfast:reconciler:default", True)


def test_freshness_of_the_worker_snapshot_is_told_with_its_writer(plane: Plane) -> None:
    plane.work("hello", worker="kept-1", name="kept", topics=["kept"], slots=1)
    deadline = time.monotonic() + 20
    while (known := plane._http.get("/v1/workers").json())["snapshot_age_s"] is None:
        assert time.monotonic() < deadline, "nobody has written a snapshot"
        time.sleep(0.1)

    told = plane.shell("worker", "list").stderr

    assert 0 <= known["snapshot_age_s"] < 15
    assert known["snapshot_writer"]
    assert "in the store as of " in told
    assert known["snapshot_writer"] in told
