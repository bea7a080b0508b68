"""The lock store on Redis, done wrong: its script with a line of it changed, or its client."""

from __future__ import annotations

from functools import partial

from holdfast.locks.errors import Unavailable
from holdfast.locks.stores.redis.connection import Connection
from simulation.mutant import Mutant


def edited(*edits: tuple[str, str]) -> dict[str, object]:
    return {"simulation.redis_server.EDITS": edits}


def give_up_the_question_alone(self: Connection) -> None:
    """The connection goes on: the answer that was too late is taken for that to the next question."""
    self._timer = None
    while self._pending and self._pending[0].deadline <= self._loop.time():
        self._pending.popleft().fail(partial(Unavailable, "redis", "no answer in time", applied=None))
    if self._pending:
        self._timer = self._loop.call_at(self._pending[0].deadline, self._drop_overdue)


_OWNER = "if value and not value.err and sub(value, 1, #owner) == owner and"
_RENEWS = "if owned(value, token) then\n      call('PEXPIRE', lock, ttl_ms)\n      return 'O'"

MUTANTS = (
    Mutant("release without comparing the token", "L2", edited((_OWNER, "if value and not value.err and"), ("local mine = owned(value_of(lock), token)", "local mine = value_of(lock)"))),
    Mutant("renew without comparing the token", "L2", edited((_RENEWS, _RENEWS.replace("owned(value, token)", "value")))),
    Mutant("count fences without the server's clock", "L1", edited(("local now_us = time[1] * 1000000 + time[2]", "local now_us = 0"))),
    Mutant("see a repeat as another's", "L8", edited(("    if mine then\n      call('PEXPIRE', lock, ttl_ms)\n      return 'G'", "    if false then\n      return 'G'"))),
    Mutant("look at the lock and not at its queue", "L3", edited(("if call('EXISTS', lock, queue) == 0 then", "if call('EXISTS', lock) == 0 then"))),
    Mutant("grant the lock to waiters that are gone", "L7", edited(("if alive_ms > now_ms then", "if true then"))),
    Mutant("hand out a fence before it is kept", "L1", edited(("local last = try('SET', keys[1], fence_text, 'GET')", "local last = try('GET', keys[1])"), ("        call('SET', keys[1], fence_text)\n", ""))),
    Mutant("take a late answer for the next one", "L3", {"holdfast.locks.stores.redis.connection.Connection._drop_overdue": give_up_the_question_alone}),
)  # fmt: skip
