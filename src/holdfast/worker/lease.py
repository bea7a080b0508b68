"""What is believed of one attempt's lease. Changed by the keeper alone; anybody may look."""

from __future__ import annotations

import math
from functools import lru_cache

from holdfast.locks.policy import RenewalPolicy
from holdfast.locks.renewal import Verdict, believe, doubt, judge

RENEW_EVERY_S_MAX = 5.0
"""Should the plane fail to tell of a cancel, it is heard with a renewal: no lease is so long that it may wait longer."""


@lru_cache(maxsize=256)
def renewal_policy(lease_s: float) -> RenewalPolicy:
    return RenewalPolicy(
        ttl_s=lease_s,
        every_s=min(lease_s / 3, RENEW_EVERY_S_MAX),
        timeout_s=min(2.0, lease_s / 6),
        failures_max=3,
        margin_s=lease_s / 10,
    )


class AttemptLease:
    """`began_at`: no later than the plane began to count."""

    def __init__(self, *, lease_s: float, running_timeout_s: float, began_at: float) -> None:
        self._policy = renewal_policy(lease_s)
        self._belief = believe(self._policy, sent_at=began_at)
        self._ends_at = began_at + running_timeout_s
        self.renewing = False
        self.over = False
        """Lost, or given away by the plane: there is nothing left to keep."""

    @property
    def patience_s(self) -> float:
        """How long one renewal may take."""
        return self._policy.timeout_s

    @property
    def trusted_until(self) -> float:
        return self._belief.trusted_until

    @property
    def last_moment(self) -> float:
        """Half of the margin is for a handler to stop by itself. Then whatever still runs must be ended by force,
        before the job can be given to somebody else."""
        return self._belief.trusted_until + self._policy.margin_s / 2

    def look_at(self) -> float:
        """The earliest time at which `judge` or `take_timeout` says something else."""
        if self.over:
            return math.inf
        look = self.trusted_until if self.renewing else min(self._belief.due, self.trusted_until)
        return min(look, self._ends_at)

    def judge(self, now: float) -> Verdict:
        return judge(self._belief, self._policy, now)

    def may_join(self, now: float) -> bool:
        """Not due, but so soon that it may as well be renewed with others that are."""
        soon = self._belief.due - self._policy.every_s / 10
        return soon <= now < self._belief.due and not self.renewing and not self.over

    def take_timeout(self, now: float) -> bool:
        """True once: the running time is over."""
        if now < self._ends_at:
            return False
        self._ends_at = math.inf
        return True

    def renewed(self, *, sent_at: float) -> None:
        self.renewing = False
        self._belief = believe(self._policy, sent_at=sent_at)

    def not_renewed(self, *, tried_at: float) -> None:
        self.renewing = False
        self._belief = doubt(self._belief, self._policy, tried_at=tried_at)
