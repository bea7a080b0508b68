"""What waits of one tenant, read a few at a time; and what is passed over."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from holdfast.core.job import Job
from holdfast.core.placement import REQUIRE
from holdfast.stores.dispatchable import Met, Without
from holdfast.stores.rows import json_text

KEY = "decision ->> '$.concurrency.key'"
"""Of the limit that the job's decision names; NULL if none."""
HAS_LABEL = "EXISTS (SELECT 1 FROM json_each(labels) AS label WHERE label.key = ? AND label.value = ?)"
_WANTED = f"json_each(labels) AS wanted WHERE wanted.key GLOB '{REQUIRE}*'"
_IS_MET = f"""AND (
    topic NOT IN (SELECT key FROM json_each(?))
    OR NOT EXISTS (SELECT 1 FROM {_WANTED})
    OR NOT EXISTS (
        SELECT 1 FROM {_WANTED} AND wanted.key || '=' || wanted.value NOT IN (
            SELECT (value ->> 2) || '=' || (value ->> 3) FROM json_each(?)
        )
    ) AND EXISTS (
        WITH asked AS MATERIALIZED (SELECT key AS topic, value AS many FROM json_each(?)),
        met AS MATERIALIZED (
            SELECT value ->> 0 AS many, value ->> 1 AS one, value ->> 2 AS name, value ->> 3 AS label FROM json_each(?)
        )
        SELECT 1 FROM (SELECT wanted.key AS name, wanted.value AS label FROM {_WANTED} LIMIT 1) AS any_of_it
        CROSS JOIN met AS enough USING (name, label)
        WHERE enough.many = (SELECT many FROM asked WHERE asked.topic = holdfast_jobs.topic) AND NOT EXISTS (
            SELECT 1 FROM {_WANTED} AND NOT EXISTS (
                SELECT 1 FROM met WHERE met.many = enough.many AND met.one = enough.one
                AND met.name = wanted.key AND met.label = wanted.value
            )
        )
    )
) """  # noqa: S608  (a literal)
"""Whether what it wants is within one of many sets. Mostly somebody wants what is in none: that is asked first, and costs
the same for any number of sets. As one condition, for a chain of them may be too deep."""

Place = tuple[float, str]


class Queue:
    """Read a few at a time: an open statement for each of many tenants would have to be prepared anew."""

    def __init__(self, read: Callable[[Place, int], list[Job]]) -> None:
        self._read = read
        self._place: Place = (-math.inf, "")
        self._jobs: deque[Job] = deque()
        self._is_over = False

    def has_next(self, many: int) -> bool:
        """Whether there is another; where that has to be looked up, so many are read."""
        if not self._jobs and not self._is_over:
            self._jobs.extend(self._read(self._place, many))
            self._is_over = len(self._jobs) < many
        return bool(self._jobs)

    def take(self) -> Job:
        job = self._jobs.popleft()
        self._place = (job.not_before, job.id)
        return job


def passing_over(without: Without) -> tuple[str, list[str]]:
    """The condition that leaves these out, and its values."""
    conditions, values = "", [*without.topics, *without.keys]
    if without.topics:
        conditions += f"AND topic NOT IN ({', '.join('?' * len(without.topics))}) "
    if without.keys:
        conditions += f"AND coalesce({KEY}, '') NOT IN ({', '.join('?' * len(without.keys))}) "
    if without.met:
        asked, met = _told(without.met)
        conditions += _IS_MET
        values += (asked, met, asked, met)
    return conditions, values


def _told(met: Sequence[Met]) -> tuple[str, str]:
    """Which of many lists each topic has; and of each list (many), each set of labels (one), each label."""
    asked = {topic: many for many, group in enumerate(met) for topic in group.topics}
    rows = [
        (many, one, *label) for many, group in enumerate(met) for one, labels in enumerate(group.by) for label in labels
    ]
    return json_text(asked), json_text(rows)
