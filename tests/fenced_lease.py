"""A lease as a guard sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.locks.errors import LeaseLost, LossReason


@dataclass
class Lease:
    fence: int
    key: str = "payout:42"
    lost: bool = False
    last_seq: int = 0
    refused: list[str] = field(default_factory=list)
    """The resources that refused it."""

    def next_seq(self) -> int:
        self.last_seq += 1
        return self.last_seq

    @property
    def numbered(self) -> bool:
        return self.last_seq > 0

    def fence_refused(self, resource: str) -> None:
        self.refused.append(resource)

    def check(self) -> None:
        if self.lost:
            raise LeaseLost(self.key, reason=LossReason.EXPIRED, fence=self.fence)
