"""Faults between the plane and its store, one call at a time, at the `Store` port."""

from __future__ import annotations

import asyncio
import functools
import inspect
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from holdfast.errors import StoreUnavailable


class Fault(Enum):
    FAIL = "fail"
    """Not sent, and known not to be."""
    LOSE_REQUEST = "lose the request"
    """Never arrives; the caller cannot know."""
    LOSE_REPLY = "lose the reply"
    """Applied; the caller cannot know."""
    PAUSE = "pause"
    """The caller stands still before the call, until the rule is opened."""


@dataclass(eq=False)
class Rule:
    verb: str
    fault: Fault | None
    times: int
    kind: str
    """Only calls of `apply` and `transact` that carry a change of this kind; empty for all calls."""
    request_s: float
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        self.opened.set()

    def meets(self, verb: str, args: tuple[Any, ...]) -> bool:
        if self.times <= 0 or self.verb not in (verb, "*"):
            return False
        if not self.kind:
            return True
        if verb == "transact":
            return any(change.kind == self.kind for transaction in args[0] for change in transaction.changes)
        return verb == "apply" and any(change.kind == self.kind for change in args[0])


class FaultyStore:
    """A `Store` whose calls can be made to fail. `calls` counts them by verb, failed ones too."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.rules: list[Rule] = []
        self.calls: dict[str, int] = {}

    def fault(
        self, verb: str, fault: Fault | None, *, times: int = 1_000_000, kind: str = "", request_s: float = 0.0
    ) -> Rule:
        """From now on, `times` calls of `verb` meet this fault or this delay."""
        rule = Rule(verb, fault, times, kind, request_s)
        self.rules.append(rule)
        return rule

    def pause(self, verb: str, *, kind: str = "") -> Rule:
        """The next such call waits at the door: `await rule.reached.wait()`, then `rule.open()`."""
        return self.fault(verb, Fault.PAUSE, times=1, kind=kind)

    def heal(self) -> None:
        self.rules.clear()

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._inner, name)
        is_call = callable(verb) and _is_awaited(getattr(verb, "__func__", verb))
        passed_on = functools.partial(self._carry, name, verb) if is_call else verb
        if inspect.ismethod(verb):  # which stays the same, and is asked for ten thousand times in a story
            setattr(self, name, passed_on)
        return passed_on

    async def _carry(self, name: str, verb: Any, *args: Any, **options: Any) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        rule = next((rule for rule in self.rules if rule.meets(name, args)), None)
        if rule is None:
            return await verb(*args, **options)
        rule.times -= 1
        rule.reached.set()
        if rule.request_s:
            await asyncio.sleep(rule.request_s)
        if rule.fault is Fault.PAUSE:
            await rule.opened.wait()
        if rule.fault is Fault.FAIL:
            raise StoreUnavailable("store", "injected: not sent", applied=False)
        if rule.fault is Fault.LOSE_REQUEST:
            raise StoreUnavailable("store", "injected: request lost", applied=None)
        answer = await verb(*args, **options)
        if rule.fault is Fault.LOSE_REPLY:
            raise StoreUnavailable("store", "injected: reply lost", applied=None)
        return answer


@functools.lru_cache(maxsize=1000)
def _is_awaited(verb: Any) -> bool:
    """Asked once of each: a story makes thousands of calls, and to find out takes longer than to pass one on."""
    return inspect.iscoroutinefunction(verb)
