"""What `list_dispatchable` leaves out, whatever keeps the jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from holdfast.core.job import Tenant
from holdfast.core.placement import Labels


class Met(NamedTuple):
    """Of these topics, only who wants no more than one of these sets of labels."""

    topics: Sequence[str]
    by: Sequence[Labels]


class Without(NamedTuple):
    topics: Sequence[str] = ()
    tenants: Collection[Tenant] = ()
    keys: Sequence[str] = ()
    met: Sequence[Met] = ()


def without(
    topics: Collection[str],
    tenants: Collection[Tenant],
    keys: Collection[str],
    met_by: Mapping[str, Collection[Labels]],
) -> Without:
    # In order: a statement with the same names is the same statement.
    return Without(sorted(topics), frozenset(tenants), sorted(keys), _together(met_by))


def _together(met_by: Mapping[str, Collection[Labels]]) -> list[Met]:
    """Many topics may have the same workers: these are told once."""
    found: dict[frozenset[Labels], list[str]] = {}
    for topic in sorted(met_by):
        found.setdefault(frozenset(met_by[topic]), []).append(topic)
    return [Met(topics, sorted(by)) for by, topics in found.items()]
