"""`holdfast why`, `holdfast lock classes|top|evict` and `holdfast top` against a real plane."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import pytest
from harness import sooner_or_later
from plane_shell import Plane, one_line, plane_in_thread

from holdfast.locks import LockClass, Locks
from holdfast.wiring import CLASSES


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with plane_in_thread(tmp_path_factory.mktemp("plane")) as shared:
        yield shared


def test_why_tells_people_the_cause_and_what_to_type(plane: Plane) -> None:
    job = plane.json("job", "submit", "nobodys.topic")["id"]

    said = plane.shell("why", "job", job)

    assert said.exit_code == 0, said.output
    lines = said.stdout.splitlines()
    assert lines[0] == f"job {job}: SCHEDULED"
    assert lines[2] == "1. no-worker (blocked): no worker of pool default takes topic nobodys.topic"
    assert "   next      holdfast worker list" in lines


def test_why_tells_programs_the_same(plane: Plane) -> None:
    job = plane.json("job", "submit", "nobodys.topic")["id"]

    found = plane.json("why", "job", job)

    assert (found["subject"], found["id"], found["state"], found["attempts"]) == ("job", job, "SCHEDULED", [])
    assert found["findings"][0]["code"] == "no-worker"
    assert set(found["findings"][0]) == {
        "code", "weight", "summary", "since", "until", "who", "next", "evidence",
    }  # fmt: skip


def test_why_of_a_worker_and_of_a_lock(plane: Plane) -> None:
    taken = plane.started("why.worker", "wy")

    assert plane.json("why", "worker", "wy")["findings"][0]["code"] == "worker-fit"
    assert plane.json("why", "job", taken["job_id"])["findings"][0]["code"] == "running"
    assert re.search(r"renewed_at=[\d.]+ s ago", plane.shell("why", "job", taken["job_id"]).stdout)
    assert plane.json("why", "lock", "reconciler:default")["findings"][0]["code"] == "window-held"
    assert plane.json("why", "lock", "approval:x")["findings"][0]["code"] == "lock-free"


def test_why_of_what_began_twice_shows_its_attempts(plane: Plane) -> None:
    taken = plane.started("why.twice", "w-old")
    told = {"job_id": taken["job_id"], "fence": taken["fence"], "outcome": "failed", "error": {"code": "x"}}
    plane.work("complete", worker="w-old", outcomes=[told])
    plane.work("claim", worker="w-old", wait_s=20, start=True)

    said = plane.shell("why", "job", taken["job_id"])

    assert "began-again (note)" in said.stdout
    table = said.stdout.partition("\nattempts\n")[2].splitlines()
    assert [line.split()[1] for line in table] == ["WORKER", "w-old", "w-old"]


@pytest.mark.parametrize(
    ("subject", "thing", "hint"),
    [
        ("job", "nosuchjob", "holdfast job list"),
        ("run", "nosuchrun", "holdfast run list"),
        ("approval", "nosuchapproval", "holdfast approval list"),
        ("worker", "nosuchworker", "holdfast worker list"),
        ("lock", "no:such:class", "holdfast lock classes"),
    ],
)
def test_what_is_not_there_is_refused_with_the_next_step(plane: Plane, subject: str, thing: str, hint: str) -> None:
    assert hint in one_line(plane.shell("why", subject, thing))


# -- the inventory of locks -----------------------------------------------------------------------------


def test_classes_of_locks_are_those_that_the_plane_declares(plane: Plane) -> None:
    found = {one["name"]: one for one in plane.json("lock", "classes")["items"]}

    assert set(found) == {declared.name for declared in CLASSES}
    assert (found["reconciler"]["pattern"], found["reconciler"]["held"]) == ("ttl_hold", 1)
    assert (found["scheduler.job"]["ttl_s"], found["scheduler.job"]["on_renewal_failure"]) == (60.0, "fence")
    assert "scheduler.job" in plane.shell("lock", "classes").stdout


def test_key_that_no_class_declares_is_an_error_of_the_inventory(plane: Plane) -> None:
    async def hold() -> None:
        async with Locks(f"sqlite:///{plane.home}/plane.db", classes=[LockClass("strange", 30)]) as locks:
            lease = await locks.acquire("strange", "k1")
            told = await asyncio.to_thread(plane.shell, "lock", "classes", "--strict")
            shown = await asyncio.to_thread(plane.shell, "lock", "classes")
            await locks.release(lease)
        assert (told.exit_code, "holdfast:strange:k1" in told.stderr) == (4, True)
        assert (shown.exit_code, "holdfast:strange:k1" in shown.stderr) == (0, True)

    asyncio.run(hold())


def test_key_that_no_class_declares_is_told_which_there_may_be(plane: Plane) -> None:
    refused = plane.shell("lock", "evict", "nobodys:1", "--fence", "1", "--reason", "stuck", "--by", "ann")
    assert refused.exit_code == 3
    assert "holdfast lock classes" in one_line(refused)


def test_eviction_needs_the_fence_and_is_audited(plane: Plane) -> None:
    async def contend() -> None:
        async with Locks(f"sqlite:///{plane.home}/plane.db", classes=CLASSES, holder="somewhere:7") as locks:
            lease = await locks.acquire("approval", "j1", wait=0)
            key, wrong = "approval:j1", str(lease.fence - 1)
            refused = await asyncio.to_thread(
                plane.shell, "lock", "evict", key, "--fence", wrong, "--reason", "stuck", "--by", "ann"
            )
            assert (refused.exit_code, "somewhere:7" in refused.stderr) == (4, True)
            done = await asyncio.to_thread(
                plane.shell, "lock", "evict", key, "--fence", str(lease.fence), "--reason", "stuck", "--by", "ann"
            )
            assert (done.exit_code, "approval" in done.stdout) == (0, True)
            assert await locks.inspect("approval", "j1") is None

    asyncio.run(contend())

    [line] = plane.json("audit", "list", "--plane", "--action", "lock.evicted")
    assert (line["by"], line["reason"], line["detail"]["holder"]) == ("ann", "stuck", "somewhere:7")


def test_locks_that_are_fought_over_come_first(plane: Plane) -> None:
    store = f"sqlite:///{plane.home}/plane.db"

    async def contend() -> None:
        async with Locks(store, classes=CLASSES, holder="a:1") as locks, Locks(store, classes=CLASSES) as others:
            lease = await locks.acquire("workflow.run", "busy")
            waiting = asyncio.create_task(others.acquire("workflow.run", "busy", wait=20))
            while not (holder := await locks.inspect("workflow.run", "busy")) or not holder.waiters:
                await asyncio.sleep(0.01)
            rows = json.loads(
                (await asyncio.to_thread(plane.shell, "lock", "top", "--store", store, "-o", "json")).stdout
            )
            said = await asyncio.to_thread(plane.json, "top")
            await locks.release(lease)
            await others.release(await waiting)
        assert (rows[0]["key"], rows[0]["waiters"], rows[0]["holder"]) == ("holdfast:wf:run:lock:busy", 1, "a:1")
        assert rows[0]["grants"] >= 1
        assert [lock["lock_class"] for lock in said["locks_contended"]] == ["workflow.run"]
        assert "lock-contended" in [warning["code"] for warning in said["warnings"]]

    asyncio.run(contend())


# -- top ------------------------------------------------------------------------------------------------


def test_top_shows_how_the_plane_stands(plane: Plane) -> None:
    plane.started("top.topic", "w-top")

    # As somebody who has not asked yet: an answer is kept for half a second.
    said = plane.shell("top", "--once", "--tenant", "newcomer")

    assert said.exit_code == 0, said.output
    assert "RUNNING" in said.stdout
    assert "w-top" in said.stdout
    assert "submitted" in said.stdout


def test_summary_is_of_the_tenant_who_asks(plane: Plane) -> None:
    plane.json("job", "submit", "nobodys.topic", "--tenant", "umbrella")

    # Topics are counted once for all tenants: what is told now may have been counted before this job was there.
    topics = sooner_or_later(lambda: plane.json("top", "--tenant", "umbrella")["topics"])
    mine, theirs = plane.json("top", "--tenant", "umbrella"), plane.json("top", "--tenant", "stranger")

    assert (mine["states"], topics) == ({"SCHEDULED": 1}, {"nobodys.topic": 1})
    assert (theirs["states"], theirs["topics"]) == ({}, {})


@pytest.mark.usefixtures("on_disk")
def test_doctor_reads_what_a_plane_has_measured(plane: Plane) -> None:
    done = plane.shell("doctor", "--store", f"sqlite:///{plane.home}/plane.db", "--url", plane.url)

    assert done.exit_code == 0, done.output
    assert "blind windows" in done.stdout
