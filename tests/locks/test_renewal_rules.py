"""The rules of renewal, as tables and properties: no clock, no store. Acceptance rows 1, 2, 4 and 8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.locks import LockClass, LossReason
from holdfast.locks.policy import RenewalPolicy
from holdfast.locks.port import Standing
from holdfast.locks.renewal import Belief, Verdict, believe, doubt, judge, why_abandoned, why_not_owned

POLICY = LockClass("job", ttl=60).renewal
HELD = believe(POLICY, sent_at=100.0)


def failed(times: int, policy: RenewalPolicy = POLICY, since: Belief = HELD) -> Belief:
    for _ in range(times):
        since = doubt(since, policy, tried_at=since.due)
    return since


def test_the_system_locks_have_their_numbers() -> None:
    """Rows 2 and 8."""
    job, run = LockClass("scheduler.job", ttl=60).renewal, LockClass("workflow.run", ttl=30).renewal

    assert (job.every_s, job.timeout_s, job.failures_max) == (20, 2, 3)
    assert (run.every_s, run.timeout_s, run.failures_max) == (10, 2, 3)
    assert LockClass("workflow.run", ttl=30).on_renewal_failure == "fence"


@pytest.mark.parametrize(
    ("belief", "now", "verdict"),
    [
        (HELD, 100.0, Verdict.HOLD),
        (HELD, 119.9, Verdict.HOLD),
        (HELD, 120.0, Verdict.RENEW),
        (HELD, 153.9, Verdict.RENEW),
        (HELD, 154.0, Verdict.ABANDON),
        (failed(1), 120.0, Verdict.HOLD),
        (failed(2), 153.0, Verdict.RENEW),
        (failed(3), 101.0, Verdict.ABANDON),
    ],
)
def test_what_a_holder_does(belief: Belief, now: float, verdict: Verdict) -> None:
    assert judge(belief, POLICY, now) is verdict


def test_why_a_lease_was_lost() -> None:
    unrenewed = LockClass("approval", ttl=10, renew_every=0).renewal

    assert why_abandoned(failed(1), POLICY) is LossReason.UNREACHABLE
    assert why_abandoned(HELD, POLICY) is LossReason.PAUSED
    assert why_abandoned(HELD, unrenewed) is LossReason.EXPIRED
    assert why_not_owned(HELD, Standing.TAKEN, 110.0) is LossReason.STOLEN
    assert why_not_owned(HELD, Standing.GONE, 110.0) is LossReason.REVOKED
    assert why_not_owned(HELD, Standing.TAKEN, 160.0) is LossReason.EXPIRED


ttls = st.floats(min_value=0.05, max_value=24 * 3600.0)


@given(ttl=ttls, spread=st.floats(min_value=0.9, max_value=1.0))
def test_three_hanging_renewals_fit_into_the_trust_window(ttl: float, spread: float) -> None:
    """Row 2: by the schedule alone the third try has timed out before the window ends."""
    policy = LockClass("any", ttl=ttl).renewal
    belief = believe(policy, sent_at=0.0, spread=spread)
    given_up_at = 0.0
    for _ in range(policy.failures_max):
        tried_at = max(belief.due, given_up_at)
        given_up_at = tried_at + policy.timeout_s
        belief = doubt(belief, policy, tried_at=tried_at)

    assert given_up_at <= policy.trust_s
    assert policy.trust_s < ttl


@given(ttl=ttls, outcomes=st.lists(st.booleans(), max_size=40), share=st.floats(0.0, 0.5))
def test_belief_never_reaches_beyond_the_last_success(ttl: float, outcomes: list[bool], share: float) -> None:
    """Whatever succeeds or fails: trust ends a margin before what the store promised at the last success."""
    policy = LockClass("any", ttl=ttl, margin=ttl * share / 2).renewal
    belief = believe(policy, sent_at=0.0)
    for succeeded in outcomes:
        tried_at = belief.due
        belief = believe(policy, sent_at=tried_at) if succeeded else doubt(belief, policy, tried_at=tried_at)

        assert belief.trusted_until == pytest.approx(belief.sent_at + policy.ttl_s - policy.margin_s)
        assert judge(belief, policy, belief.trusted_until) is Verdict.ABANDON
        assert belief.failures == 0 or not succeeded
