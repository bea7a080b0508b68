"""Every metric of the control plane that is counted as it happens: its name, its labels, and what it says.

Base units, and labels that are bounded: topics, phases, states, risks and reasons, never ids. What
has few labels is there from zero on, so that a rate or a ratio over it is never missing a side.
What is read when somebody asks, such as the number of workers, is in `gateway.readings`; what
happens to locks in `locks.prometheus`.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from holdfast.core.freeze import Breadth
from holdfast.core.states import LIVE, Risk

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
PATIENCE_S = (1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600, 7 * 24 * 3600)
"""Of people."""

PHASES = ("dispatched_write", "publish", "rollback_write", "relay")
REFUSED = ("start", "renewal", "progress", "effect", "succeeded", "failed", "cancelled", "handed_back", "timed_out")


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        # One more series for each counter, to say when it began: nobody asks.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry
        self._add_jobs()
        self._add_dispatch()
        self._add_recovery()
        self._add_governed()
        self._add_runs()

    def _add_jobs(self) -> None:
        self.submitted = self._counter("jobs_submitted", "Jobs acknowledged", "topic")
        self.ended = self._counter("jobs_ended", "Jobs that reached a terminal state", "topic", "state")
        self.pruned = self._counter("jobs_pruned", "Jobs that retention has removed")
        self.effects = self._counter("effects", "Rulings on effects, and what became of uncertain ones", "what")
        from_zero(self.effects, ("run", "remembered", "blocked", "unknown", "settled", "refused"))

    def _add_dispatch(self) -> None:
        self.dispatched = self._counter("jobs_dispatched", "Deliveries sent", "topic")
        self.dispatch_waited = self._histogram("dispatch_wait", "From dispatchable to dispatched", SECONDS, "topic")
        self.start_waited = self._histogram("start_wait", "From dispatched to begun", SECONDS, "topic")
        self.attempted = self._histogram("attempt", "From the beginning of an attempt to its end", SECONDS, "topic")
        self.retried = self._counter("dispatch_retries", "Dispatches that failed and come round again", "phase")
        from_zero(self.retried, PHASES)
        self.rolled_back = self._counter("dispatch_rollback", "Publishes that failed and were rolled back", "topic")
        self.rollback_failed = self._counter("dispatch_rollback_failed", "Rollbacks that failed, too", "topic")
        self.refused = self._counter("attempts_refused", "Late results, progress or leases of an older fence", "what")
        from_zero(self.refused, REFUSED)

    def _add_recovery(self) -> None:
        self.recovered = self._counter("jobs_recovered", "What the reconciler put right", "reason")
        self.orphans = self._counter("jobs_orphan_replayed", "Jobs that were dispatchable and lay there")
        self.stale = self._gauge("jobs_stale", "Jobs past their limit, at the last look", "state")
        from_zero(self.stale, LIVE)
        self.blind = self._gauge("blind_window_seconds", "Longest time that a job was nobody's, of late")

    def _add_governed(self) -> None:
        self.approvals_decided = self._counter("approvals_decided", "Approvals that ended", "state")
        self.approvals_refused = self._counter("approvals_refused", "Approvals that did not hold at dispatch", "reason")
        self.approval_waited = self._histogram("approval_wait", "From asking to the end of an approval", PATIENCE_S)
        self.policy_decisions = self._counter("policy_decisions", "Decisions of the policy", "action")
        self.policy_failures = self._counter(
            "policy_failures", "Jobs that the policy could not be asked about, and what they got", "risk", "mode"
        )
        self.fail_open = self._counter("policy_fail_open", "Jobs that ran although nobody could ask the policy", "risk")
        from_zero(self.fail_open, Risk)
        self.policy_unusable = self._counter("policy_unusable", "Versions that this process could not use")
        self.policy_version = self._gauge("policy_version", "The version of the policy that this process uses")
        self.posts_tried = self._counter("webhook_tries", "Tries to deliver a post to a webhook", "outcome")
        self.schedule_ticks = self._counter("schedule_ticks", "Looks at a schedule that was due", "outcome")
        self.frozen = self._gauge("frozen", "Scopes in which nothing is dispatched", "scope")
        from_zero(self.frozen, Breadth)

    def _add_runs(self) -> None:
        self.runs_started = self._counter("runs_started", "Runs acknowledged")
        self.runs_ended = self._counter("runs_ended", "Runs that reached a terminal state", "state")
        self.run_writes_refused = self._counter(
            "run_writes_refused", "Advances of runs that came too late to be written", "reason"
        )
        self.runs_recovered = self._counter("runs_recovered", "What the reconciler of runs put right", "reason")

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"holdfast_{name}", words, labels, registry=self._registry)

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"holdfast_{name}", words, labels, registry=self._registry)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"holdfast_{name}_seconds", words, labels, buckets=buckets, registry=self._registry)


def from_zero(metric: Counter | Gauge, labels: Iterable[str]) -> None:
    for label in labels:
        metric.labels(label)
