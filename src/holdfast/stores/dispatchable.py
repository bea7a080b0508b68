"""What `list_dispatchable` leaves out, whatever keeps the jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.core.job import Tenant
from holdfast.core.placement import Demand


class Without(NamedTuple):
    topics: Sequence[str] = ()
    tenants: Collection[Tenant] = ()
    keys: Sequence[str] = ()
    demands: Sequence[Demand] = ()


def without(
    topics: Collection[str], tenants: Collection[Tenant], keys: Collection[str], demands: Collection[Demand]
) -> Without:
    # In order: a statement with the same names is the same statement.
    return Without(sorted(topics), frozenset(tenants), sorted(keys), sorted(demands))
