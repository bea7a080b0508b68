"""What waits of one tenant, read a few at a time; and what is passed over."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable

from holdfast.core.job import Job
from holdfast.stores.dispatchable import Without

KEY = "decision ->> '$.concurrency.key'"
"""Of the limit that the job's decision names; NULL if none."""
HAS_LABEL = "EXISTS (SELECT 1 FROM json_each(labels) AS label WHERE label.key = ? AND label.value = ?)"

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
    for topic, labels in without.demands:
        conditions += f"AND NOT (topic = ?{f' AND {HAS_LABEL}' * len(labels)}) "
        values += (topic, *itertools.chain.from_iterable(labels))
    return conditions, values
