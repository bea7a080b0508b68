"""Freezes: what is not to be dispatched for a while, because somebody says so.

A freeze covers everything, a tenant, or a topic (exact, or a family ending in `*`). Each is a record of its
own, whose id is its scope: freezing the same scope again replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from holdfast.core.family import fits
from holdfast.core.job import Tenant
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind, Record
from holdfast.errors import Invalid

SCOPES_MAX = 100
"""Frozen at once. Whoever needs more freezes everything."""
_SCOPE = re.compile(r"all|tenant=[A-Za-z0-9][A-Za-z0-9_.-]{0,63}|topic=[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,126}\*?")


class Breadth(StrEnum):
    """What kind of scope it is."""

    ALL = "all"
    TENANT = "tenant"
    TOPIC = "topic"


class Freeze(msgspec.Struct, frozen=True, kw_only=True):
    scope: str
    """`all`, `tenant=<name>` or `topic=<name>`."""
    reason: str
    by: str = ""
    since: float
    until: float | None
    """When it ends by itself; None: when somebody ends it."""
    version: int = 0
    """Of its record; 0: it is not stored yet."""

    @property
    def breadth(self) -> Breadth:
        return Breadth(self.scope.partition("=")[0])

    @property
    def name(self) -> str:
        return self.scope.partition("=")[2]

    def covers(self, tenant: Tenant, topic: str) -> bool:
        match self.breadth:
            case Breadth.ALL:
                return True
            case Breadth.TENANT:
                return tenant == self.name
            case Breadth.TOPIC:
                return fits(topic, self.name)

    def has_ended(self, now: float) -> bool:
        return self.until is not None and now >= self.until


class Frozen(NamedTuple):
    """All freezes that hold, as whoever dispatches needs them."""

    freezes: tuple[Freeze, ...] = ()
    tenants: frozenset[Tenant] = frozenset()
    topics: frozenset[str] = frozenset()
    """Exact ones. Families are not among them: ask `find`."""
    everything: bool = False

    def find(self, tenant: Tenant, topic: str) -> Freeze | None:
        """The widest freeze that covers it."""
        return next((freeze for freeze in self.freezes if freeze.covers(tenant, topic)), None)


def frozen_by(freezes: Iterable[Freeze], *, now: float) -> Frozen:
    """What these freezes amount to; those whose time is over count no more, whether or not somebody has ended them."""
    order = list(Breadth)
    holding = sorted((f for f in freezes if not f.has_ended(now)), key=lambda f: order.index(f.breadth))
    return Frozen(
        tuple(holding),
        frozenset(Tenant(f.name) for f in holding if f.breadth is Breadth.TENANT),
        frozenset(f.name for f in holding if f.breadth is Breadth.TOPIC and not f.name.endswith("*")),
        any(f.breadth is Breadth.ALL for f in holding),
    )


def check_scope(scope: str) -> str:
    """The scope as it is. Raises `Invalid` for what is none."""
    if not _SCOPE.fullmatch(scope):
        raise Invalid("a scope is all, tenant=NAME or topic=NAME; a topic may end in * to mean a family")
    return scope


def freeze_record(freeze: Freeze) -> Record:
    """As it is to be stored, one version on."""
    version = freeze.version + 1
    return Record(
        kind=Kind.FREEZE,
        tenant=PLANE,
        id=freeze.scope,
        version=version,
        state=freeze.breadth,
        due=freeze.until,
        created_at=freeze.since,
        body=msgspec.json.encode(msgspec.structs.replace(freeze, version=version)),
    )


def freeze_from(record: Record) -> Freeze:
    return msgspec.json.decode(record.body, type=Freeze)
