"""The lock store on Redis, done wrong: its script, with a line of it changed."""

from __future__ import annotations

from simulation.mutant import Mutant


def _edit(*edits: tuple[str, str]) -> dict[str, object]:
    return {"simulation.redis_server.EDITS": edits}


_OWNER = "if value and not value.err and sub(value, 1, #owner) == owner and"
_RENEWS = "if owned(value, token) then\n      call('PEXPIRE', lock, ttl_ms)\n      return 'O'"

MUTANTS = (
    Mutant("release without comparing the token", "L2", _edit((_OWNER, "if value and not value.err and"), ("local mine = owned(value_of(lock), token)", "local mine = value_of(lock)"))),
    Mutant("renew without comparing the token", "L2", _edit((_RENEWS, _RENEWS.replace("owned(value, token)", "value")))),
    Mutant("count fences without the server's clock", "L1", _edit(("local now_us = time[1] * 1000000 + time[2]", "local now_us = 0"))),
    Mutant("see a repeat as another's", "L8", _edit(("    if mine then\n      call('PEXPIRE', lock, ttl_ms)\n      return 'G'", "    if false then\n      return 'G'"))),
    Mutant("look at the lock and not at its queue", "L3", _edit(("if call('EXISTS', lock, queue) == 0 then", "if call('EXISTS', lock) == 0 then"))),
    Mutant("grant the lock to waiters that are gone", "L7", _edit(("elseif alive_ms > now_ms then", "else"))),
)  # fmt: skip
