"""Every event of the control plane: one call is one log line and its metrics.

Labels are topics, phases, states and reasons, all of them bounded; ids are in log lines only.
Callers invent topics, so only the declared ones and the first few others are labels.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.core.approval import Approval
from holdfast.core.job import Job
from holdfast.core.run import Run
from holdfast.core.states import TERMINAL, State
from holdfast.core.topic import Topics

logger = logging.getLogger("holdfast")

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

PATIENCE_S = (1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600, 7 * 24 * 3600)
"""Of people."""

UNDECLARED_MAX = 100
"""Topics that are labels although nobody declared them."""
OTHER = "other"
"""The label of all further ones."""


class _Series(NamedTuple):
    """Everything counted of one topic. Found at once, while each `labels()` costs more than the counting."""

    submitted: Counter
    dispatched: Counter
    waited: Histogram
    ended: dict[State, Counter]
    rolled_back: Counter
    rollback_failed: Counter


class Telemetry:
    def __init__(self, topics: Topics | None = None) -> None:
        self.registry = CollectorRegistry()
        self._submitted = self._counter("jobs_submitted", "Jobs acknowledged", "topic")
        self._dispatched = self._counter("jobs_dispatched", "Deliveries sent", "topic")
        self._ended = self._counter("jobs_ended", "Jobs that reached a terminal state", "topic", "state")
        self._retried = self._counter("dispatch_retries", "Dispatches that failed and come round again", "phase")
        self._rolled_back = self._counter("dispatch_rollback", "Publishes that failed and were rolled back", "topic")
        self._rollback_failed = self._counter("dispatch_rollback_failed", "Rollbacks that failed, too", "topic")
        self._refused = self._counter("attempts_refused", "Late results, progress or leases of an older fence", "what")
        self._recovered = self._counter("jobs_recovered", "What the reconciler put right", "reason")
        self._orphans = self._counter("jobs_orphan_replayed", "Jobs whose wake-up had been lost")
        self._pruned = self._counter("jobs_pruned", "Jobs that retention has removed")
        self._waited = Histogram(
            "holdfast_dispatch_wait_seconds",
            "From dispatchable to dispatched",
            ["topic"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._stale = Gauge(
            "holdfast_jobs_stale", "Jobs past their limit, at the last look", ["state"], registry=self.registry
        )
        self._blind = Gauge(
            "holdfast_blind_window_seconds", "How long the oldest unprotected job has been so", registry=self.registry
        )
        self._add_governed()
        declared = topics.declared if topics else ()
        # A family is no topic: its members are as many as callers like.
        self._of_topic = {topic.name: self._begin(topic.name) for topic in declared if not topic.name.endswith("*")}
        self._topics_max = len(self._of_topic) + UNDECLARED_MAX

    def _add_governed(self) -> None:
        """What is not about one job alone: policy, approvals, runs, schedules, webhooks."""
        self._approvals_decided = self._counter("approvals_decided", "Approvals that ended", "state")
        self._approvals_refused = self._counter(
            "approvals_refused", "Approvals that did not hold at dispatch", "reason"
        )
        self._policy_decisions = self._counter("policy_decisions", "Decisions of the policy", "action")
        self._policy_failures = self._counter(
            "policy_failures", "Jobs that the policy could not be asked about, and what they got", "risk", "mode"
        )
        self._policy_unusable = self._counter("policy_unusable", "Versions that this process could not use")
        self._posts_tried = self._counter("webhook_tries", "Tries to deliver a post to a webhook", "outcome")
        self._schedule_ticks = self._counter("schedule_ticks", "Looks at a schedule that was due", "outcome")
        self._runs_started = self._counter("runs_started", "Runs acknowledged")
        self._runs_ended = self._counter("runs_ended", "Runs that reached a terminal state", "state")
        self._run_writes_refused = self._counter(
            "run_writes_refused", "Advances of runs that came too late to be written", "reason"
        )
        self._runs_recovered = self._counter("runs_recovered", "What the reconciler of runs put right", "reason")
        self._approval_waited = Histogram(
            "holdfast_approval_wait_seconds",
            "From asking to the end of an approval",
            buckets=PATIENCE_S,
            registry=self.registry,
        )
        self._policy_version = Gauge(
            "holdfast_policy_version", "The version of the policy that this process uses", registry=self.registry
        )

    def job_submitted(self, job: Job) -> None:
        self._of(job).submitted.inc()
        self._log(logging.DEBUG, "job.submitted", job)

    def job_dispatched(self, job: Job, *, waited_s: float) -> None:
        series = self._of(job)
        series.dispatched.inc()
        series.waited.observe(max(0.0, waited_s))
        self._log(logging.DEBUG, "job.dispatched", job, worker=job.worker)

    def dispatch_deferred(self, job: Job, *, reason: str) -> None:
        self._log(logging.DEBUG, "dispatch.deferred", job, reason=reason)

    def dispatch_retried(self, job: Job, *, phase: str, error: Exception) -> None:
        self._retried.labels(phase).inc()
        self._log(logging.WARNING, "dispatch.retried", job, phase=phase, error=str(error))

    def rolled_back(self, job: Job) -> None:
        self._retried.labels("publish").inc()
        self._of(job).rolled_back.inc()
        self._log(logging.WARNING, "dispatch.rolled_back", job)

    def rollback_failed(self, job: Job, *, error: Exception) -> None:
        self._retried.labels("rollback_write").inc()
        self._of(job).rollback_failed.inc()
        self._log(logging.ERROR, "dispatch.rollback_failed", job, error=str(error))

    def approval_decided(self, approval: Approval, *, waited_s: float) -> None:
        self._approvals_decided.labels(approval.state).inc()
        self._approval_waited.observe(max(0.0, waited_s))
        values = {"approval": approval.id, "job_id": approval.job_id, "state": approval.state}
        logger.info("approval.decided", extra={"event": "approval.decided", **values})

    def approval_refused(self, job: Job, *, reason: str) -> None:
        """A job was about to be dispatched on an approval that is no good any more."""
        self._approvals_refused.labels(reason).inc()
        self._log(logging.WARNING, "approval.refused", job, reason=reason, approval=job.approval)

    def policy_used(self, version: int) -> None:
        """From now on this process decides by this version."""
        self._policy_version.set(version)
        logger.info("policy.used", extra={"event": "policy.used", "version": version})

    def policy_unusable(self, version: int, *, error: Exception) -> None:
        """The active version cannot be used here; the one before stays."""
        self._policy_unusable.inc()
        told = {"event": "policy.unusable", "version": version, "error": str(error)}
        logger.error("policy.unusable", extra=told)

    def policy_decided(self, job: Job, *, action: str, failed: str) -> None:
        self._policy_decisions.labels(action).inc()
        if failed:
            self._policy_failures.labels(job.risk, failed).inc()
            self._log(logging.WARNING, "policy.failed", job, mode=failed, risk=job.risk)

    def post_tried(self, outcome: str) -> None:
        """`arrived`, `again`, `give_up`, `disable` (see `core.webhook.Verdict`), or `unwritten`: the store was away."""
        self._posts_tried.labels(outcome).inc()

    def schedule_ticked(self, outcome: str) -> None:
        """`fired`, `skipped`, `failed`, or `deferred` because its tenant is full."""
        self._schedule_ticks.labels(outcome).inc()

    def run_started(self, run: Run) -> None:
        self._runs_started.inc()
        self._log_run(logging.DEBUG, "run.started", run.id, workflow=run.workflow)

    def run_ended(self, run: Run) -> None:
        self._runs_ended.labels(run.state).inc()
        self._log_run(logging.DEBUG, "run.ended", run.id, state=run.state)

    def run_write_refused(self, run: str, *, reason: str) -> None:
        """`stale-fence`: under a lock that was somebody else's by then; `moved-on`: on an older version."""
        self._run_writes_refused.labels(reason).inc()
        self._log_run(logging.INFO, "run.write_refused", run, reason=reason)

    def run_recovered(self, run: Run, *, reason: str) -> None:
        self._runs_recovered.labels(reason).inc()
        self._log_run(logging.WARNING, "run.recovered", run.id, reason=reason)

    def job_started(self, job: Job) -> None:
        self._log(logging.DEBUG, "job.started", job, worker=job.worker)

    def attempt_ended(self, before: Job, after: Job) -> None:
        if after.is_terminal:
            self._of(after).ended[after.state].inc()
        self._log(logging.DEBUG, "attempt.ended", after, worker=before.worker)

    def attempt_refused(self, job: Job, *, what: str) -> None:
        self._refused.labels(what).inc()
        self._log(logging.WARNING, "attempt.refused", job, what=what)

    def job_recovered(self, before: Job, after: Job, *, reason: str) -> None:
        self._recovered.labels(reason).inc()
        if after.is_terminal:
            self._of(after).ended[after.state].inc()
        self._log(logging.WARNING, "job.recovered", after, reason=reason, was=before.state)

    def orphans_replayed(self, count: int) -> None:
        self._orphans.inc(count)

    def jobs_pruned(self, count: int) -> None:
        self._pruned.inc(count)

    def looked(self, stale: dict[str, int], *, blind_s: float) -> None:
        """What a reconciler found at its tick."""
        for state, count in stale.items():
            self._stale.labels(state).set(count)
        self._blind.set(blind_s)

    def _of(self, job: Job) -> _Series:
        return self._of_topic.get(job.topic) or self._admit(job.topic)

    def _admit(self, topic: str) -> _Series:
        label = topic if len(self._of_topic) < self._topics_max else OTHER
        if label not in self._of_topic:
            self._of_topic[label] = self._begin(label)
        return self._of_topic[label]

    def _begin(self, topic: str) -> _Series:
        """All at zero, so that a rate or a ratio over them is never missing a side."""
        return _Series(
            submitted=self._submitted.labels(topic),
            dispatched=self._dispatched.labels(topic),
            waited=self._waited.labels(topic),
            ended={state: self._ended.labels(topic, state) for state in sorted(TERMINAL)},
            rolled_back=self._rolled_back.labels(topic),
            rollback_failed=self._rollback_failed.labels(topic),
        )

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"holdfast_{name}", words, labels, registry=self.registry)

    def _log_run(self, level: int, event: str, run: str, **values: object) -> None:
        if logger.isEnabledFor(level):
            text = " ".join(f"{name}={value}" for name, value in values.items())
            logger.log(level, "%s run=%s %s", event, run, text, extra={"event": event, "run": run, **values})

    def _log(self, level: int, event: str, job: Job, **values: object) -> None:
        if logger.isEnabledFor(level):
            values = {"job_id": job.id, "topic": job.topic, "state": job.state, "fence": job.fence, **values}
            text = " ".join(f"{name}={value}" for name, value in values.items())
            logger.log(level, "%s %s", event, text, extra={"event": event, **values})
