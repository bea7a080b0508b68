"""Sorted sets and streams of a Redis server in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from typing import Any

from simulation.redis_keyspace import Keyspace, RedisError

Place = tuple[float, bytes]


class Pairs(list[Any]):
    """Members with their scores. Version 2 of the protocol has no pairs: there they are one after the other."""


class SortedSet:
    """Members by score, and of one score by their bytes."""

    kind = b"zset"

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.places: list[Place] = []

    def __len__(self) -> int:
        return len(self.places)

    def add(self, member: bytes, score: float) -> bool:
        """Whether it is new."""
        before = self.scores.get(member)
        if before == score:
            return False
        if before is not None:
            self.remove(member)
        self.scores[member] = score
        insort(self.places, (score, member))
        return before is None

    def remove(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.places[bisect_left(self.places, (score, member))]
        return True

    def by_score(self, low: bytes, high: bytes) -> list[Place]:
        def at(bound: bytes, *, inside: Callable[..., int], outside: Callable[..., int]) -> int:
            is_open = bound.startswith(b"(")
            score = float(bound[is_open:])
            return (outside if is_open else inside)(self.places, score, key=lambda place: place[0])

        first = at(low, inside=bisect_left, outside=bisect_right)
        return self.places[first : at(high, inside=bisect_right, outside=bisect_left)]

    def by_name(self, low: bytes, high: bytes) -> list[Place]:
        """Of members that all have one score."""

        def at(bound: bytes, *, inside: Callable[..., int], outside: Callable[..., int]) -> int:
            match bound[:1]:
                case b"-":
                    return 0
                case b"+":
                    return len(self.places)
                case b"[":
                    return inside(self.places, bound[1:], key=lambda place: place[1])
                case b"(":
                    return outside(self.places, bound[1:], key=lambda place: place[1])
            raise RedisError("ERR min or max not valid string range item")

        first = at(low, inside=bisect_left, outside=bisect_right)
        return self.places[first : at(high, inside=bisect_right, outside=bisect_left)]

    def by_rank(self, first: int, last: int) -> list[Place]:
        size = len(self.places)
        first, last = (n + size if n < 0 else n for n in (first, last))
        return self.places[max(0, first) : max(0, last + 1)]


class SortedSets(Keyspace):
    def _sorted(self, key: bytes) -> SortedSet:
        return self._of(SortedSet, key) or SortedSet()

    def do_zadd(self, key: bytes, *words: bytes) -> int:
        kept = self._made(SortedSet, key)
        return sum(kept.add(member, float(score)) for score, member in zip(words[::2], words[1::2], strict=True))

    def do_zrem(self, key: bytes, *members: bytes) -> int:
        kept = self._sorted(key)
        gone = sum(kept.remove(member) for member in members)
        self._drop_if_empty(key)
        return gone

    def do_zcard(self, key: bytes) -> int:
        return len(self._sorted(key))

    def do_zcount(self, key: bytes, low: bytes, high: bytes) -> int:
        return len(self._sorted(key).by_score(low, high))

    def do_zscore(self, key: bytes, member: bytes) -> float | None:
        return self._sorted(key).scores.get(member)

    def do_zmscore(self, key: bytes, *members: bytes) -> list[float | None]:
        return [*map(self._sorted(key).scores.get, members)]

    def do_zrank(self, key: bytes, member: bytes) -> int | None:
        kept = self._sorted(key)
        score = kept.scores.get(member)
        return None if score is None else bisect_left(kept.places, (score, member))

    def do_zrange(self, key: bytes, start: bytes, stop: bytes, *options: bytes) -> list[Any]:
        left = list(options)
        how, is_reversed, with_scores = b"", False, False
        offset, count = 0, -1
        while left:
            match left.pop(0):
                case b"BYSCORE" | b"BYLEX" as how:
                    pass
                case b"REV":
                    is_reversed = True
                case b"WITHSCORES":
                    with_scores = True
                case b"LIMIT":
                    offset, count = int(left.pop(0)), int(left.pop(0))
                case _:
                    raise RedisError("ERR syntax error")
        kept = self._sorted(key)
        low, high = (stop, start) if is_reversed else (start, stop)
        if how:
            found = (kept.by_score if how == b"BYSCORE" else kept.by_name)(low, high)
        else:
            assert not is_reversed, "by rank and reversed: nobody asks so"
            found = kept.by_rank(int(start), int(stop))
        if is_reversed:
            found = found[::-1]
        found = found[offset : None if count < 0 else offset + count]
        if with_scores:
            return Pairs([member, score] for score, member in found)
        return [member for _, member in found]


Entry = tuple[tuple[int, int], list[bytes]]


class EntryLog:
    """A stream. It stays when it is empty: no id is ever given out again."""

    kind = b"stream"

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.last = (0, 0)


def _entry_id(text: bytes, missing: int) -> tuple[int, int]:
    first, _, second = text.partition(b"-")
    return int(first), int(second) if second else missing


class Streams(Keyspace):
    def do_xadd(self, key: bytes, *words: bytes) -> bytes:
        last = (self._of(EntryLog, key) or EntryLog()).last
        kept = 0
        if words[0] == b"MAXLEN":
            kept, words = int(words[2]), words[3:]  # "~": roughly, which is exactly here
        entry_id = max((self._now_ms, 0), (last[0], last[1] + 1)) if words[0] == b"*" else _entry_id(words[0], 0)
        if entry_id <= last:
            raise RedisError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        log = self._made(EntryLog, key)
        log.last = entry_id
        log.entries.append((entry_id, list(words[1:])))
        if kept:
            del log.entries[:-kept]
        return b"%d-%d" % entry_id

    def do_xrange(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> list[Any]:
        return self._span(key, low, high)[: _count(options)]

    def do_xrevrange(self, key: bytes, high: bytes, low: bytes, *options: bytes) -> list[Any]:
        return self._span(key, low, high)[::-1][: _count(options)]

    def do_xdel(self, key: bytes, *ids: bytes) -> int:
        log = self._of(EntryLog, key) or EntryLog()
        gone = {_entry_id(entry_id, 0) for entry_id in ids}
        before = len(log.entries)
        log.entries = [entry for entry in log.entries if entry[0] not in gone]
        return before - len(log.entries)

    def _span(self, key: bytes, low: bytes, high: bytes) -> list[Any]:
        entries = (self._of(EntryLog, key) or EntryLog()).entries
        first, last = 0, len(entries)
        if low != b"-":
            is_open = low.startswith(b"(")
            place = _entry_id(low[is_open:], 0)
            first = (bisect_right if is_open else bisect_left)(entries, place, key=lambda entry: entry[0])
        if high != b"+":
            is_open = high.startswith(b"(")
            place = _entry_id(high[is_open:], 2**64)
            last = (bisect_left if is_open else bisect_right)(entries, place, key=lambda entry: entry[0])
        return [[b"%d-%d" % entry_id, fields] for entry_id, fields in entries[first:last]]


def _count(options: tuple[bytes, ...]) -> int | None:
    match options:
        case ():
            return None
        case (b"COUNT", count):
            return int(count)
    raise RedisError("ERR syntax error")
