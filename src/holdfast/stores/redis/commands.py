"""What is to be written, gathered by key: many small changes become a few commands with many arguments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Word = str | bytes | int | float
"""As an argument of a command; a number is written so that it reads back the same."""

WORDS_MAX = 2000
"""Per command: Lua hands on no more than some thousands at once."""


class Commands:
    """Nothing is both added and removed: what is gathered may be written in any order."""

    def __init__(self) -> None:
        self._listed: dict[str, list[Word]] = {}
        self._dropped: dict[str, list[Word]] = {}
        self._put: dict[str, list[Word]] = {}
        self._taken: dict[str, list[Word]] = {}
        self._counted: dict[tuple[str, str], int] = {}
        self._others: list[tuple[Word, ...]] = []

    def list(self, key: str, member: Word, score: float = 0) -> None:
        """Into a sorted set."""
        self._listed.setdefault(key, []).extend((score, member))

    def drop(self, key: str, *members: Word) -> None:
        """From a sorted set."""
        self._dropped.setdefault(key, []).extend(members)

    def put(self, key: str, field: Word, value: Word) -> None:
        """Into a hash."""
        self._put.setdefault(key, []).extend((field, value))

    def take(self, key: str, *fields: Word) -> None:
        """From a hash."""
        self._taken.setdefault(key, []).extend(fields)

    def count(self, key: str, field: str, delta: int) -> None:
        place = (key, field)
        self._counted[place] = self._counted.get(place, 0) + delta

    def also(self, *words: Word) -> None:
        """Some other command, written after those above and in this order."""
        self._others.append(words)

    def commands(self) -> Iterable[tuple[Word, ...]]:
        yield from _of("ZREM", self._dropped, 1)
        yield from _of("HDEL", self._taken, 1)
        yield from _of("HSET", self._put, 2)
        yield from _of("ZADD", self._listed, 2)
        for (key, field), delta in self._counted.items():
            if delta:
                yield ("HINCRBY", key, field, delta)
        yield from self._others


def _of(name: str, gathered: Mapping[str, list[Word]], group: int) -> Iterable[tuple[Word, ...]]:
    """`group`: how many words belong together."""
    size = WORDS_MAX // group * group
    for key, words in gathered.items():
        for start in range(0, len(words), size):
            yield (name, key, *words[start : start + size])
