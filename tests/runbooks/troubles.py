"""Planes in trouble: each function brings one into the trouble of a runbook, and says what the person on call finds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plane_shell import Plane, plane_in_thread

from holdfast.buses.detached import DetachedBus, Fault
from holdfast.core.topic import Topic, Topics
from holdfast.flow.approve import APPROVAL
from holdfast.flow.dispatch import JOB
from holdfast.flow.kept_locks import ADMISSION, RUN
from holdfast.locks import LockClass, SyncLocks
from holdfast.locks.runtime import SYSTEM
from holdfast.ports import Delivery

TOPICS = Topics((Topic(name="once.*", max_attempts=1), Topic(name="brief.*", lease_s=0.5, dispatch_timeout_s=0.5)))
LONG = LockClass("reconciler", ttl=600, pattern="ttl_hold")
WITHIN_S = 30.0

Found = dict[str, str]
"""What stands for the words in capitals."""


class Failing(DetachedBus):
    """A bus that refuses, or swallows what it is given."""

    def __init__(self) -> None:
        super().__init__(SYSTEM.now, fail=lambda _: Fault.NOT_APPLIED if self.refuses else None)
        self.refuses = True

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        if self.refuses:
            await super().publish(deliveries)


@dataclass
class Planes:
    """One that is well, one whose reconciler is stuck elsewhere, one whose bus fails."""

    well: Plane
    unreconciled: Plane
    without_bus: Plane
    bus: Failing
    locks: SyncLocks
    """On the store of the one that is well: a process that holds locks."""
    counted: int = 0

    def name(self, word: str) -> str:
        self.counted += 1
        return f"{word}-{self.counted}"


@contextmanager
def planes_in_trouble(folder: Path) -> Iterator[Planes]:
    homes = [folder / name for name in ("well", "unreconciled", "without-bus")]
    for home in homes:
        home.mkdir()
    bus = Failing()
    with (
        plane_in_thread(homes[0], topics=TOPICS) as well,
        plane_in_thread(homes[1], topics=TOPICS) as unreconciled,
        plane_in_thread(homes[2], topics=TOPICS, bus=bus) as without_bus,
        SyncLocks(store_of(well)) as locks,
        SyncLocks(store_of(unreconciled)) as thief,
    ):
        _take_window(thief)
        yield Planes(well, unreconciled, without_bus, bus, locks)


def store_of(plane: Plane) -> str:
    return f"sqlite:///{plane.home}/plane.db"


def _take_window(locks: SyncLocks) -> None:
    """Somebody else is the reconciler, and does nothing: as a process that hangs."""
    deadline = time.monotonic() + WITHIN_S
    while locks.claim(LONG, "default") is None:
        assert time.monotonic() < deadline, "the window could not be taken"
        holder = locks.inspect(LONG, "default")
        if holder is not None:
            locks.evict(LONG, "default", fence=holder.fence, reason="test")


def until(happened: Any) -> Any:
    deadline = time.monotonic() + WITHIN_S
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


# -- jobs ----------------------------------------------------------------------------------------------


def waiting_job(planes: Planes) -> tuple[Plane, Found]:
    """Nobody takes its topic."""
    topic = planes.name("unserved")
    return planes.well, {"JOB": planes.well.json("job", "submit", topic)["id"], "TOPIC": topic}


def stuck_worker(planes: Planes) -> tuple[Plane, Found]:
    """It lives, has room, was sent a job, and does not take it."""
    plane, topic, worker = planes.well, planes.name("stuck"), planes.name("sleeper")
    plane.work("hello", worker=worker, name=worker, topics=[topic], slots=1)
    job = plane.json("job", "submit", topic)["id"]
    until(lambda: plane.json("job", "get", job)["state"] == "DISPATCHED")
    return plane, {"JOB": job, "TOPIC": topic, "WORKER": worker}


def lost_worker(planes: Planes) -> tuple[Plane, Found]:
    """It began a job and was not heard of again; its lease has run out, and the job was taken back."""
    plane, worker = planes.well, planes.name("mute")
    job = plane.started(planes.name("brief."), worker)["job_id"]
    until(lambda: any(event["kind"] == "job.lost" for event in plane.json("job", "events", job)))
    return plane, {"JOB": job, "WORKER": worker}


def late_worker(planes: Planes) -> tuple[Plane, Found]:
    """It came back when its attempt was over, and said how it had ended."""
    plane, worker = planes.well, planes.name("late")
    taken = plane.started(planes.name("brief."), worker)
    until(lambda: any(event["kind"] == "job.lost" for event in plane.json("job", "events", taken["job_id"])))
    told = {"job_id": taken["job_id"], "fence": taken["fence"], "outcome": "succeeded"}
    plane._http.post("/v1/work/complete", json={"worker": worker, "outcomes": [told]})
    until(lambda: any(event["kind"] == "attempt.refused" for event in plane.json("job", "events", taken["job_id"])))
    return plane, {"JOB": taken["job_id"], "WORKER": worker}


def unreconciled_job(planes: Planes) -> tuple[Plane, Found]:
    """Its lease has run out, and nobody takes it back: the reconciler's window is held by a process that hangs."""
    plane, worker = planes.unreconciled, planes.name("mute")
    taken = plane.started(planes.name("brief."), worker)
    until(lambda: time.time() > (plane.json("job", "get", taken["job_id"])["lease_until"] or 0.0))
    return plane, {"JOB": taken["job_id"], "WORKER": worker}


