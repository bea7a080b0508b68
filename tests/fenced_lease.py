"""A lease as a guard sees it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from holdfast.locks.errors import LeaseLost, LossReason


@dataclass
class Lease:
    fence: int
    key: str = "payout:42"
    lost: bool = False
    seqs: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    refused: list[str] = field(default_factory=list)
    """The resources that refused it."""

    def next_seq(self) -> int:
        return next(self.seqs)

    def fence_refused(self, resource: str) -> None:
        self.refused.append(resource)

    def check(self) -> None:
        if self.lost:
            raise LeaseLost(self.key, reason=LossReason.EXPIRED, fence=self.fence)
