"""What is believed of an attempt's lease, by the clock alone."""

from __future__ import annotations

import math

import pytest

from holdfast.locks.renewal import Verdict
from holdfast.worker.lease import RENEW_EVERY_S_MAX, AttemptLease


def a_lease(*, lease_s: float = 9.0, running_timeout_s: float = 900.0) -> AttemptLease:
    return AttemptLease(lease_s=lease_s, running_timeout_s=running_timeout_s, began_at=100.0)


def test_is_renewed_in_time_for_three_tries() -> None:
    lease = a_lease()

    assert lease.look_at() == 103.0
    assert [lease.judge(now) for now in (102.9, 103.0, 108.1)] == [Verdict.HOLD, Verdict.RENEW, Verdict.ABANDON]


@pytest.mark.parametrize("lease_s", [0.5, 9.0, 3600.0])
def test_everything_ends_before_the_plane_can_give_the_job_away(lease_s: float) -> None:
    lease = a_lease(lease_s=lease_s)

    assert lease.trusted_until < lease.last_moment < 100.0 + lease_s


def test_is_trusted_from_when_a_renewal_was_sent() -> None:
    lease = a_lease()
    lease.renewing = True

    lease.renewed(sent_at=103.0)

    assert (lease.renewing, lease.look_at()) == (False, 106.0)
    assert lease.trusted_until == pytest.approx(111.1)


def test_is_given_up_after_three_failures() -> None:
    lease = a_lease()
    for tried_at in (103.0, 104.0, 105.0):
        assert lease.judge(tried_at) is not Verdict.ABANDON
        lease.not_renewed(tried_at=tried_at)

    assert lease.judge(105.1) is Verdict.ABANDON


def test_long_lease_is_renewed_often_enough_to_hear_of_a_cancel() -> None:
    assert a_lease(lease_s=3600.0).look_at() == 100.0 + RENEW_EVERY_S_MAX


def test_joins_others_shortly_before_it_is_due() -> None:
    lease = a_lease()

    assert [lease.may_join(now) for now in (102.6, 102.8, 103.0)] == [False, True, False]
    lease.renewing = True
    assert not lease.may_join(102.8)


def test_running_time_is_over_once() -> None:
    lease = a_lease(running_timeout_s=2.0)

    assert lease.look_at() == 102.0
    assert [lease.take_timeout(now) for now in (101.9, 102.0, 102.1)] == [False, True, False]
    assert lease.look_at() == 103.0  # it is kept until the handler has stopped


def test_nothing_is_left_to_look_at_when_it_is_over() -> None:
    lease = a_lease()
    lease.over = True

    assert lease.look_at() == math.inf
