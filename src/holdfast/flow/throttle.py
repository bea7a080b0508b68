"""Throttle: how often jobs may be submitted under one key. Exact within this process, and only there.

The generic cell rate algorithm: per key one number, the time at which the jobs admitted so far would
have come, had they kept the rate. A job may be early by as much as the burst allows.
"""

from __future__ import annotations

from holdfast.core.decision import Decision, Rate
from holdfast.errors import TooMany

KEYS_MAX = 10_000


def is_rated(decision: Decision) -> bool:
    return decision.throttle is not None and decision.throttle.rate is not None


class Throttles:
    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def admit(self, decision: Decision, *, now: float) -> None:
        """Count the job. Raises `TooMany`, and counts nothing, if it comes too early."""
        throttle = decision.throttle
        if throttle is None or throttle.rate is None:
            return
        wait_s = self._take(throttle.key, throttle.rate, now)
        if wait_s > 0:
            raise TooMany(
                f"the policy's rule {decision.rule} takes no more of these jobs now (version {decision.version})",
                retry_after_s=wait_s,
            )

    def reserve(self, decision: Decision, *, now: float) -> float:
        """Count the job, however early it comes; how many seconds it has to wait for its time."""
        throttle = decision.throttle
        if throttle is None or throttle.rate is None:
            return 0.0
        return self._take(throttle.key, throttle.rate, now, early=True)

    def _take(self, key: str, rate: Rate, now: float, *, early: bool = False) -> float:
        due = max(self._due.get(key, now), now)
        wait_s = due - now - rate.every_s * (rate.burst - 1)
        # Times are floats: what is early by less than a microsecond is not early.
        if wait_s <= 1e-6:
            wait_s = 0.0
        elif not early:
            return wait_s
        if len(self._due) >= KEYS_MAX:
            # Those whose time has come know no more than those that were never asked. If it has come for few, those
            # go for which it comes next: they lose least, and it is not asked again with each job.
            later = sorted(((at, known) for known, at in self._due.items() if at > now), reverse=True)
            self._due = {known: at for at, known in later[: KEYS_MAX // 2]}
        self._due[key] = due + rate.every_s
        return wait_s
