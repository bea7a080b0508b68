"""What observers are told: real locks on real stores, read back from the registry and the log."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from harness import Backend, eventually
from prometheus_client import CollectorRegistry

from holdfast.locks import LeaseLost, LockBusy, LockClass, Locks, NotOwned, Observer, Observers, StaleFence
from holdfast.locks.prometheus import LAG_SHOWN_S, PrometheusObserver
from holdfast.locks.runtime import SystemRuntime

METRICS_PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
LONG = LockClass("long", ttl=30, wait=0.05)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def observer(registry: CollectorRegistry) -> Observer:
    return PrometheusObserver(registry)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db"


def value(registry: CollectorRegistry, name: str, namespace: str, **labels: str) -> float:
    found = registry.get_sample_value(f"holdfast_lock_{name}", {"namespace": namespace, **labels})
    assert found is not None, f"no such series: {name} {namespace} {labels}"
    return found


def short_lived(backend: Backend, name: str, *, on_renewal_failure: str = "fence") -> LockClass:
    return LockClass(name, ttl=max(1.5, 2 * backend.ttl_ms / 1000), on_renewal_failure=on_renewal_failure)


@contextmanager
def stalled(backend: Backend) -> Iterator[None]:
    """The store stops answering: its server is stopped, or another program keeps the file locked."""
    if backend.name == "sqlite":
        blocker = apsw.Connection(backend.url.removeprefix("sqlite:///"))
        blocker.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            blocker.close()
    elif backend.server is None:
        pytest.skip("a server that is not ours cannot be stopped")
    else:
        backend.server.pause()
        try:
            yield
        finally:
            backend.server.resume()


async def test_grants_waits_and_holds_are_counted(
    backend: Backend, registry: CollectorRegistry, observer: Observer
) -> None:
    async with Locks(backend.url, prefix=backend.prefix, observer=observer) as locks:
        for _ in range(3):
            async with locks.hold(LONG, "1"):
                await asyncio.sleep(0.02)

    assert value(registry, "acquired_total", "long") == 3
    assert value(registry, "wait_seconds_count", "long") == 3
    assert value(registry, "held_seconds_count", "long") == 3
    assert value(registry, "held_seconds_sum", "long") >= 0.06
    assert value(registry, "wait_gave_up_total", "long") == 0


async def test_a_wait_that_was_given_up_is_counted_and_measured(
    backend: Backend, registry: CollectorRegistry, observer: Observer
) -> None:
    async with (
        Locks(backend.url, prefix=backend.prefix) as holding,
        Locks(backend.url, prefix=backend.prefix, observer=observer) as waiting,
        holding.hold(LONG, "1"),
    ):
        with pytest.raises(LockBusy):
            await waiting.acquire(LONG, "1")

    assert value(registry, "wait_gave_up_total", "long") == 1
    assert value(registry, "acquired_total", "long") == 0
    assert value(registry, "wait_seconds_count", "long") == 1
    assert value(registry, "wait_seconds_sum", "long") >= LONG.wait


async def test_renewals_are_counted(backend: Backend, registry: CollectorRegistry, observer: Observer) -> None:
    # Soon, and with all the time that a try may take: none fails because the machine is slow.
    renewed = LockClass("renewed", ttl=30, renew_every=0.2)
    async with Locks(backend.url, prefix=backend.prefix, observer=observer) as locks, locks.hold(renewed, "1"):

        async def renewals() -> bool:
            return value(registry, "renewals_total", "renewed", result="renewed") >= 1

        await eventually(renewals)

    assert value(registry, "renewals_total", "renewed", result="failed") == 0


async def test_a_lease_abandoned_in_an_outage_is_counted_by_policy_and_reason(
    backend: Backend, registry: CollectorRegistry, observer: Observer
) -> None:
    fenced = short_lived(backend, "fenced")
    carried_on = short_lived(backend, "carried.on", on_renewal_failure="continue")
    async with Locks(backend.url, prefix=backend.prefix, observer=observer) as locks:
        suspect = await locks.acquire(carried_on, "1")
        entered = asyncio.Event()

        async def work() -> None:
            async with locks.hold(fenced, "1"):
                entered.set()
                await asyncio.sleep(10)

        async def is_suspect() -> bool:
            return suspect.suspect

        working = asyncio.create_task(work())
        await entered.wait()
        with stalled(backend):
            with pytest.raises(LeaseLost):
                await working
            await eventually(is_suspect)  # while the outage lasts: a renewal afterwards clears it

    assert value(registry, "abandoned_total", "fenced", policy="fence", reason="unreachable") == 1
    assert value(registry, "renewals_total", "fenced", result="failed") >= 1
    assert value(registry, "release_skipped_total", "fenced") == 1
    assert value(registry, "held_seconds_count", "fenced") == 0
    assert value(registry, "abandoned_total", "carried.on", policy="continue", reason="unreachable") == 1


async def test_an_eviction_found_by_a_renewal_is_counted(
    backend: Backend, registry: CollectorRegistry, observer: Observer
) -> None:
    evicted = short_lived(backend, "evicted")
    operator = backend.open()
    await operator.open()
    async with Locks(backend.url, prefix=backend.prefix, observer=observer) as locks:
        with pytest.raises(LeaseLost):
            async with locks.hold(evicted, "1") as lease:
                assert await operator.evict(lease.key, lease.fence, reason="test")
                await asyncio.sleep(10)
    await operator.close()

    assert value(registry, "not_owned_total", "evicted", op="renew") == 1
    assert value(registry, "abandoned_total", "evicted", policy="fence", reason="revoked") == 1


async def test_an_eviction_found_by_the_release_is_counted(
    backend: Backend, registry: CollectorRegistry, observer: Observer
) -> None:
    operator = backend.open()
    await operator.open()
    async with Locks(backend.url, prefix=backend.prefix, observer=observer) as locks:
        lease = await locks.acquire(LONG, "1")
        assert await operator.evict(lease.key, lease.fence, reason="test")
        with pytest.raises(NotOwned):
            await locks.release(lease)
    await operator.close()

    assert value(registry, "not_owned_total", "long", op="release") == 1
    assert value(registry, "not_owned_total", "long", op="renew") == 0


async def test_a_fallback_to_a_local_lock_is_counted(
    tmp_path: Path, registry: CollectorRegistry, observer: Observer
) -> None:
    backend = Backend("sqlite", f"sqlite:///{tmp_path}/locks.db", 60, None, "t:")
    local = LockClass("local", ttl=30, wait=0, on_store_error="local")
    async with Locks(backend.url, observer=observer) as locks:
        with stalled(backend):
            lease = await locks.acquire(local, "1")
        await locks.release(lease)

    assert lease.fallback
    assert value(registry, "fallback_total", "local") == 1
    assert value(registry, "acquired_total", "local") == 0


async def test_a_refused_operation_is_counted(
    tmp_path: Path, url: str, registry: CollectorRegistry, observer: Observer
) -> None:
    bank = apsw.Connection(f"{tmp_path}/bank.db")
    async with Locks(url, observer=observer) as locks:
        old = await locks.acquire(LONG, "1")
        assert await locks._store.evict(old.key, old.fence, reason="test")
        new = await locks.acquire(LONG, "1")
        with new.guard(bank, "account/1"):
            pass
        with pytest.raises(StaleFence), old.guard(bank, "account/1"):
            pass

    assert value(registry, "fence_refused_total", "long") == 1


async def test_a_claimed_window_is_counted(url: str, registry: CollectorRegistry, observer: Observer) -> None:
    nightly = LockClass("nightly", ttl=30, pattern="ttl_hold")
    async with Locks(url, observer=observer) as locks:
        assert await locks.claim(nightly, "invoices")

    assert value(registry, "acquired_total", "nightly") == 1


async def test_a_refused_renewal_is_not_counted_as_renewed(
    url: str, registry: CollectorRegistry, observer: Observer
) -> None:
    brief = LockClass("brief", ttl=1.5)
    async with Locks(url, observer=observer) as locks:
        with pytest.raises(LeaseLost):
            async with locks.hold(brief, "1") as lease:
                assert await locks._store.evict(lease.key, lease.fence, reason="test")
                await asyncio.sleep(10)

    assert value(registry, "renewals_total", "brief", result="renewed") == 0


async def test_policy_changes_are_counted(url: str, registry: CollectorRegistry, observer: Observer) -> None:
    async with Locks(url, classes=[LONG], observer=observer) as locks:
        locks.override("long", reason="test", on_renewal_failure="continue")
        locks.override("long", reason="test is over")

    assert value(registry, "policy_changes_total", "long") == 2


async def test_a_stuck_event_loop_is_shown_while_leases_are_kept(
    url: str, registry: CollectorRegistry, observer: Observer
) -> None:
    async with Locks(url, observer=observer) as locks, locks.hold(LockClass("stuck", ttl=1), "1"):
        began = time.monotonic()
        await asyncio.sleep(0.1)
        time.sleep(0.5)
        shown = registry.get_sample_value("holdfast_loop_lag_seconds")
        took_s = time.monotonic() - began

    assert shown is not None
    assert 0.1 <= shown <= took_s


def test_the_longest_lag_is_shown_for_a_while_and_then_forgotten(registry: CollectorRegistry) -> None:
    class Later(SystemRuntime):
        at = 1000.0

        def now(self) -> float:
            return self.at

    runtime = Later()
    observer = PrometheusObserver(registry, runtime=runtime)

    def shown() -> float | None:
        return registry.get_sample_value("holdfast_loop_lag_seconds")

    assert shown() == 0.0
    observer.loop_lagged(2.5)
    observer.loop_lagged(0.3)
    assert shown() == 2.5
    runtime.at += LAG_SHOWN_S
    assert shown() == 0.0
    observer.loop_lagged(0.3)
    assert shown() == 0.3


async def test_every_class_has_the_same_metrics_from_its_first_event_on(url: str, registry: CollectorRegistry) -> None:
    first, second = LockClass("first", ttl=30), LockClass("second", ttl=30)
    async with Locks(url, observer=PrometheusObserver(registry)) as locks:
        async with locks.hold(first, "1"):
            pass
        locks._front.observer.fence_refused(second, "account/1")

    def series(namespace: str) -> set[tuple[str, ...]]:
        return {
            (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "namespace"))
            for metric in registry.collect()
            for sample in metric.samples
            if sample.labels.get("namespace") == namespace
        }

    assert series("first") == series("second")
    assert len(series("first")) > 20


async def test_neither_keys_nor_tokens_become_labels(url: str, registry: CollectorRegistry, observer: Observer) -> None:
    async with Locks(url, observer=observer) as locks:
        leases = [await locks.acquire(LONG, f"customer-{n}") for n in range(50)]
        for lease in leases:
            await locks.release(lease)

    labels = [sample.labels for metric in registry.collect() for sample in metric.samples]
    assert {name for label in labels for name in label} == {"namespace", "result", "policy", "reason", "op", "le"}
    assert not any("customer" in v or len(v) >= 16 for label in labels for v in label.values())
    assert value(registry, "acquired_total", "long") == 50


def test_the_page_lists_each_metric_with_its_labels() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry).policy_changed(LONG, reason="test", for_s=None)
    exported = {
        metric.name + ("_total" if metric.type == "counter" else ""): set(metric.samples[0].labels) - {"le"}
        for metric in registry.collect()
    }

    rows = re.findall(
        r"^\| `(holdfast_(?:lock_\w+|loop_lag_seconds))` \| ([^|]*) \|", METRICS_PAGE.read_text(), re.MULTILINE
    )
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}

    assert documented == exported


async def test_several_observers_are_told_the_same(url: str) -> None:
    registries = [CollectorRegistry(), CollectorRegistry()]
    async with (
        Locks(url, observer=Observers([PrometheusObserver(registry) for registry in registries])) as locks,
        locks.hold(LONG, "1"),
    ):
        pass

    assert [value(registry, "acquired_total", "long") for registry in registries] == [1, 1]
    assert [value(registry, "held_seconds_count", "long") for registry in registries] == [1, 1]


async def test_stale_releases_are_logged_without_the_token(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Structured events: the name is the message, the values are attributes of the record."""
    caplog.set_level(logging.DEBUG, logger="holdfast.locks")
    brief = LockClass("brief", ttl=0.2, renew_every=0)
    async with Locks(url) as locks:
        evicted = await locks.acquire(LONG, "1")
        assert await locks._store.evict(evicted.key, evicted.fence, reason="test")
        with pytest.raises(NotOwned):
            await locks.release(evicted)
        expired = await locks.acquire(brief, "1")
        await asyncio.sleep(0.3)
        with pytest.raises(LeaseLost):
            await locks.release(expired)

    events = {record.event: record.__dict__ for record in caplog.records if hasattr(record, "event")}
    assert events["lock.not_owned"].items() >= {"namespace": "long", "operation": "release"}.items()
    assert events["lock.release_skipped"].items() >= {"namespace": "brief", "reason": "expired"}.items()
    assert events["lock.abandoned"].items() >= {"namespace": "brief", "policy": "fence", "reason": "expired"}.items()
    assert evicted.token not in str(events)
    assert expired.token not in str(events)
