"""Why a scheduled job is not dispatched: its own time, its turn, a limit, or the workers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.core.freeze import Freeze
from holdfast.core.job import PARKED_UNTIL, Job
from holdfast.core.placement import REQUIRE, unfit
from holdfast.core.recovery import SCHEDULED_STALE_S
from holdfast.core.share import limit_of
from holdfast.core.states import State
from holdfast.core.why import Finding, Reason, Weight, finding
from holdfast.core.why_facts import JobFacts

_NEAREST_LAST = (
    "other-topics",
    "worker-silent",
    "worker-stuck",
    "worker-draining",
    "worker-unable",
    "labels-missing",
    "worker-full",
)
"""What a worker of the pool lacks. Whoever fails at a later one would have been the one to take it."""


def why_scheduled(facts: JobFacts) -> list[Finding]:
    job = facts.job
    frozen = [] if facts.freeze is None else [_frozen(facts.freeze)]
    if job.not_before >= PARKED_UNTIL:
        return [*frozen, _parked(facts)]
    found = [*frozen, *_own_time(facts), *_session(facts), *_limits(facts)]
    nearest = _nearest(facts)
    if nearest is not None:
        found.append(nearest)
    elif not found:
        found.append(_ready(facts))
    if nearest is not None and nearest.reason is Reason.WORKERS_FULL and facts.ahead is not None and facts.ahead.jobs:
        found.append(_behind(facts))
    return found


def _frozen(freeze: Freeze) -> Finding:
    said = f"{freeze.by} has" if freeze.by else "somebody has"
    return finding(
        Reason.FROZEN,
        f"{said} frozen {freeze.scope}: {freeze.reason}",
        since=freeze.since,
        until=freeze.until,
        who=freeze.by or "whoever froze it",
        then=("holdfast freeze list", f"holdfast unfreeze --scope {freeze.scope} --reason TEXT"),
        scope=freeze.scope,
        by=freeze.by,
        reason=freeze.reason,
    )


def _parked(facts: JobFacts) -> Finding:
    keys = ", ".join(effect.key for effect in facts.effects) or "something"
    return effect_unknown(
        facts,
        f"an earlier attempt may or may not have done {keys}: it is not tried again before a person has found out",
    )


def effect_unknown(facts: JobFacts, summary: str, *, weight: Weight | None = None) -> Finding:
    job = facts.job
    then = [f"holdfast effect show {effect.job_id} {effect.key}" for effect in facts.effects[:1]]
    then += [
        f"holdfast effect resolve {effect.job_id} {effect.key} --state committed --reason TEXT"
        for effect in facts.effects[:1]
    ]
    return finding(
        Reason.EFFECT_UNKNOWN,
        summary,
        weight=weight,
        since=job.since,
        who="whoever can find out at the other side",
        then=then or [f"holdfast effect list --job {job.id}"],
        effects=[effect.key for effect in facts.effects],
    )


def _own_time(facts: JobFacts) -> list[Finding]:
    """Its time has not come, or the bus did not take it at the last try."""
    job, left = facts.job, facts.job.not_before - facts.now
    if facts.last_kind == "dispatch.rolled_back":
        return [
            finding(
                Reason.PUBLISH_FAILED,
                "the bus did not take its delivery; it is tried again",
                since=job.since,
                until=job.not_before if left > 0 else None,
                who="whoever runs the bus",
                then=("holdfast doctor",),
                error=facts.last_code,
                failures=job.retries.get("publish"),
            )
        ]
    if left <= 0:
        return []
    if facts.last_kind == "job.retried":
        return [
            finding(
                Reason.BACKOFF,
                f"attempt {job.attempts} of {job.max_attempts} failed ({facts.last_code or 'no code'}); "
                f"the next one begins in {left:.0f} s at the earliest",
                since=job.since,
                until=job.not_before,
                code=facts.last_code,
                attempts=f"{job.attempts} of {job.max_attempts}",
            )
        ]
    # Nobody can ask for a delay of a run's job: where it has one, a rule has given it.
    if job.run and job.schedulings == 0:
        return [_throttled(job, left)]
    return [
        finding(
            Reason.DELAYED,
            f"it is not to begin before its time, in {left:.0f} s",
            since=job.since,
            until=job.not_before,
        )
    ]


def _throttled(job: Job, left: float) -> Finding:
    decision = job.decision or {}
    return finding(
        Reason.THROTTLED,
        f"rule {decision.get('rule', '')} of the policy lets no more through now; its turn comes in {left:.0f} s",
        since=job.since,
        until=job.not_before,
        who="whoever publishes the policy",
        then=("holdfast policy show",),
        rule=decision.get("rule"),
        policy=decision.get("policy"),
    )


def _session(facts: JobFacts) -> list[Finding]:
    """Jobs of one session run one after the other: what was begun first, then the oldest."""
    job = facts.job
    others = [other for other in facts.session if other.id != job.id]
    at_work = [other for other in others if other.state in (State.DISPATCHED, State.RUNNING)]
    begun = [other for other in others if other.attempts and not job.attempts]
    older = [other for other in others if other.id < job.id and not job.attempts]
    ahead = next(iter([*at_work, *begun, *older]), None)
    if ahead is None:
        return []
    return [
        finding(
            Reason.SESSION_BUSY,
            f"job {ahead.id} of the same session ({ahead.state}) comes first",
            since=job.ready_since,
            then=(f"holdfast why job {ahead.id}",),
            session=job.session,
            behind=ahead.id,
            ahead=len({other.id for other in [*at_work, *begun, *older]}),
        )
    ]


def _limits(facts: JobFacts) -> list[Finding]:
    job, found = facts.job, []
    of_tenant, of_topic, of_key = Counter[str](), Counter[str](), Counter[str]()
    for (tenant, topic, key), count in facts.active.items():
        of_tenant[tenant] += count
        of_topic[topic] += count
        of_key[key] += count
    since = job.ready_since
    most = facts.quota.running_max
    if most and of_tenant[job.tenant] >= most:
        found.append(
            finding(
                Reason.TENANT_AT_LIMIT,
                f"the tenant has {of_tenant[job.tenant]} jobs at work, and may have {most}",
                since=since,
                who="whoever sets the limits of tenants",
                then=("holdfast job list --state RUNNING",),
                running=of_tenant[job.tenant],
                running_max=most,
            )
        )
    most = facts.topic.running_max
    if most and of_topic[job.topic] >= most:
        found.append(
            finding(
                Reason.TOPIC_AT_LIMIT,
                f"topic {job.topic} has {of_topic[job.topic]} jobs at work, and may have {most}",
                since=since,
                who="whoever sets the limits of topics",
                then=(f"holdfast job list --topic {job.topic} --state RUNNING",),
                running=of_topic[job.topic],
                running_max=most,
            )
        )
    limit = limit_of(job)
    if limit is not None and of_key[limit[0]] >= limit[1]:
        found.append(_rule_at_limit(job, running=of_key[limit[0]], most=limit[1]))
    return found


def _rule_at_limit(job: Job, *, running: int, most: int) -> Finding:
    decision = job.decision or {}
    return finding(
        Reason.RULE_AT_LIMIT,
        f"rule {decision.get('rule', '')} of the policy lets {most} of these work at once, and {running} do",
        since=job.ready_since,
        who="whoever publishes the policy",
        then=("holdfast policy show",),
        rule=decision.get("rule"),
        policy=decision.get("policy"),
        running=running,
        running_max=most,
    )


def _nearest(facts: JobFacts) -> Finding | None:
    """What keeps the worker that would be nearest to taking it from doing so; None: somebody can take it."""
    job = facts.job
    lacks = {view.id: unfit(job, job.pool, view, alive_since=facts.alive_since) for view in facts.workers}
    if None in lacks.values():
        return None
    here = {worker: lack for worker, lack in lacks.items() if lack in _NEAREST_LAST[1:]}
    if not here:
        return _nobody(facts)
    nearest = max(here.values(), key=lambda lack: _NEAREST_LAST.index(lack or ""))
    return _all_lack(facts, nearest or "", sorted(worker for worker, lack in here.items() if lack == nearest))


def _all_lack(facts: JobFacts, lack: str, workers: list[str]) -> Finding:
    """The workers of its pool that know its topic have this in common."""
    job, names = facts.job, ", ".join(workers[:3])
    since = job.ready_since
    runner = f"whoever runs the workers of pool {job.pool}"
    known: dict[str, Any] = {"workers": workers[:10], "number": len(workers), "pool": job.pool}
    look = "holdfast worker list"
    match lack:
        case "worker-silent":
            seen = max(view.last_seen for view in facts.workers if view.id in workers)
            since = since if seen == float("-inf") else seen
            summary = f"of the workers that could take it none is heard of: {names}"
            return finding(Reason.WORKERS_SILENT, summary, since=since, who=runner, then=(look,), **known)
        case "worker-stuck":
            summary = f"the workers that could take it live, and do not take what was sent to them: {names}"
            who, then = f"{runner}: restart them", (look, f"holdfast why worker {workers[0]}")
            return finding(Reason.WORKER_TAKES_NONE, summary, since=since, who=who, then=then, **known)
        case "worker-draining":
            start = f"holdfast worker run MODULE:WORKER --pool {job.pool}"
            summary = f"every worker that could take it is draining: {names}"
            who = f"{runner}: start new ones"
            return finding(Reason.WORKERS_DRAINING, summary, since=since, who=who, then=(look, start), **known)
        case "worker-unable":
            summary = f"the workers that could take it say that they can begin nothing now: {names}"
            who, then = f"{runner}: their logs say what to do", (look, f"holdfast why worker {workers[0]}")
            return finding(Reason.WORKERS_UNABLE, summary, since=since, who=who, then=then, **known)
        case "labels-missing":
            wanted = {k.removeprefix(REQUIRE): v for k, v in job.labels.items() if k.startswith(REQUIRE)}
            summary = "no worker has the labels it requires: " + ", ".join(
                f"{k}={v}" for k, v in sorted(wanted.items())
            )
            who, then = f"{runner}, or whoever submitted it", (look, f"holdfast job get {job.id}")
            return finding(Reason.LABELS_MISMATCH, summary, since=since, who=who, then=then, requires=wanted, **known)
        case _:
            summary = f"every worker that could take it has its hands full: {names}"
            who = f"{runner}: more of them, or more slots"
            return finding(Reason.WORKERS_FULL, summary, since=since, who=who, then=(look,), **known)


def _nobody(facts: JobFacts) -> Finding:
    job = facts.job
    elsewhere = sorted(
        {
            view.pool
            for view in facts.workers
            if view.pool != job.pool
            and unfit(job, view.pool, view, alive_since=float("-inf")) not in ("other-topics", "other-pool")
        }
    )
    since, start = job.ready_since, f"holdfast worker run MODULE:WORKER --pool {job.pool}"
    if elsewhere:
        return finding(
            Reason.POOL_MISMATCH,
            f"topic {job.topic} goes to pool {job.pool}, but the workers that know it are in {', '.join(elsewhere)}",
            since=since,
            who="whoever declares the topics, or runs the workers",
            then=("holdfast worker list", start),
            pool=job.pool,
            workers_in=elsewhere,
        )
    return finding(
        Reason.NO_WORKER,
        f"no worker of pool {job.pool} takes topic {job.topic}",
        since=since,
        who=f"whoever runs the workers of pool {job.pool}",
        then=("holdfast worker list", start),
        pool=job.pool,
        topic=job.topic,
        workers=len(facts.workers),
    )


def _behind(facts: JobFacts) -> Finding:
    ahead = facts.ahead
    assert ahead is not None
    more = "at least " if ahead.more else ""
    return finding(
        Reason.BEHIND_OTHERS,
        f"{more}{ahead.jobs} jobs come before it: {ahead.urgent} of a higher priority, {ahead.own} of its own tenant; "
        "tenants take turns",
        since=facts.job.ready_since,
        who=f"whoever runs the workers of pool {facts.job.pool}: more of them, or more slots",
        then=("holdfast worker list", "holdfast top --once"),
        ahead=ahead.jobs,
        own=ahead.own,
        urgent=ahead.urgent,
        priority=facts.job.priority,
    )


def _ready(facts: JobFacts) -> Finding:
    """Nothing stands in its way: then whoever should dispatch it is to blame, if that takes long."""
    job, since = facts.job, facts.job.ready_since
    if facts.lock is not None:
        return finding(
            Reason.DISPATCH_LOCKED,
            f"{facts.lock.holder} is dispatching it, or died at it: its lock is held for "
            f"{facts.lock.remaining_ms / 1000:.0f} s yet",
            since=since,
            until=facts.now + facts.lock.remaining_ms / 1000,
            who="nobody, if the scheduler lives",
            then=(f"holdfast why lock {facts.lock.key}",),
            holder=facts.lock.holder,
            fence=facts.lock.fence,
        )
    if facts.now - since >= SCHEDULED_STALE_S:
        return finding(
            Reason.NOBODY_DISPATCHES,
            f"a worker could take it, and nobody has dispatched it for {facts.now - since:.0f} s: "
            "no scheduler is at work, or the store does not take its writes",
            since=since,
            who="whoever runs the plane: start a scheduler, or look into the log of the one that runs",
            then=("holdfast doctor", f"holdfast job events {job.id}"),
            retries=job.retries,
        )
    return finding(Reason.READY, "nothing stands in its way: it is dispatched at the next look", since=since)
