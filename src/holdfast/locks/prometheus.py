"""Lock events as Prometheus metrics. Every class has the same ones, from zero on, when it is first seen."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from holdfast.locks.errors import LossReason
from holdfast.locks.policy import LockClass, OnRenewalFailure
from holdfast.locks.runtime import SYSTEM

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

# Waits end at the wait budget, 2 s unless a class says otherwise: there must be buckets on both sides of it.
WAIT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30, 60, 300)
HELD_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)

#: For how long a lag is shown after it was seen.
LAG_SHOWN_S = 60.0


class PrometheusObserver:
    """Counts what happens to locks, by class, never by key. Make one per registry and share it.

    The metrics of `classes` are there at once; those of others from their first event on.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        classes: Iterable[LockClass] = (),
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._metrics = _Metrics(registry or REGISTRY)
        self._runtime = runtime
        self._namespaces: dict[str, _Namespace] = {}
        self._lag = 0.0, 0.0
        self._metrics.loop_lag.set_function(self._shown_lag)
        for lock_class in classes:
            self._namespace(lock_class)

    def acquired(self, lock_class: LockClass, key: str, *, fence: int, waited_s: float) -> None:
        namespace = self._namespace(lock_class)
        namespace.acquired.inc()
        namespace.wait.observe(waited_s)

    def waited(self, lock_class: LockClass, key: str, *, waited_s: float) -> None:
        namespace = self._namespace(lock_class)
        namespace.gave_up.inc()
        namespace.wait.observe(waited_s)

    def renewed(self, lock_class: LockClass, count: int) -> None:
        self._namespace(lock_class).renewed.inc(count)

    def renewal_failed(self, lock_class: LockClass, key: str, *, failures: int, error: str) -> None:
        self._namespace(lock_class).renewal_failed.inc()

    def abandoned(self, lock_class: LockClass, key: str, *, fence: int, reason: LossReason) -> None:
        self._namespace(lock_class).abandoned[lock_class.on_renewal_failure, reason].inc()

    def not_owned(self, lock_class: LockClass, key: str, *, operation: str) -> None:
        self._namespace(lock_class).not_owned[operation].inc()

    def fallback(self, lock_class: LockClass, key: str) -> None:
        self._namespace(lock_class).fallback.inc()

    def released(self, lock_class: LockClass, key: str, *, held_s: float) -> None:
        self._namespace(lock_class).held.observe(held_s)

    def release_skipped(self, lock_class: LockClass, key: str, *, reason: LossReason) -> None:
        self._namespace(lock_class).release_skipped.inc()

    def fence_refused(self, lock_class: LockClass, resource: str) -> None:
        self._namespace(lock_class).fence_refused.inc()

    def loop_lagged(self, lag_s: float) -> None:
        if lag_s >= self._shown_lag():
            self._lag = lag_s, self._runtime.now()

    def policy_changed(self, lock_class: LockClass, *, reason: str, for_s: float | None) -> None:
        self._namespace(lock_class).policy_changes.inc()

    def _namespace(self, lock_class: LockClass) -> _Namespace:
        namespace = self._namespaces.get(lock_class.name)
        if namespace is None:
            # Two threads may both come here; the children they find are the same.
            namespace = self._namespaces[lock_class.name] = _Namespace(self._metrics, lock_class.name)
        return namespace

    def _shown_lag(self) -> float:
        lag_s, seen_at = self._lag
        return lag_s if self._runtime.now() - seen_at < LAG_SHOWN_S else 0.0


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, labelnames=["namespace"], registry=registry)
        own = ["namespace"]
        self.acquired = counter("holdfast_lock_acquired_total", "Leases granted.", own)
        self.wait = histogram(
            "holdfast_lock_wait_seconds", "Wait for a lock, whether or not it was granted.", buckets=WAIT_BUCKETS_S
        )
        self.gave_up = counter("holdfast_lock_wait_gave_up_total", "Waits that ended without the lock.", own)
        self.renewals = counter("holdfast_lock_renewals_total", "Renewals that were tried.", [*own, "result"])
        self.abandoned = counter(
            "holdfast_lock_abandoned_total", "Leases lost under their holder.", [*own, "policy", "reason"]
        )
        self.not_owned = counter(
            "holdfast_lock_not_owned_total", "Renewals and releases of a lease that was no longer ours.", [*own, "op"]
        )
        self.fallback = counter("holdfast_lock_fallback_total", "Locks taken in this process only.", own)
        self.held = histogram("holdfast_lock_held_seconds", "From grant to release.", buckets=HELD_BUCKETS_S)
        self.fence_refused = counter("holdfast_lock_fence_refused_total", "Operations a guard refused as stale.", own)
        self.release_skipped = counter(
            "holdfast_lock_release_skipped_total", "Releases not sent: the lease was lost before.", own
        )
        self.policy_changes = counter("holdfast_lock_policy_changes_total", "Changes of a class at run time.", own)
        self.loop_lag = Gauge(
            "holdfast_loop_lag_seconds", "Longest time the event loop was stuck, of late.", registry=registry
        )


class _Namespace:
    """The metrics of one class with their labels filled in: looking those up costs more than counting."""

    def __init__(self, metrics: _Metrics, name: str) -> None:
        self.acquired = metrics.acquired.labels(name)
        self.wait = metrics.wait.labels(name)
        self.gave_up = metrics.gave_up.labels(name)
        self.renewed = metrics.renewals.labels(name, "renewed")
        self.renewal_failed = metrics.renewals.labels(name, "failed")
        self.abandoned: dict[tuple[str, str], Counter] = {
            (policy, reason): metrics.abandoned.labels(name, policy, reason)
            for policy in OnRenewalFailure
            for reason in LossReason
        }
        self.not_owned = {op: metrics.not_owned.labels(name, op) for op in ("renew", "release")}
        self.fallback = metrics.fallback.labels(name)
        self.held = metrics.held.labels(name)
        self.fence_refused = metrics.fence_refused.labels(name)
        self.release_skipped = metrics.release_skipped.labels(name)
        self.policy_changes = metrics.policy_changes.labels(name)
