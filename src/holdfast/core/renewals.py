"""What became of renewals that failed: counted by the hour, so that another matrix can be tried on the last day.

An episode is a row of failures of one lease: how many came one after the other, and how it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind, Record
from holdfast.locks.policy import LockClass

HOUR_S = 3600.0
KEPT_S = 24 * HOUR_S


class Ending(StrEnum):
    RECOVERED = "recovered"
    """A later renewal succeeded."""
    FENCED = "fenced"
    """It was given up, and the work was cancelled."""
    SUSPECT = "suspect"
    """It was given up, and the work went on."""
    FALLBACK = "fallback"
    """No renewal: the store was away at acquire, and a local lock was taken."""


class Episode(NamedTuple):
    namespace: str
    ending: Ending
    failures: int


class Hour(msgspec.Struct, frozen=True, kw_only=True):
    """One process, one hour."""

    start: float
    holder: str
    counts: list[tuple[str, str, int, int]]
    """namespace, ending, failures, how many."""


def hour_of(now: float) -> float:
    return now - now % HOUR_S


def hour_id(start: float, holder: str) -> str:
    """Sorts by time."""
    return f"{int(start):012d}.{holder}"


def hour_record(start: float, holder: str, counts: Counter[Episode], *, version: int) -> Record:
    rows = sorted((one.namespace, str(one.ending), one.failures, count) for one, count in counts.items())
    return Record(
        kind=Kind.RENEWALS,
        tenant=PLANE,
        id=hour_id(start, holder),
        version=version,
        created_at=start,
        body=msgspec.json.encode(Hour(start=start, holder=holder, counts=rows)),
    )


def counts_from(records: Iterable[Record]) -> Counter[Episode]:
    counts: Counter[Episode] = Counter()
    for record in records:
        for namespace, ending, failures, count in msgspec.json.decode(record.body, type=Hour).counts:
            counts[Episode(namespace, Ending(ending), failures)] += count
    return counts


def would_be(episode: Episode, draft: LockClass) -> str:
    """What would have become of an episode under another class; as far as can be known."""
    given_up = "fenced" if draft.on_renewal_failure == "fence" else "suspect"
    match episode.ending:
        case Ending.FALLBACK:
            return "fallback" if draft.on_store_error == "local" else "failed"
        case Ending.RECOVERED:
            return given_up if episode.failures >= draft.renewal_failures else "recovered"
        case Ending.FENCED | Ending.SUSPECT:
            # It was given up here; with more patience it would have been tried once more, and nobody knows what then.
            return given_up if episode.failures >= draft.renewal_failures else "tried again"
