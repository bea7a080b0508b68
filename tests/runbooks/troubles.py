"""Planes in trouble: each function brings one into the trouble of a runbook, and says what the person on call finds."""

from __future__ import annotations

import json
from typing import Any

from flow.faulty_store import Fault
from plane_shell import Plane

from holdfast.flow.dispatch import JOB
from holdfast.registry import STUCK_S
from runbooks.planes import Patient, Planes, metric, until

Found = dict[str, str]
"""What stands for the words in capitals."""
LEASE_S = 1.0
"""More than the lease of a brief job."""


def events(plane: Plane, job: str) -> list[str]:
    return [event["kind"] for event in plane.json("job", "events", job)]


def introduce(plane: Plane, worker: str, topic: str, slots: int = 1) -> None:
    plane.work("hello", worker=worker, name=worker, topics=[topic], slots=slots)


def submit(plane: Plane, topic: str, count: int = 1, **options: Any) -> str:
    """The id of the last of so many jobs."""
    for _ in range(count):
        reply = plane._http.post("/v1/jobs", json={"topic": topic, **options})
        assert reply.status_code < 300, reply.text
    return str(reply.json()["id"])


# -- jobs ----------------------------------------------------------------------------------------------


def too_few_workers(planes: Planes) -> tuple[Plane, Found]:
    """A job had to wait for more than a minute, and another one waits on."""
    plane, topic, worker = planes.well.plane, planes.name("crowded"), planes.name("single")
    job = submit(plane, topic, 2)
    planes.well.clock.advance(61)
    introduce(plane, worker, topic)
    until(lambda: metric(plane, f'holdfast_jobs_dispatched_total{{topic="{topic}"}}'))
    return plane, {"JOB": job, "TOPIC": topic}


def undispatched_jobs(planes: Planes) -> tuple[Plane, Found]:
    """A worker is idle, and the scheduler hangs in a read: nobody is woken by what is submitted."""
    plane, topic, worker = planes.well.plane, planes.name("undispatched"), planes.name("idle")
    hung = planes.well.hang("list_dispatchable")
    introduce(plane, worker, topic, slots=20)
    until(hung.reached.is_set)
    job, before = submit(plane, topic, 12), metric(plane, "holdfast_jobs_orphan_replayed_total")
    planes.well.clock.advance(11)
    until(lambda: metric(plane, "holdfast_jobs_orphan_replayed_total") - before > 10)
    plane.work("renew", worker=worker)
    return plane, {"JOB": job, "TOPIC": topic}


def stuck_worker(planes: Planes) -> tuple[Plane, Found]:
    """It lives, has room, was sent a job, and does not take it."""
    plane, topic, worker = planes.well.plane, planes.name("stuck"), planes.name("sleeper")
    introduce(plane, worker, topic)
    job = submit(plane, topic)
    until(lambda: plane.json("job", "get", job)["state"] == "DISPATCHED")
    for _ in range(6):  # never so long that it would be taken for silent
        planes.well.clock.advance(STUCK_S / 5)
        plane.work("renew", worker=worker)
    until(lambda: metric(plane, 'holdfast_workers{condition="stuck"}'))
    return plane, {"JOB": job, "TOPIC": topic, "WORKER": worker}


def lost_worker(planes: Planes) -> tuple[Plane, Found]:
    """It began a job and was not heard of again; its lease has run out, and the job was taken back."""
    plane, worker = planes.well.plane, planes.name("mute")
    job = plane.started(planes.name("brief."), worker)["job_id"]
    planes.well.clock.advance(LEASE_S)
    until(lambda: "job.lost" in events(plane, job))
    return plane, {"JOB": job, "WORKER": worker}


def late_worker(planes: Planes) -> tuple[Plane, Found]:
    """It came back when its attempt was over, and said how it had ended."""
    plane, worker = planes.well.plane, planes.name("late")
    taken = plane.started(planes.name("brief."), worker)
    planes.well.clock.advance(LEASE_S)
    until(lambda: "job.lost" in events(plane, taken["job_id"]))
    told = {"job_id": taken["job_id"], "fence": taken["fence"], "outcome": "succeeded"}
    plane._http.post("/v1/work/complete", json={"worker": worker, "outcomes": [told]})
    until(lambda: "attempt.refused" in events(plane, taken["job_id"]))
    return plane, {"JOB": taken["job_id"], "WORKER": worker}


def unrecovered_jobs(count: int) -> Any:
    """Their leases have run out long ago, and the store refuses what the reconciler writes."""

    def make(planes: Planes) -> tuple[Plane, Found]:
        plane, topic, worker = planes.well.plane, planes.name("brief."), planes.name("mute")
        planes.well.refuse("job.lost")
        introduce(plane, worker, topic, slots=count)
        job, taken = submit(plane, topic, count), 0
        while taken < count:
            taken += len(plane.work("claim", worker=worker, limit=count, wait_s=10, start=True)["deliveries"])
        planes.well.clock.advance(90)
        until(lambda: metric(plane, 'holdfast_jobs_stale{state="RUNNING"}') >= count)
        return plane, {"JOB": job, "WORKER": worker}

    return make


def dead_letter(planes: Planes) -> tuple[Plane, Found]:
    plane, topic = planes.well.plane, planes.name("once.")
    job = plane.ended(topic, planes.name("clerk"), "failed", error={"code": "broken", "message": ""}, retryable=False)
    letter = next(one for one in plane.json("dead-letter", "list") if one["job_id"] == job)
    return plane, {"JOB": job, "TOPIC": topic, "NUMBER": str(letter["number"])}


