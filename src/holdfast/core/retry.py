"""How long to wait before the next try: 1 s · 2ⁿ, at most 30 s, full jitter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    first_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 30.0

    def delay(self, failures: int, chance: float) -> float:
        """Before the next try, after `failures` ≥ 1 of them. `chance` is uniform in [0, 1)."""
        # The exponent is bounded, so that a job that failed for a week does not overflow a float.
        ceiling = min(self.cap_s, self.first_s * self.factor ** min(failures - 1, 32))
        return ceiling * chance
