"""What a handler may ask of its job: effects that happen once, also within one attempt, and never without a lease."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.worker import EffectAbsent, EffectUnknown, LeaseLost
from holdfast.worker.context import Job, SyncJob
from holdfast.worker.wire import Answer, Commit, Prepare, Request, Withdraw, Work

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


class Ledger:
    """The plane's rulings on one attempt: whoever asks again for what it has prepared itself may have lost the answer."""

    def __init__(self) -> None:
        self.committed: dict[str, bytes] = {}
        self.withdrawn: list[str] = []

    def answer(self, request: Request) -> Answer:
        if isinstance(request, Commit):
            self.committed[request.key] = request.result
        elif isinstance(request, Withdraw):
            self.withdrawn.append(request.key)
        elif isinstance(request, Prepare) and request.key in self.committed:
            return Answer(ruling="remembered", result=self.committed[request.key])
        return Answer(ruling="run", idempotency_key="k")

    async def wait_answer(self, request: Request) -> Answer:
        await asyncio.sleep(0)
        return self.answer(request)


class Broken:
    """It pays, and the line breaks before it can say so."""

    def __init__(self) -> None:
        self.paid = 0

    def pay(self) -> None:
        self.paid += 1
        raise ConnectionResetError


MEDIUM = replace(WORK, risk="medium")


async def test_effect_that_raised_is_not_repeated_by_a_coroutine_that_goes_on() -> None:
    bank, job = Broken(), Job(MEDIUM, Ledger().wait_answer)

    with pytest.raises(ConnectionResetError):
        await job.once("pay", bank.pay)
    with pytest.raises(EffectUnknown):
        await job.once("pay", bank.pay)

    assert bank.paid == 1


def test_effect_that_raised_is_not_repeated_by_a_function_that_goes_on() -> None:
    bank, job = Broken(), SyncJob(MEDIUM, Ledger().answer)

    with pytest.raises(ConnectionResetError):
        job.once("pay", bank.pay)
    with pytest.raises(EffectUnknown):
        job.once("pay", bank.pay)

    assert bank.paid == 1


@pytest.mark.parametrize(("risk", "idempotent"), [("low", False), ("medium", True)])
def test_effect_that_may_be_repeated_is_in_the_same_attempt_too(risk: str, idempotent: bool) -> None:
    bank, job = Broken(), SyncJob(replace(WORK, risk=risk), Ledger().answer)

    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            job.once("pay", bank.pay, idempotent=idempotent)

    assert bank.paid == 2


def test_effect_that_did_not_happen_may_be_tried_again_in_the_same_attempt() -> None:
    ledger = Ledger()
    job = SyncJob(WORK, ledger.answer)

    def decline() -> None:
        raise EffectAbsent("declined")

    with pytest.raises(EffectAbsent):
        job.once("pay", decline)

    assert (job.once("pay", lambda: "paid"), ledger.withdrawn) == ("paid", ["pay"])


async def test_effect_that_two_tasks_of_a_handler_ask_for_happens_once() -> None:
    paid: list[int] = []

    async def pay() -> int:
        paid.append(1)
        await asyncio.sleep(0)
        return len(paid)

    job = Job(WORK, Ledger().wait_answer)
    results = await asyncio.gather(*(job.once("pay", pay) for _ in range(3)))

    assert (results, len(paid)) == ([1, 1, 1], 1)


async def test_effect_that_asks_for_itself_is_refused_and_does_not_wait_for_itself() -> None:
    job = Job(WORK, Ledger().wait_answer)
    sync_job = SyncJob(WORK, Ledger().answer)

    async with asyncio.timeout(5):
        with pytest.raises(EffectUnknown):
            await job.once("pay", lambda: asyncio.gather(job.once("pay", print)))
    with pytest.raises(EffectUnknown):
        sync_job.once("pay", lambda: sync_job.once("pay", print))


def test_coroutine_that_a_function_cannot_await_is_no_effect_that_has_happened() -> None:
    paid: list[int] = []

    async def pay() -> None:
        paid.append(1)

    ledger = Ledger()
    with pytest.raises(EffectAbsent, match="async def"):
        SyncJob(WORK, ledger.answer).once("pay", pay)

    assert (paid, ledger.committed, ledger.withdrawn) == ([], {}, ["pay"])


@pytest.mark.parametrize("key", [42, None, b"pay"])
async def test_key_of_an_effect_that_is_no_text_is_told_to_the_handler(key: Any) -> None:
    with pytest.raises(TypeError, match="key of an effect"):
        SyncJob(WORK, Ledger().answer).once(key, print)
    with pytest.raises(TypeError, match="key of an effect"):
        await Job(WORK, Ledger().wait_answer).once(key, print)
