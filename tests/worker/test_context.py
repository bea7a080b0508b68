"""What a handler may still do when its lease ends between being given leave and acting on it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.worker import LeaseLost
from holdfast.worker.context import Job, SyncJob
from holdfast.worker.wire import Answer, Prepare, Request, Work

WORK = Work("j", 7, "pay", b"null", 1, 3, {}, "high", "")


class Bank:
    def __init__(self) -> None:
        self.paid = 0
        self.lease_lost = False

    def pay(self) -> None:
        self.paid += 1

    def answer(self, request: Request) -> Answer:
        """Leave is given; and then this process stands still for longer than its lease."""
        if isinstance(request, Prepare):
            self.lease_lost = True
        return Answer(ruling="run", idempotency_key="k")


async def test_effect_is_not_begun_by_a_coroutine_whose_lease_ended_after_leave_was_given() -> None:
    bank = Bank()

    async def ask(request: Request) -> Answer:
        return bank.answer(request)

    with pytest.raises(LeaseLost):
        await Job(WORK, ask, is_lost=lambda: bank.lease_lost).once("pay", bank.pay)

    assert bank.paid == 0


def test_effect_is_not_begun_by_a_thread_whose_lease_ended_after_leave_was_given() -> None:
    bank = Bank()
    job: Any = SyncJob(WORK, bank.answer, is_lost=lambda: bank.lease_lost)

    with pytest.raises(LeaseLost):
        job.once("pay", bank.pay)

    assert bank.paid == 0
