"""Locks in trouble: those of a plane that cannot keep them, and those that somebody else does not let go of."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import httpx2
from plane_shell import Plane

from holdfast.flow.approve import APPROVAL
from holdfast.flow.dispatch import JOB
from holdfast.flow.kept_locks import ADMISSION, RUN
from holdfast.locks import LockClass, LockError
from holdfast.locks.lease import Lease
from runbooks.planes import Patient, Planes, metric, until
from runbooks.troubles import Found, fence_of, introduce, publish, submit

LONG_S = 600.0


# -- of the plane ----------------------------------------------------------------------------------------


def hold(planes: Planes, item: str) -> Lease:
    """The plane holds the lock of a job, as long as the trouble lasts."""
    patient = planes.well
    lease = patient.do(patient.locks.acquire(JOB, item))

    def let_go() -> None:
        with suppress(LockError):
            patient.do(patient.locks.release(lease))

    planes.until_healed.callback(let_go)
    return lease


def found(lease: Lease, planes: Planes) -> Found:
    key = lease.key.removeprefix("holdfast:")
    return {"KEY": key, "FENCE": str(lease.fence), "TOPIC": planes.name("topic")}


def failing_renewals(planes: Planes) -> tuple[Plane, Found]:
    """Its renewal is due while another program keeps the file of the store locked."""
    patient, failed = planes.well, 'holdfast_lock_renewals_total{result="failed"}'
    lease, before = hold(planes, planes.name("item")), metric(patient.plane, failed)
    with patient.store_locked():
        patient.clock.advance(21)
        until(lambda: metric(patient.plane, failed) > before)
    return patient.plane, found(lease, planes)


def abandoned_lease(planes: Planes) -> tuple[Plane, Found]:
    """The machine was suspended for longer than the lease."""
    patient = planes.well
    lease = hold(planes, planes.name("item"))
    patient.clock.advance(70)
    until(lambda: lease.lost)
    return patient.plane, found(lease, planes)


def late_renewal(planes: Planes) -> tuple[Plane, Found]:
    """As before, but its class goes on after a loss: it renews what is somebody else's by now."""
    patient, item, refused = planes.well, planes.name("item"), "holdfast_lock_not_owned_total"
    patient.locks.override(JOB.name, reason="a test", on_renewal_failure="continue")
    hold(planes, item)
    patient.locks.override(JOB.name, reason="the next one is as declared")
    before = metric(patient.plane, refused)
    patient.clock.advance(70)
    until(lambda: metric(patient.plane, refused) > before)
    return patient.plane, found(seize(patient, JOB, item), planes)


def local_lock(planes: Planes) -> tuple[Plane, Found]:
    """Somebody has allowed a class to do without the store, and then the store is away."""
    patient = planes.well
    cell = ("--namespace", JOB.name, "--fallback", "local", "--for", "10m", "--reason", "it may happen twice")
    patient.plane.json("policy", "matrix", "set", *cell)
    until(lambda: patient.locks.in_force(JOB).on_store_error == "local")
    with patient.store_locked():
        lease = hold(planes, planes.name("item"))
    patient.plane.json("policy", "matrix", "reset", "--namespace", JOB.name, "--reason", "over")
    return patient.plane, found(lease, planes)


# -- of somebody who does not let go ---------------------------------------------------------------------


def seize(patient: Patient, lock_class: LockClass, item: str) -> Lease:
    """Another process has the lock, and keeps it."""
    return patient.stranger.acquire(lock_class.with_policy(ttl=LONG_S), item, wait=20)


def held_decision(planes: Planes) -> tuple[Plane, Found]:
    """Who wants to decide waits for as long as they may, and is sent away."""
    patient, topic = planes.well, planes.name("decided")
    plane = patient.plane
    publish(plane, {"name": "ask", "match": {"topic": topic}, "action": "require_approval"})
    job = submit(plane, topic)
    [approval] = until(lambda: plane.json("approval", "list", "--job", job))
    lease = seize(patient, APPROVAL, job)
    refused = plane.shell("approval", "approve", approval["id"], "--by", "ann", "--reason", "test")
    assert (refused.exit_code, "approval" in refused.stderr) == (4, True), refused.output
    return plane, found(lease, planes) | {"TOPIC": topic}


def held_dispatch(planes: Planes) -> tuple[Plane, Found]:
    patient, topic = planes.with_bus, planes.name("locked")
    job = submit(patient.plane, topic)
    lease = seize(patient, JOB, job)
    introduce(patient.plane, planes.name("idle"), topic)
    until(lambda: patient.plane.json("why", "job", job)["findings"][0]["code"] == "dispatch-locked")
    return patient.plane, found(lease, planes)


def start_run(plane: Plane, workflow: str) -> httpx2.Response:
    document = json.dumps({"name": workflow, "steps": [{"id": "wait", "kind": "delay", "seconds": 60}]})
    assert plane._http.post("/v1/workflows", json={"document": document}).status_code < 300
    return plane._http.post("/v1/runs", json={"workflow": workflow, "input": {}})


def held_run(planes: Planes) -> tuple[Plane, Found]:
    """Its time has come, and nobody can tell it so."""
    patient, plane = planes.well, planes.well.plane
    run = start_run(plane, planes.name("pause")).json()["id"]
    lease = seize(patient, RUN, run)
    patient.clock.advance(90)
    until(lambda: plane.json("why", "run", run)["findings"][0]["code"] == "run-lock-held")
    return plane, found(lease, planes)


def held_admission(planes: Planes) -> tuple[Plane, Found]:
    """No run of the tenant is let in."""
    patient, plane = planes.well, planes.well.plane
    lease = seize(patient, ADMISSION, "default")
    refused = start_run(plane, planes.name("pause"))
    assert refused.status_code >= 400, refused.text
    return plane, found(lease, planes)


def held_window(key: str) -> Callable[[Planes], tuple[Plane, Found]]:
    """A process that hangs has the window of the plane's loop."""

    def make(planes: Planes) -> tuple[Plane, Found]:
        patient = planes.well
        lock_class, item = patient.locks.named(key)
        long = lock_class.with_policy(ttl=LONG_S)

        def taken() -> bool:
            fence = fence_of(patient, key)
            if fence:
                patient.stranger.evict(long, item, fence=int(fence), reason="test")
            return patient.stranger.claim(long, item) is not None

        until(taken)
        return patient.plane, {"FENCE": fence_of(patient, key)}

    return make
