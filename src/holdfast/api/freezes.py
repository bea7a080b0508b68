"""Freezes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.api.policies import Reason
from holdfast.api.words import Reply, Request

SCOPE = r"^(all|tenant=[A-Za-z0-9][A-Za-z0-9_.-]{0,63}|topic=[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,126}\*?)$(?!\n)"
Scope = Annotated[str, Meta(pattern=SCOPE)]
WEEK_S = 7 * 24 * 3600.0


class NewFreeze(Request, kw_only=True):
    """`POST /v1/freezes`: dispatch nothing of a scope."""

    scope: Scope
    """`all`, `tenant=NAME` or `topic=NAME`; a topic may end in `*`."""
    reason: Reason
    for_s: Annotated[float, Meta(gt=0, le=WEEK_S)] | None = None
    """null: until somebody thaws it."""


class Thaw(Request, kw_only=True):
    """`POST /v1/freezes:thaw`."""

    scope: Scope
    reason: Reason


class FreezeView(Reply, kw_only=True):
    scope: str
    reason: str
    by: str
    since: float
    until: float | None
    """When it ends by itself."""


class Freezes(Reply, kw_only=True):
    items: list[FreezeView]