def dead_letter(planes: Planes) -> tuple[Plane, Found]:
    plane, topic = planes.well, planes.name("once.")
    job = plane.ended(topic, planes.name("clerk"), "failed", error={"code": "broken", "message": ""}, retryable=False)
    letter = next(one for one in plane.json("dead-letter", "list") if one["job_id"] == job)
    return plane, {"JOB": job, "TOPIC": topic, "NUMBER": str(letter["number"])}


def unknown_effect(planes: Planes) -> tuple[Plane, Found]:
    plane, worker = planes.well, planes.name("teller")
    taken = plane.started(planes.name("refund"), worker)
    plane.work("effect/prepare", worker=worker, job_id=taken["job_id"], fence=taken["fence"], key="pay")
    plane.work("goodbye", worker=worker, gone=True)
    until(lambda: [one for one in plane.json("effect", "list") if one["job_id"] == taken["job_id"]])
    return plane, {"JOB": taken["job_id"], "EFFECT": "pay"}


# -- bus, policy, people, locks ------------------------------------------------------------------------


def refused_publish(planes: Planes) -> tuple[Plane, Found]:
    plane, topic, worker = planes.without_bus, planes.name("refused"), planes.name("idle")
    planes.bus.refuses = True
    plane.work("hello", worker=worker, name=worker, topics=[topic], slots=1)
    job = plane.json("job", "submit", topic)["id"]
    until(lambda: plane.json("job", "get", job)["retries"].get("publish"))
    return plane, {"JOB": job, "TOPIC": topic}


def swallowed_delivery(planes: Planes) -> tuple[Plane, Found]:
    """DISPATCHED, and no message: what a rollback that failed leaves behind."""
    plane, topic, worker = planes.without_bus, planes.name("swallowed"), planes.name("idle")
    planes.bus.refuses = False
    plane.work("hello", worker=worker, name=worker, topics=[topic], slots=1)
    job = plane.json("job", "submit", topic)["id"]
    until(lambda: plane.json("job", "get", job)["state"] == "DISPATCHED")
    return plane, {"JOB": job, "TOPIC": topic}


def new_policy(planes: Planes) -> tuple[Plane, Found]:
    """A version that somebody wants to take back."""
    plane = planes.well
    rules = plane.home / "rules.json"
    for name in ("first", "second"):
        rule = (
            f'{{"name": "{name}", "match": {{"topic": "{planes.name("none")}"}}, "action": "deny", "reason": "test"}}'
        )
        rules.write_text(f'{{"format": 1, "default": {{"action": "allow"}}, "rules": [{rule}]}}')
        published = plane.json("policy", "publish", str(rules), "--reason", "test")
    job = plane.json("job", "submit", planes.name("judged"))["id"]
    return plane, {"JOB": job, "VERSION": str(published["version"] - 1)}


def waiting_approval(planes: Planes) -> tuple[Plane, Found]:
    plane, topic, rules = planes.well, planes.name("asked"), planes.well.home / "asking.json"
    rule = f'{{"name": "ask", "match": {{"topic": "{topic}"}}, "action": "require_approval", "approval": {{"approvers": ["ann"]}}}}'
    rules.write_text(f'{{"format": 1, "default": {{"action": "allow"}}, "rules": [{rule}]}}')
    plane.json("policy", "publish", str(rules), "--reason", "test")
    job = plane.json("job", "submit", topic)["id"]
    [approval] = until(lambda: plane.json("approval", "list", "--job", job))
    return plane, {"JOB": job, "APPROVAL": approval["id"]}


def _held(planes: Planes, lock_class: LockClass) -> tuple[Plane, Found]:
    item = planes.name("item")
    lease = planes.locks.acquire(lock_class, item)
    return planes.well, {
        "KEY": lease.key.removeprefix("holdfast:"),
        "FENCE": str(lease.fence),
        "TOPIC": planes.name("topic"),
    }


def held_job_lock(planes: Planes) -> tuple[Plane, Found]:
    """A process that holds the lock of a job, and does nothing."""
    return _held(planes, JOB)


def held_run_lock(planes: Planes) -> tuple[Plane, Found]:
    return _held(planes, RUN)


def held_approval_lock(planes: Planes) -> tuple[Plane, Found]:
    return _held(planes, APPROVAL)


def held_admission_lock(planes: Planes) -> tuple[Plane, Found]:
    return _held(planes, ADMISSION)


def held_window(key: str) -> Any:
    """A window of the plane itself."""

    def find(planes: Planes) -> tuple[Plane, Found]:
        def held() -> Found:
            shown = planes.well.shell("lock", "show", key, "--store", store_of(planes.well), "-o", "json")
            return {"FENCE": _fence(shown.stdout)} if shown.exit_code == 0 else {}

        return planes.well, until(held)

    return find


def _fence(shown: str) -> str:
    return next(line for line in shown.splitlines() if '"fence"' in line).split(":")[1].strip(" ,")


def nobody_answers(planes: Planes) -> tuple[Plane, Found]:
    gone = Plane("http://127.0.0.1:1", planes.well.home)
    return gone, {}