def unknown_effect(planes: Planes) -> tuple[Plane, Found]:
    plane, worker = planes.well.plane, planes.name("teller")
    taken = plane.started(planes.name("refund"), worker)
    plane.work("effect/prepare", worker=worker, job_id=taken["job_id"], fence=taken["fence"], key="pay")
    plane.work("goodbye", worker=worker, gone=True)
    until(lambda: [one for one in plane.json("effect", "list") if one["job_id"] == taken["job_id"]])
    return plane, {"JOB": taken["job_id"], "EFFECT": "pay"}


# -- bus and loops -------------------------------------------------------------------------------------


def refused_publish(planes: Planes) -> tuple[Plane, Found]:
    plane, topic = planes.with_bus.plane, planes.name("refused")
    planes.bus.refuses = True
    introduce(plane, planes.name("idle"), topic)
    job = submit(plane, topic)
    until(lambda: plane.json("job", "get", job)["retries"].get("publish"))
    return plane, {"JOB": job, "TOPIC": topic}


def failed_rollback(planes: Planes) -> tuple[Plane, Found]:
    """The bus refuses the publish, and the store the rollback: DISPATCHED, and nobody was told."""
    plane, topic, failed = planes.with_bus.plane, planes.name("unrolled"), "holdfast_dispatch_rollback_failed_total"
    planes.bus.refuses = True
    planes.with_bus.refuse("dispatch.rolled_back")
    introduce(plane, planes.name("idle"), topic, slots=2)
    job = submit(plane, topic, 2)
    until(lambda: metric(plane, f'{failed}{{topic="{topic}"}}') == 2)
    return plane, {"JOB": job, "TOPIC": topic}


def hung_scheduler(planes: Planes) -> tuple[Plane, Found]:
    """It waits for a bus that does not answer, for three minutes, under the lock of the job that it was to send."""
    patient, topic = planes.with_bus, planes.name("hung")
    plane = patient.plane
    patient.locks.override(JOB.name, reason="its lease is to outlast the clock's leap", ttl=3600.0)
    planes.bus.hangs = True
    introduce(plane, planes.name("idle"), topic)
    key = f"scheduler:job:{submit(plane, topic)}"
    fence = until(lambda: fence_of(patient, key))
    patient.locks.override(JOB.name, reason="nobody else needs it")
    patient.clock.advance(200)
    until(lambda: metric(plane, 'holdfast_loop_idle_seconds{loop!~"scheduler|pruner"}') < 180)
    return plane, {"KEY": key, "FENCE": fence}


def fence_of(patient: Patient, key: str) -> str:
    """Of the lease that is held, as a person would find it; empty if there is none."""
    lock_class, item = patient.locks.named(key)
    holder = patient.do(patient.locks.inspect(lock_class.name, item))
    return "" if holder is None else str(holder.fence)


def nobody_answers(planes: Planes) -> tuple[Plane, Found]:
    return Plane("http://127.0.0.1:1", planes.folder), {}


# -- policy and people ---------------------------------------------------------------------------------


def publish(plane: Plane, *rules: dict[str, Any], **more: Any) -> int:
    """The version that the plane decides by from now on."""
    file = plane.home / "rules.json"
    file.write_text(json.dumps({"format": 1, "default": {"action": "allow"}, "rules": rules, **more}))
    version = int(plane.json("policy", "publish", str(file), "--reason", "test")["version"])
    until(lambda: metric(plane, "holdfast_policy_version") == version)
    return version


def unasked_policy(planes: Planes) -> tuple[Plane, Found]:
    """A new rule cannot be evaluated for what is submitted, and the risk of that is set to fail open."""
    plane, topic = planes.well.plane, planes.name("judged")
    before = publish(plane)
    rule = {"name": "many", "match": {"topic": topic}, "when": "payload.n > 1", "action": "deny", "reason": "test"}
    publish(plane, rule, on_failure={"low": "open"})
    job = submit(plane, topic, payload={"n": "not a number"}, risk="low")
    return plane, {"JOB": job, "VERSION": str(before)}


def replica_behind(planes: Planes) -> tuple[Plane, Found]:
    """A second plane on the same store decides by an older version: it does not get to read the newer one."""
    plane, version = planes.well.plane, "holdfast_policy_version"
    before = publish(plane)
    behind = planes.until_healed.enter_context(Patient.opened(plane.home, clock=planes.well.clock))
    until(lambda: metric(behind.plane, version) == before)
    behind.store.fault("find_records", Fault.FAIL)
    publish(plane, on_failure={"high": "closed"})
    assert metric(plane, version) - metric(behind.plane, version) > 0
    return plane, {"VERSION": str(before)}


def expired_approval(planes: Planes) -> tuple[Plane, Found]:
    """Nobody has decided in time, and the next one waits."""
    plane, topic = planes.well.plane, planes.name("asked")
    demand = {"approvers": ["ann"], "expires_s": 60}
    publish(plane, {"name": "ask", "match": {"topic": topic}, "action": "require_approval", "approval": demand})
    unanswered = submit(plane, topic)
    planes.well.clock.advance(61)
    until(lambda: "approval.expired" in events(plane, unanswered))
    job = submit(plane, topic)
    [approval] = until(lambda: plane.json("approval", "list", "--job", job))
    return plane, {"JOB": job, "APPROVAL": approval["id"]}
