"""Every event of the control plane: one call is one log line and its metrics.

Labels are topics, phases, states and reasons, all of them bounded; ids are in log lines only.
Callers invent topics, so only the declared ones and the first few others are labels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

from holdfast import tracing
from holdfast.core.approval import Approval
from holdfast.core.freeze import Breadth
from holdfast.core.job import Job
from holdfast.core.run import Run
from holdfast.core.states import TERMINAL, State
from holdfast.core.topic import Topics
from holdfast.metrics import Metrics

logger = logging.getLogger("holdfast")

UNDECLARED_MAX = 100
"""Topics that are labels although nobody declared them."""
OTHER = "other"
"""The label of all further ones."""

BLIND_SHOWN_S = 60.0
"""A job that was nobody's is found and helped within a second: nobody would see it, were it not shown for longer."""


class _Series(NamedTuple):
    """Everything counted of one topic. Found at once, while each `labels()` costs more than the counting."""

    submitted: Counter
    dispatched: Counter
    waited: Histogram
    start_waited: Histogram
    attempted: Histogram
    ended: dict[State, Counter]
    rolled_back: Counter
    rollback_failed: Counter


class Telemetry:
    def __init__(self, topics: Topics | None = None) -> None:
        self.registry = CollectorRegistry()
        self._metrics = Metrics(self.registry)
        self._blind = 0.0, float("-inf")
        declared = topics.declared if topics else ()
        # A family is no topic: its members are as many as callers like.
        self._of_topic = {topic.name: self._begin(topic.name) for topic in declared if not topic.name.endswith("*")}
        self._topics_max = len(self._of_topic) + UNDECLARED_MAX

    def job_submitted(self, job: Job) -> None:
        self._of(job).submitted.inc()
        self._log(logging.DEBUG, "job.submitted", job)

    def job_dispatched(self, job: Job, *, waited_s: float) -> None:
        series = self._of(job)
        series.dispatched.inc()
        series.waited.observe(max(0.0, waited_s))
        tracing.tell(
            f"dispatch {job.topic}",
            trace=job.trace,
            lasted_s=max(0.0, waited_s),
            job_id=job.id,
            fence=job.fence,
            worker=job.worker,
        )
        self._log(logging.DEBUG, "job.dispatched", job, worker=job.worker)

    def dispatch_deferred(self, job: Job, *, reason: str) -> None:
        self._log(logging.DEBUG, "dispatch.deferred", job, reason=reason)

    def dispatch_retried(self, job: Job, *, phase: str, error: Exception) -> None:
        self._metrics.retried.labels(phase).inc()
        self._log(logging.WARNING, "dispatch.retried", job, phase=phase, error=str(error))

    def relay_failed(self, *, error: Exception) -> None:
        self._metrics.retried.labels("relay").inc()
        logger.warning("relay.failed error=%s", error, extra={"event": "relay.failed", "error": str(error)})

    def rolled_back(self, job: Job, *, error: Exception) -> None:
        self._metrics.retried.labels("publish").inc()
        self._of(job).rolled_back.inc()
        self._log(logging.WARNING, "dispatch.rolled_back", job, error=str(error))

    def rollback_failed(self, job: Job, *, error: Exception) -> None:
        self._metrics.retried.labels("rollback_write").inc()
        self._of(job).rollback_failed.inc()
        self._log(logging.ERROR, "dispatch.rollback_failed", job, error=str(error))

    def approval_decided(self, approval: Approval, *, waited_s: float) -> None:
        self._metrics.approvals_decided.labels(approval.state).inc()
        self._metrics.approval_waited.observe(max(0.0, waited_s))
        values = {"approval": approval.id, "job_id": approval.job_id, "state": approval.state}
        logger.info("approval.decided", extra={"event": "approval.decided", **values})

    def approval_refused(self, job: Job, *, reason: str) -> None:
        """A job was about to be dispatched on an approval that is no good any more."""
        self._metrics.approvals_refused.labels(reason).inc()
        self._log(logging.WARNING, "approval.refused", job, reason=reason, approval=job.approval)

    def policy_used(self, version: int) -> None:
        """From now on this process decides by this version."""
        self._metrics.policy_version.set(version)
        logger.info("policy.used", extra={"event": "policy.used", "version": version})

    def policy_unusable(self, version: int, *, error: Exception) -> None:
        """The active version cannot be used here; the one before stays."""
        self._metrics.policy_unusable.inc()
        told = {"event": "policy.unusable", "version": version, "error": str(error)}
        logger.error("policy.unusable", extra=told)

    def policy_decided(self, job: Job, *, action: str, failed: str) -> None:
        self._metrics.policy_decisions.labels(action).inc()
        if failed:
            self._metrics.policy_failures.labels(job.risk, failed).inc()
            if failed == "open":
                self._metrics.fail_open.labels(job.risk).inc()
            self._log(logging.WARNING, "policy.failed", job, mode=failed, risk=job.risk)

    def post_tried(self, outcome: str) -> None:
        """`arrived`, `again`, `give_up`, `disable` (see `core.webhook.Verdict`), or `unwritten`: the store was away."""
        self._metrics.posts_tried.labels(outcome).inc()

    def schedule_ticked(self, outcome: str) -> None:
        """`fired`, `skipped`, `failed`, or `deferred` because it is frozen or its tenant is full."""
        self._metrics.schedule_ticks.labels(outcome).inc()

    def freezes_hold(self, counts: Mapping[str, int]) -> None:
        """How many scopes of each kind are frozen."""
        for breadth in Breadth:
            self._metrics.frozen.labels(breadth).set(counts.get(breadth, 0))

    def run_started(self, run: Run) -> None:
        self._metrics.runs_started.inc()
        self._log_run(logging.DEBUG, "run.started", run.id, workflow=run.workflow)

    def run_ended(self, run: Run) -> None:
        self._metrics.runs_ended.labels(run.state).inc()
        self._log_run(logging.DEBUG, "run.ended", run.id, state=run.state)

    def run_write_refused(self, run: str, *, reason: str) -> None:
        """`stale-fence`: under a lock that was somebody else's by then; `moved-on`: on an older version."""
        self._metrics.run_writes_refused.labels(reason).inc()
        self._log_run(logging.INFO, "run.write_refused", run, reason=reason)

    def run_recovered(self, run: Run, *, reason: str) -> None:
        self._metrics.runs_recovered.labels(reason).inc()
        self._log_run(logging.WARNING, "run.recovered", run.id, reason=reason)

    def job_started(self, job: Job, *, waited_s: float) -> None:
        """So long after it was dispatched."""
        self._of(job).start_waited.observe(max(0.0, waited_s))
        self._log(logging.DEBUG, "job.started", job, worker=job.worker)

    def job_ended(self, job: Job) -> None:
        """However it came to its terminal state."""
        self._of(job).ended[job.state].inc()

    def attempt_ended(self, before: Job, after: Job) -> None:
        self._of(after).attempted.observe(max(0.0, after.since - before.since))
        self._log(logging.DEBUG, "attempt.ended", after, worker=before.worker)

    def attempt_refused(self, job: Job, *, what: str) -> None:
        self._metrics.refused.labels(what).inc()
        self._log(logging.WARNING, "attempt.refused", job, what=what)

    def job_recovered(self, before: Job, after: Job, *, reason: str) -> None:
        self._metrics.recovered.labels(reason).inc()
        if reason == "approval-expired":  # the timer of approvals was not the first
            self._metrics.approvals_decided.labels("expired").inc()
            self._metrics.approval_waited.observe(max(0.0, after.since - before.since))
        self._log(logging.WARNING, "job.recovered", after, reason=reason, was=before.state)

    def orphans_replayed(self, count: int) -> None:
        self._metrics.orphans.inc(count)

    def jobs_pruned(self, count: int) -> None:
        self._metrics.pruned.inc(count)

    def looked(self, stale: Mapping[State, int], *, blind_s: float | None = None, now: float = 0.0) -> None:
        """What a recovering loop found at its tick; nothing, where the tick was another replica's. `blind_s`:
        for how long the oldest of these jobs had been nobody's."""
        for state, count in stale.items():
            self._metrics.stale.labels(state).set(count)
        if blind_s is not None:
            shown, since = self._blind
            if blind_s >= shown or now - since >= BLIND_SHOWN_S:
                self._blind = blind_s, now
                self._metrics.blind.set(blind_s)

    def effect_told(self, what: str) -> None:
        """`run`, `remembered`, `blocked`: how an attempt may go about an effect; or `unknown`, `settled`, `refused`:
        what became of one that was left in the middle."""
        self._metrics.effects.labels(what).inc()

    def _of(self, job: Job) -> _Series:
        return self._of_topic.get(job.topic) or self._admit(job.topic)

    def _admit(self, topic: str) -> _Series:
        label = topic if len(self._of_topic) < self._topics_max else OTHER
        if label not in self._of_topic:
            self._of_topic[label] = self._begin(label)
        return self._of_topic[label]

    def _begin(self, topic: str) -> _Series:
        """All at zero, so that a rate or a ratio over them is never missing a side."""
        metrics = self._metrics
        return _Series(
            submitted=metrics.submitted.labels(topic),
            dispatched=metrics.dispatched.labels(topic),
            waited=metrics.dispatch_waited.labels(topic),
            start_waited=metrics.start_waited.labels(topic),
            attempted=metrics.attempted.labels(topic),
            ended={state: metrics.ended.labels(topic, state) for state in sorted(TERMINAL)},
            rolled_back=metrics.rolled_back.labels(topic),
            rollback_failed=metrics.rollback_failed.labels(topic),
        )

    def _log_run(self, level: int, event: str, run: str, **values: object) -> None:
        if logger.isEnabledFor(level):
            text = " ".join(f"{name}={value}" for name, value in values.items())
            logger.log(level, "%s run=%s %s", event, run, text, extra={"event": event, "run": run, **values})

    def _log(self, level: int, event: str, job: Job, **values: object) -> None:
        if logger.isEnabledFor(level):
            values = {"job_id": job.id, "topic": job.topic, "state": job.state, "fence": job.fence, **values}
            if job.trace:
                values["trace"] = tracing.trace_id(job.trace)
            text = " ".join(f"{name}={value}" for name, value in values.items())
            logger.log(level, "%s %s", event, text, extra={"event": event, **values})
