"""Why a worker gets nothing, or does nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.core.job import Job
from holdfast.core.placement import WorkerView, unfit
from holdfast.core.states import State
from holdfast.core.why import Finding, Reason, finding, ranked
from holdfast.core.why_facts import TAKEN_WITHIN_S, WorkerFacts


def why_worker(facts: WorkerFacts) -> list[Finding]:
    """Never empty."""
    return ranked([_condition(facts), *_unfit(facts)])


def _condition(facts: WorkerFacts) -> Finding:
    worker = facts.worker
    running = [job for job in facts.in_hand if job.state is State.RUNNING]
    sent = [job for job in facts.in_hand if job.state is State.DISPATCHED]
    evidence: dict[str, Any] = {"running": len(running), "sent": len(sent), "slots": worker.slots, "pool": worker.pool}
    if worker.last_seen < facts.alive_since:
        doubted = worker.last_seen == float("-inf")
        heard = "a lease of its ran out" if doubted else f"for {facts.now - worker.last_seen:.0f} s"
        return finding(
            Reason.WORKERS_SILENT,
            f"it is not heard of ({heard}): it gets nothing until it speaks again, and what it runs goes with its leases",
            since=None if doubted else worker.last_seen,
            until=max((job.lease_until for job in running), default=None),
            who="whoever runs it",
            then=(f"holdfast job list --worker {worker.id}",),
            **evidence,
        )
    idle_hands = worker.slots - len(running)
    late = [job for job in sent if facts.now - job.since >= TAKEN_WITHIN_S]
    if late and idle_hands > 0 and not facts.is_claiming:
        oldest = min(late, key=lambda job: job.since)
        look = []
        if oldest.tenant == facts.tenant:
            look = [f"holdfast why job {oldest.id}"]
            evidence["oldest"] = oldest.id
        return finding(
            Reason.WORKER_TAKES_NONE,
            f"it heartbeats, and has not taken {len(late)} deliveries; the oldest for {facts.now - oldest.since:.0f} s",
            since=oldest.since,
            who="whoever runs it: restart it, or drain it so that others get its jobs",
            then=(f"holdfast worker drain {worker.id}", *look),
            **evidence,
        )
    if not worker.wants:
        return _unwilling(worker, len(running), evidence)
    if idle_hands <= 0:
        return finding(Reason.WORKER_FULL, f"it is at work on {len(running)} jobs, as many as it may", **evidence)
    if not facts.in_hand and not any(_fits(facts, job) for job in facts.waiting):
        return finding(Reason.WORKER_IDLE, "it lives, has room, and there is nothing for it", **evidence)
    return finding(Reason.WORKER_FIT, f"it lives, works on {len(running)} jobs and has room for more", **evidence)


def _unwilling(worker: WorkerView, running: int, evidence: dict[str, Any]) -> Finding:
    if worker.draining:
        return finding(
            Reason.WORKER_DRAINING,
            f"it drains: it gets nothing more, and finishes {running} jobs",
            who="whoever told it to; it takes work again when it is started anew",
            then=("holdfast worker list",),
            **evidence,
        )
    return finding(
        Reason.WORKERS_UNABLE,
        f"it can begin nothing: {worker.unable}; it tries again by itself, and its jobs go to others at no cost",
        who="whoever runs it: its log says what to do",
        then=("holdfast worker list",),
        **evidence,
    )


def _fits(facts: WorkerFacts, job: Job) -> bool:
    return unfit(job, job.pool, facts.worker, alive_since=facts.alive_since) is None


def _unfit(facts: WorkerFacts) -> list[Finding]:
    """Jobs that wait although this worker has room: what they want that it does not have."""
    lacks = Counter[str | None](
        lack
        for job in facts.waiting
        if (lack := unfit(job, job.pool, facts.worker, alive_since=facts.alive_since))
        in ("other-pool", "other-topics", "labels-missing")
    )
    if not lacks:
        return []
    return [
        finding(
            Reason.JOBS_UNFIT,
            f"{sum(lacks.values())} jobs wait that are not for it",
            then=("holdfast job list --state SCHEDULED",),
            lacks=dict(sorted(lacks.items())),
        )
    ]
