"""Any history of commands has the same answers on every store: those of the reference.

The commands are drawn by Hypothesis, which also finds the shortest history that goes wrong. Leases
are long, so that time does not matter here; `tests/simulation` is where it does.
"""

from __future__ import annotations

import itertools
import time
from typing import NamedTuple

from harness import Backend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from locks.invariants import Call
from locks.reference import Reference

from holdfast.locks.port import LockStore, Renewal

LONG = 60_000
TOKENS = ("a" * 32, "b" * 32, "c" * 32)
EXAMPLES = itertools.count()


class Command(NamedTuple):
    verb: str
    key: str
    token: str
    queue_ms: int


COMMANDS = st.builds(
    Command,
    verb=st.sampled_from(("acquire", "acquire", "release", "renew")),
    key=st.sampled_from(("k1", "k2")),
    token=st.sampled_from(TOKENS),
    queue_ms=st.sampled_from((0, LONG)),
)


async def carry_out(store: LockStore, command: Command, key: str) -> tuple[Call, object]:
    now = time.monotonic()
    if command.verb == "acquire":
        sent = Call(
            verb="acquire", who="test", sent_at=now, key=key, token=command.token, ttl_ms=LONG,
            queue_ms=command.queue_ms,
        )  # fmt: skip
        return sent, await store.acquire(key, command.token, ttl_ms=LONG, queue_ms=command.queue_ms)
    if command.verb == "renew":
        renewal = Renewal(key, command.token, LONG)
        return Call(verb="renew", who="test", sent_at=now, renewals=(renewal,)), await store.renew([renewal])
    sent = Call(verb="release", who="test", sent_at=now, key=key, token=command.token)
    return sent, await store.release(key, command.token)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(COMMANDS, min_size=5, max_size=40))
async def test_history_is_answered_as_the_reference_says(
    backend: Backend, store: LockStore, other: LockStore, history: list[Command]
) -> None:
    reference = Reference()
    number = next(EXAMPLES)
    for n, command in enumerate(history):
        sent, answer = await carry_out((store, other)[n % 2], command, backend.key(f"{number}-{command.key}"))
        reference.check(sent, answer, at=time.monotonic())
