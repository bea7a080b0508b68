"""The checkers of L1-L8 find what they are there for: a green check is never an empty one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.locks import LockClass, StaleFence
from holdfast.locks.lease import Lease
from holdfast.locks.port import Grant, Renewal, Standing
from holdfast.locks.renewal import believe
from locks import invariants
from locks.invariants import Call, History, Resource, Told
from locks.virtual import VirtualRuntime

A, B = "a" * 32, "b" * 32


def acquired(history: History, token: str, fence: int, at: float, ttl_ms: int = 10_000) -> None:
    call = Call(verb="acquire", who="A", sent_at=at, key="k", token=token, ttl_ms=ttl_ms)
    history.record(call, Grant(fence), at=at)


def released(history: History, token: str, answer: bool, at: float) -> None:
    history.record(Call(verb="release", who="A", sent_at=at, key="k", token=token), answer, at=at)


def renewed(history: History, token: str, standing: Standing, at: float) -> None:
    call = Call(verb="renew", who="A", sent_at=at, renewals=(Renewal("k", token, 10_000),))
    history.record(call, [standing], at=at)


def lower_fence(history: History) -> None:
    acquired(history, A, 2, 0)
    released(history, A, answer=True, at=1)
    acquired(history, B, 1, 2)


def release_after_expiry(history: History) -> None:
    acquired(history, A, 1, 0)
    released(history, A, answer=True, at=11)


def renewal_refused_to_the_holder(history: History) -> None:
    acquired(history, A, 1, 0)
    renewed(history, A, Standing.GONE, 5)


def two_holders(history: History) -> None:
    acquired(history, A, 1, 0)
    renewed(history, A, Standing.OWNED, 8)
    acquired(history, B, 2, 12)


def another_fence_for_the_same_grant(history: History) -> None:
    acquired(history, A, 1, 0)
    acquired(history, A, 2, 1)


@pytest.mark.parametrize(
    ("story", "invariant"),
    [
        (lower_fence, "L1"),
        (release_after_expiry, "L2"),
        (renewal_refused_to_the_holder, "L2"),
        (two_holders, "L3"),
        (another_fence_for_the_same_grant, "L3|L8"),
    ],
)
def test_a_broken_store_is_found(story: Callable[[History], None], invariant: str) -> None:
    history = History()
    story(history)

    with pytest.raises(AssertionError, match=invariant):
        invariants.check_history(history)


def test_an_orderly_history_passes() -> None:
    history = History()
    acquired(history, A, 1, 0)
    renewed(history, A, Standing.OWNED, 8)
    released(history, A, answer=True, at=17)
    acquired(history, B, 2, 17)
    released(history, A, answer=False, at=18)
    acquired(history, A, 3, 28)

    invariants.check_history(history)


def test_an_idle_lock_is_found() -> None:
    history = History()
    acquired(history, A, 1, 0)
    acquired(history, B, 2, 25)

    with pytest.raises(AssertionError, match="L7"):
        invariants.check_progress(history, "k", gone_at=10, within_s=11)


def test_a_resource_that_lost_or_invented_something_is_found() -> None:
    resource = Resource()
    resource.write(2, 1, ("b",))
    with pytest.raises(StaleFence):
        resource.write(1, 9, ("a",))
    resource.acknowledged.append("a")
    with pytest.raises(AssertionError, match="L5"):
        invariants.check_no_lost_ack(resource, sent={"a", "b"})
    resource.acknowledged = []
    with pytest.raises(AssertionError, match="L5"):
        invariants.check_no_lost_ack(resource)
    resource.accepted.reverse()
    resource.accepted += [*resource.accepted]
    with pytest.raises(AssertionError, match="L4"):
        invariants.check_fenced_accept(resource)


def test_a_call_after_the_window_is_found() -> None:
    runtime = VirtualRuntime()
    job = LockClass("job", ttl=60)
    belief = believe(job.renewal, sent_at=100.0)
    lease = Lease(job, "k", A, 1, belief=belief, runtime=runtime, observer=Told())

    invariants.check_self_stop(lease, 153.9)
    with pytest.raises(AssertionError, match="L6"):
        invariants.check_self_stop(lease, 154.0)
    runtime.loop.close()
