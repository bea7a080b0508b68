"""Batches of writes to a server that takes its time: what one caller does wrong does not cost the others theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from holdfast.errors import HoldfastError, Invalid, StoreUnavailable
from holdfast.stores.batch import BatchLedger, Needs
from holdfast.stores.batch_writer import HELD_S_MAX, Batch, BatchWriter

WRITE_S = 0.5


class Server:
    """Each write takes half a second, whether it is refused or not."""

    def __init__(self, *, begin_s: float = 0.0, load_s: float = 0.0) -> None:
        self.sizes: list[int] = []
        self.is_away = False
        self._begin_s = begin_s
        self._load_s = load_s

    async def write(self, batch: Batch) -> tuple[BatchLedger, list[Any]]:
        if self.is_away:
            raise OSError("away")
        await asyncio.sleep(self._begin_s)
        batch.join()
        await asyncio.sleep(self._load_s)
        batch.meanwhile()
        await asyncio.sleep(WRITE_S)
        ledger = BatchLedger(0.0)
        answers = [call.verb(ledger) for call in batch.calls]
        self.sizes.append(len(batch.calls))
        return ledger, answers

    def is_everybodys(self, failure: Exception) -> bool:
        return not isinstance(failure, ValueError)

    def translated(self, failure: Exception, *, applied: bool | None) -> HoldfastError:
        return Invalid(f"{failure}, applied: {applied}")

    async def close(self) -> None: ...


async def answers(server: Server, numbers: int, *, unstorable: int, timeout_s: float) -> list[Any]:
    def ask(needs: Needs) -> None:
        needs.letters.add(1)

    def store(number: int) -> int:
        if number == unstorable:
            raise ValueError("unstorable")
        return number

    writer = BatchWriter("here", server, batch_max=1000, timeout_s=timeout_s, committed=lambda _: None)
    calls = (
        writer.call(ask, lambda _, number=number: store(number), size=1, urgent=False)  # type: ignore[misc]
        for number in range(numbers)
    )
    answered = await asyncio.gather(*calls, return_exceptions=True)
    await writer.close()
    return answered


@on_virtual_time
async def test_call_that_cannot_be_stored_leaves_the_others_their_batches(runtime: VirtualRuntime) -> None:
    server, began = Server(), runtime.now()

    answered = await answers(server, 64, unstorable=9, timeout_s=60.0)

    assert [answer for answer in answered if not isinstance(answer, Exception)] == [n for n in range(64) if n != 9]
    assert isinstance(answered[9], Invalid)
    assert sorted(server.sizes) == [1, 2, 4, 8, 16, 32]
    assert runtime.now() - began == 13 * WRITE_S, "six of them, and seven that were refused"


@on_virtual_time
async def test_who_has_waited_too_long_is_told_so_and_nothing_of_it_is_written(runtime: VirtualRuntime) -> None:
    server, began = Server(), runtime.now()

    answered = await answers(server, 8, unstorable=0, timeout_s=4 * WRITE_S)

    late = [answer for answer in answered if isinstance(answer, StoreUnavailable)]
    assert [error.applied for error in late] == [False] * 7
    assert server.sizes == []
    assert runtime.now() - began == 4 * WRITE_S


@pytest.mark.parametrize(("batch_max", "sizes"), [(1000, [4, 1]), (3, [3, 2])])
@on_virtual_time
async def test_who_calls_while_a_batch_is_begun_is_part_of_it_if_there_is_room(
    runtime: VirtualRuntime, batch_max: int, sizes: list[int]
) -> None:
    server, began = Server(begin_s=1.0), runtime.now()
    writer = BatchWriter("here", server, batch_max=batch_max, timeout_s=60.0, committed=lambda _: None)

    async def call(after_s: float) -> float:
        await asyncio.sleep(after_s)
        await writer.call(lambda _: None, lambda _: None, size=1, urgent=False)
        return runtime.now() - began

    answered = await asyncio.gather(*(call(after_s) for after_s in (0.0, 0.1, 0.2, 0.3, 1.1)))
    await writer.close()

    assert server.sizes == sizes
    once, twice = 1.0 + WRITE_S, 2 * (1.0 + WRITE_S)
    assert answered == pytest.approx([once + HELD_S_MAX] * sizes[0] + [twice] * sizes[1])


@on_virtual_time
async def test_nobody_joins_those_among_whom_one_is_looked_for(runtime: VirtualRuntime) -> None:
    """Else whoever cannot be stored would never be found while others keep coming."""
    server, began = Server(begin_s=1.0), runtime.now()
    writer = BatchWriter("here", server, batch_max=1000, timeout_s=60.0, committed=lambda _: None)

    def refuse(_: BatchLedger) -> None:
        raise ValueError("unstorable")

    async def come(after_s: float) -> None:
        await asyncio.sleep(after_s)
        await writer.call(lambda _: None, lambda _: None, size=1, urgent=False)

    coming = [asyncio.create_task(come(n / 10)) for n in range(200)]
    with pytest.raises(Invalid):
        await writer.call(lambda _: None, refuse, size=1, urgent=False)

    assert runtime.now() - began < 10 * (1.0 + WRITE_S)
    await asyncio.gather(*coming)
    await writer.close()


async def answered_at(runtime: VirtualRuntime, *, load_s: float) -> list[float]:
    """When two calls are answered, of which the second came while the first was being written."""
    writer = BatchWriter("here", Server(load_s=load_s), batch_max=1, timeout_s=60.0, committed=lambda _: None)
    began = runtime.now()

    async def call() -> float:
        await writer.call(lambda _: None, lambda _: None, size=1, urgent=False)
        return runtime.now() - began

    times = await asyncio.gather(call(), call())
    await writer.close()
    return list(times)


@on_virtual_time
async def test_who_asked_is_answered_when_the_server_is_at_work_on_the_next_batch(runtime: VirtualRuntime) -> None:
    load_s = HELD_S_MAX / 2

    assert await answered_at(runtime, load_s=load_s) == pytest.approx([WRITE_S + 2 * load_s, 2 * (WRITE_S + load_s)])


@on_virtual_time
async def test_who_asked_is_answered_also_when_the_next_batch_fails(runtime: VirtualRuntime) -> None:
    server, began = Server(), runtime.now()
    writer = BatchWriter("here", server, batch_max=1, timeout_s=60.0, committed=lambda _: None)
    first = asyncio.create_task(writer.call(lambda _: None, lambda _: "stored", size=1, urgent=False))
    second = asyncio.create_task(writer.call(lambda _: None, lambda _: None, size=1, urgent=False))
    await asyncio.sleep(WRITE_S / 2)
    server.is_away = True

    assert await first == "stored"
    with pytest.raises(Invalid):
        await second
    assert runtime.now() - began == WRITE_S
    await writer.close()


@on_virtual_time
async def test_nobody_waits_for_a_server_that_does_not_get_to_work(runtime: VirtualRuntime) -> None:
    first, _ = await answered_at(runtime, load_s=10.0)

    assert first == pytest.approx(10.0 + WRITE_S + HELD_S_MAX)
