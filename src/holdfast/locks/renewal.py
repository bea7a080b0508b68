"""What the holder of a lease believes, and when it must stop believing. Pure: no clock, no I/O.

    HELD ──a renewal failed──▶ UNCERTAIN ──a renewal succeeded──▶ HELD
      │                            │
      └──────── "not owned", or the trust window ended, or too many failures ────────▶ LOST (final)

The trust window is counted from the moment the last successful request was *sent*: the store
started its ttl later than that, so the window always ends before the lease can expire there.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

from holdfast.locks.errors import LossReason
from holdfast.locks.policy import RenewalPolicy
from holdfast.locks.port import Standing


class Verdict(Enum):
    HOLD = "hold"
    RENEW = "renew"
    ABANDON = "abandon"


#: On Python 3.11 it takes longer to find a member of an enum than to judge.
_HOLD, _RENEW, _ABANDON = Verdict


class Belief(NamedTuple):
    sent_at: float
    """When the last request that succeeded was sent."""
    trusted_until: float
    due: float
    """When to renew next."""
    failures: int = 0
    """Consecutive ones; a success starts again from zero."""
    hold_until: float = math.inf
    """The class's `max_hold`: however well it renews, it ends here."""


def believe(policy: RenewalPolicy, *, sent_at: float, spread: float = 1.0, hold_until: float = math.inf) -> Belief:
    """The belief after a request that succeeded. `spread` in (0, 1] keeps leases from renewing in step."""
    trusted_until = sent_at + policy.trust_s
    if trusted_until > hold_until:  # noqa: PLR1730  (min takes five times as long)
        trusted_until = hold_until
    due = sent_at + policy.every_s * spread if policy.every_s else trusted_until
    # Its own constructor takes twice as long, and there is a belief for every lock and every renewal.
    return tuple.__new__(Belief, (sent_at, trusted_until, due, 0, hold_until))


def held_anew(belief: Belief, policy: RenewalPolicy, hold_until: float) -> Belief:
    """The belief of the next holder of the same lease, whose `max_hold` is its own."""
    trusted_until = min(belief.sent_at + policy.trust_s, hold_until)
    due = belief.due if policy.every_s else trusted_until
    return belief._replace(trusted_until=trusted_until, due=due, hold_until=hold_until)


def doubt(belief: Belief, policy: RenewalPolicy, *, tried_at: float) -> Belief:
    """The belief after a renewal, sent at `tried_at`, that failed or got no answer."""
    return belief._replace(failures=belief.failures + 1, due=tried_at + policy.retry_s)


def judge(belief: Belief, policy: RenewalPolicy, now: float) -> Verdict:
    if now >= belief.trusted_until or belief.failures >= policy.failures_max:
        return _ABANDON
    return _RENEW if now >= belief.due else _HOLD


def why_abandoned(belief: Belief, policy: RenewalPolicy) -> LossReason:
    """The reason of a loss that the holder finds by itself, from its clock and its failures."""
    if belief.trusted_until >= belief.hold_until:
        return LossReason.EXPIRED
    if belief.failures:
        return LossReason.UNREACHABLE
    # Nobody tried in time: either nobody was meant to, or this process was not running.
    return LossReason.PAUSED if policy.every_s else LossReason.EXPIRED


def why_not_owned(belief: Belief, standing: Standing, now: float) -> LossReason:
    """The reason of a loss that the store reports."""
    if now >= belief.trusted_until:
        return LossReason.EXPIRED
    return LossReason.STOLEN if standing is Standing.TAKEN else LossReason.REVOKED
