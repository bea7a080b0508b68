"""May an effect that is in the ledger be performed again?"""

from __future__ import annotations

import itertools

import pytest
from plane.jobs import an_effect

from holdfast.core.effect import Ruling, idempotency_key, rule_on_repeat
from holdfast.core.job import JobId, Tenant
from holdfast.core.states import EffectState, Risk

RUN, REMEMBERED, BLOCKED = Ruling.RUN, Ruling.REMEMBERED, Ruling.BLOCKED


@pytest.mark.parametrize(
    ("state", "fence", "risk", "idempotent", "ruling"),
    [
        (EffectState.COMMITTED, 8, Risk.HIGH, False, REMEMBERED),
        (EffectState.ABSENT, 8, Risk.HIGH, False, RUN),
        (EffectState.PREPARED, 7, Risk.HIGH, False, RUN),
        (EffectState.PREPARED, 8, Risk.HIGH, True, BLOCKED),
        (EffectState.UNKNOWN, 8, Risk.HIGH, True, BLOCKED),
        (EffectState.UNKNOWN, 8, Risk.HIGH, False, BLOCKED),
        (EffectState.UNKNOWN, 8, Risk.MEDIUM, True, RUN),
        (EffectState.UNKNOWN, 8, Risk.MEDIUM, False, BLOCKED),
        (EffectState.UNKNOWN, 8, Risk.LOW, False, RUN),
        (EffectState.UNKNOWN, 7, Risk.HIGH, False, BLOCKED),
    ],
)
def test_ruling(state: EffectState, fence: int, risk: Risk, idempotent: bool, ruling: Ruling) -> None:
    """The effect was prepared under fence 7."""
    assert rule_on_repeat(an_effect(state=state, fence=7), fence=fence, risk=risk, idempotent=idempotent) is ruling


def test_high_risk_is_never_repeated_unasked() -> None:
    for state, idempotent in itertools.product((EffectState.UNKNOWN, EffectState.PREPARED), (True, False)):
        assert rule_on_repeat(an_effect(state=state), fence=99, risk=Risk.HIGH, idempotent=idempotent) is BLOCKED


def test_idempotency_key_is_stable_and_differs_for_everything_else() -> None:
    parts = [("a", "b", "c"), ("a", "b", "d"), ("a", "x", "c"), ("x", "b", "c"), ("ab", "", "c"), ("", "ab", "c")]
    keys = [idempotency_key(Tenant(t), JobId(j), k) for t, j, k in parts]

    assert len(set(keys)) == len(parts)
    assert keys[0] == idempotency_key(Tenant("a"), JobId("b"), "c")
