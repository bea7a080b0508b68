"""What can be asked about freezes, as values; see `asks`."""

from __future__ import annotations

from holdfast.api.freezes import Freezes, FreezeView, NewFreeze, Thaw
from holdfast.client.asks import Ask, get_ask, post_ask, read_as, said_by


def freeze(scope: str, *, reason: str, for_s: float | None = None, by: str = "") -> Ask[FreezeView]:
    """Have nothing of `all`, `tenant=NAME` or `topic=NAME` dispatched."""
    body = NewFreeze(scope=scope, reason=reason, for_s=for_s)
    return post_ask("/v1/freezes", read_as(FreezeView), body, headers=said_by(by))


def unfreeze(scope: str, *, reason: str, by: str = "") -> Ask[FreezeView]:
    """End a freeze before its time."""
    return post_ask("/v1/freezes:thaw", read_as(FreezeView), Thaw(scope=scope, reason=reason), headers=said_by(by))


def freezes() -> Ask[Freezes]:
    """What is frozen, by scope."""
    return get_ask("/v1/freezes", read_as(Freezes))
