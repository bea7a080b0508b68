"""What is asked of locks in Postgres, and in which order a batch asks it. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from operator import itemgetter
from typing import Any

#: Requests per statement: in a longer one the first would wait too long for the last.
BATCH_MAX = 200
DIGEST_CHARS = 32

#: An acquire, or a release, which has a ttl of 0: key, token, ttl_ms, queue_ms, fences, deadline, and who waits for it.
#: A plain tuple: there are two for every lock, and one with names takes three times as long to make.
Request = tuple[str, str, int, int, int, float, asyncio.Future[Any]]
#: The same of a whole batch: all keys, all tokens and so on.
Columns = tuple[Any, ...]
_KEY = itemgetter(0)


def in_order(requests: Sequence[Request]) -> tuple[list[Request], int]:
    """The requests as they are to be sent, and how many of them are the first of their key: those come first, in key order."""
    batch = sorted(requests, key=_KEY)
    firsts = len({*map(_KEY, batch)})
    if firsts < len(batch):
        earliest: dict[str, Request] = {request[0]: request for request in reversed(requests)}
        batch = [earliest[key] for key in sorted(earliest)]
        batch += [request for request in requests if earliest[request[0]] is not request]
    return batch, firsts


def is_uniform(columns: Columns) -> bool:
    """Whether all are releases, or acquires that ask for the same."""
    _, _, ttls, _, fences, _, _ = columns
    return bool(ttls.count(ttls[0]) == fences.count(fences[0]) == len(ttls))


def answers_of(row: Sequence[Any]) -> tuple[dict[str, int], dict[int, tuple[int, str, int | None]]]:
    """The fences by key of what `holdfast_batch` did at once; and by position fence, holder and remaining ms of what it did
    one by one. Numbers come as texts."""
    keys, fences, *late_columns = (column or () for column in row)
    late = {
        int(at) - 1: (int(fence), holder, remaining_ms and int(remaining_ms))
        for at, fence, holder, remaining_ms in zip(*late_columns, strict=True)
    }
    return dict(zip(keys, map(int, fences), strict=True)), late


@lru_cache(maxsize=BATCH_MAX * 20)
def digest_of(token: str) -> str:
    # Whatever somebody takes for a token: one that cannot be encoded would end the batch it shares with others.
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
