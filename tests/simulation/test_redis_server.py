"""The server in memory answers as a real one does, byte for byte: else a story on it would prove nothing."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import servers
from plane.redis_namespaces import server_url

from holdfast.locks.stores.redis.wire import SCRIPT_SHA
from holdfast.stores.redis.commands import Word
from holdfast.stores.redis.line import encoded
from holdfast.stores.redis.link import READY, WRITE
from simulation.redis_plane_look import KEYS as PLANE
from simulation.redis_plane_story import RedisPlaneStory
from simulation.redis_server import NO_MEMORY, RedisServer, commands_of
from simulation.running import quiet
from simulation.world import WALL_AT_START_US

OVER = b"and that was all"
KEYS = 4
"""Few, so that what is asked for is often there."""


class Both:
    """A real server and one in memory, asked the same."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self._ours = RedisServer(lambda: WALL_AT_START_US, lambda *_: None)
        self._heard: list[bytes] = []

    @property
    def ours(self) -> RedisServer:
        return self._ours

    def check_alike(self, *words: Word) -> bytes:
        request = encoded(words)
        answer = self._ours.feed(request, self._heard.append)
        assert _in_short(answer) == _in_short(self.feed_real(request)), words
        return answer

    def ask_real(self, *words: Word) -> bytes:
        return self.feed_real(encoded(words))

    def feed_real(self, request: bytes) -> bytes:
        self._real.sendall(request + encoded(("ECHO", OVER)))
        received = b""
        while not received.endswith(b"$%d\r\n%b\r\n" % (len(OVER), OVER)):
            received += self._real.recv(65536)
        return received[: -len(b"$%d\r\n%b\r\n" % (len(OVER), OVER))]


def _in_short(answer: bytes) -> bytes:
    """Of an error the code: the rest is for people."""
    return answer.partition(b" ")[0] if answer.startswith(b"-") else answer


@contextmanager
def both_on(url: str) -> Iterator[Both]:
    place = urlsplit(url)
    with closing(socket.create_connection((place.hostname or "127.0.0.1", place.port or 6379), timeout=20)) as real:
        both = Both(real)
        both.ask_real("HELLO", "3")
        both.ask_real("SELECT", "9")
        both.ask_real("FLUSHDB")
        yield both
        both.ask_real("FLUSHDB")


@pytest.fixture
def both(running: dict[str, servers.Server | None]) -> Iterator[Both]:
    with both_on(server_url(running)) as both:
        yield both


class Asker:
    """Draws commands as the stores send them, on a few keys of each kind."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._events = 0

    def _some(self, *words: str) -> list[str]:
        return self.chance.choices(words, k=self.chance.randint(1, 3))

    def key(self, kind: str) -> str:
        return f"{kind}{self.chance.randrange(KEYS)}"

    def any_key(self) -> str:
        return self.key(self.chance.choice(("s", "l", "h", "m", "z", "x", "e")))

    def score(self) -> Word:
        return self.chance.choice((0, 1, -2, 1.5, 1_800_000_000.123456, 1e300, "-inf", "inf", 0.1))

    def member(self) -> str:
        return self.chance.choice(("a", "b", "ab", "ä", "\0", "a\0b"))

    def bound(self) -> Word:
        score = self.score()
        return f"({score!r}" if isinstance(score, int | float) and self.chance.random() < 0.5 else score

    def name_bound(self) -> str:
        return self.chance.choice(("-", "+", f"[{self.member()}", f"({self.member()}"))

    def span(self) -> list[Word]:
        return (
            ["LIMIT", self.chance.randrange(3), self.chance.choice((-1, 0, 1, 2, 9))]
            if self.chance.random() < 0.5
            else []
        )

    def draw(self) -> tuple[Word, ...]:
        chance = self.chance
        verb = chance.choice(
            (self.of_strings, self.of_lists, self.of_hashes, self.of_sets, self.of_sorted, self.of_streams)
        )
        return verb() if chance.random() < 0.95 else self.of_any()

    def of_any(self) -> tuple[Word, ...]:
        key = self.any_key()
        choices: tuple[tuple[Word, ...], ...] = (
            ("DEL", key, self.any_key()),
            ("EXISTS", key, key, self.any_key()),
            ("TYPE", key),
            ("GET", key),
            ("HGET", key, "a"),
            ("ZCARD", key),
            ("SMISMEMBER", key, "a"),
            ("XRANGE", key, "-", "+"),
            ("PEXPIRE", key, 1_000_000),
            ("HDEL", key, "a"),
            ("ZREM", key, "a"),
            ("NOSUCH", key),
        )
        return self.chance.choice(choices)

    def of_strings(self) -> tuple[Word, ...]:
        key = self.key("s")
        return self.chance.choice(
            (("GET", key), ("SET", key, "1"), ("SET", key, "2", "GET"), ("SET", key, "3", "PX", 1_000_000))
        )

    def of_lists(self) -> tuple[Word, ...]:
        key = self.key("l")
        return self.chance.choice((("RPUSH", key, self.member()), ("LPOP", key), ("LREM", key, 1, self.member())))

    def of_hashes(self) -> tuple[Word, ...]:
        key, count, names = self.key("h"), self.key("m"), self._some("a", "b", "ä")
        choices: tuple[tuple[Word, ...], ...] = (
            ("HSET", key, *(word for name in names for word in (name, self.member()))),
            ("HGET", key, names[0]),
            ("HMGET", key, *names),
            ("HGETALL", key),
            ("HVALS", key),
            ("HEXISTS", key, names[0]),
            ("HSTRLEN", key, names[0]),
            ("HDEL", key, *names),
            ("HINCRBY", count, names[0], self.chance.randint(-2, 2)),
            ("HGETALL", count),
        )
        return self.chance.choice(choices)

    def of_sets(self) -> tuple[Word, ...]:
        key, members = self.key("e"), self._some("a", "b", "ä")
        return self.chance.choice((("SADD", key, *members), ("SREM", key, *members), ("SMISMEMBER", key, *members)))

    def of_sorted(self) -> tuple[Word, ...]:
        chance, key, names = self.chance, self.key("z"), self.key("n")
        ranks = (chance.randint(-4, 4), chance.randint(-4, 4))
        lows, highs = (self.bound(), self.bound()), (self.name_bound(), self.name_bound())
        choices: tuple[tuple[Word, ...], ...] = (
            ("ZADD", key, self.score(), self.member(), self.score(), self.member()),
            ("ZADD", names, 0, self.member(), 0, self.member()),
            ("ZREM", key, *self._some("a", "ab", "\0")),
            ("ZREM", names, *self._some("a", "ab", "\0")),
            ("ZCARD", key),
            ("ZCOUNT", key, *lows),
            ("ZSCORE", key, self.member()),
            ("ZMSCORE", key, self.member(), self.member()),
            ("ZRANK", key, self.member()),
            ("ZRANGE", key, *ranks),
            ("ZRANGE", key, *ranks, "WITHSCORES"),
            ("ZRANGE", key, *lows, "BYSCORE", *self.span()),
            ("ZRANGE", key, *lows, "BYSCORE", "REV", *self.span()),
            ("ZRANGE", names, *highs, "BYLEX", *self.span()),
            ("ZRANGE", names, *highs, "BYLEX", "REV", *self.span()),
        )
        return chance.choice(choices)

    def of_streams(self) -> tuple[Word, ...]:
        key, number = self.key("x"), self.chance.randrange(8)
        low, high = self.chance.choice(("-", f"({number}-0", f"{number}")), self.chance.choice(("+", f"{number + 2}-0"))
        count: tuple[Word, ...] = ("COUNT", self.chance.randint(1, 3)) if self.chance.random() < 0.5 else ()
        choices: tuple[tuple[Word, ...], ...] = (
            ("XADD", key, f"{number}-0", "e", self.member()),
            ("XADD", key, f"{number}-1", "e", self.member(), "f", "2"),
            ("XRANGE", key, low, high, *count),
            ("XREVRANGE", key, high, low, *count),
            ("XDEL", key, f"{number}-0", f"{number + 1}-0"),
        )
        return self.chance.choice(choices)


@pytest.mark.parametrize("seed", range(4))
def test_commands_are_answered_alike(both: Both, seed: int) -> None:
    asker = Asker(seed)
    for _ in range(1500):
        both.check_alike(*asker.draw())


def test_commands_are_answered_alike_from_within_scripts(both: Both) -> None:
    asker = Asker(99)
    for _ in range(800):
        words = asker.draw()
        both.check_alike("EVAL", "return redis.pcall(unpack(ARGV))", 0, *words)


def test_scores_are_written_the_same(both: Both) -> None:
    for score in (0, -3, 0.5, 12.25, 1800000014.032235, 1800000013.9738207, -20480.1234567, 9999.1234567):
        both.check_alike("ZADD", "z", score, "m")
        both.check_alike("ZSCORE", "z", "m")


def test_script_that_says_that_it_only_reads_may_not_write(both: Both) -> None:
    both.check_alike("EVAL", "#!lua flags=no-writes\nreturn redis.call('GET', 'k')", 0)
    refused = both.check_alike("EVAL", "#!lua flags=no-writes\nreturn redis.call('SET', 'k', 1)", 0)

    assert refused.startswith(b"-")
    assert both.check_alike("EXISTS", "k") == b":0\r\n"


def test_what_a_script_returns_becomes_the_same_reply(both: Both) -> None:
    for value in ("1", "1.9", "'x'", "true", "false", "nil", "{1, {2, 'x'}, false, 3}", "{1, nil, 3}", "{}"):
        both.check_alike("EVAL", f"return {value}", 0)
    for members in (999, 1000, 1001, 3500):
        both.check_alike("EVAL", "local all = {} for n = 1, ARGV[1] do all[n] = {n, 'x'} end return all", 0, members)
    both.check_alike("EVAL", "return {ok = 'fine'}", 0)
    both.check_alike("EVAL", "return {err = 'MINE is bad'}", 0)
    both.check_alike("EVALSHA", "0" * 40, 0)


def test_server_without_memory_refuses_the_same() -> None:
    """Scripts that say what they do before they begin; others at their first write, and not after one that frees memory."""
    server = servers.redis_server().start()
    try:
        with both_on(server.url) as both:
            both.check_alike("RPUSH", "l", "1")
            both.ours.is_full = True
            both.ask_real("CONFIG", "SET", "maxmemory", "1")
            assert both.check_alike("SET", "k", "1") == f"-{NO_MEMORY}\r\n".encode()
            both.check_alike("DEL", "k")
            both.check_alike("GET", "k")
            both.check_alike(
                "EVAL", WRITE.text, 6, "h", "t", "d", "f", "r", "e", "", "w", "p", 1, 1, "c", 0, 0, 0, 0, "", ""
            )
            both.check_alike("EVAL", READY.text, 1, "r", "", "x" * 8, 1, 9, 0, 0, 0, 0)
            both.check_alike("EVAL", "return redis.call('SET', 'k', 1)", 0)
            both.check_alike("EVAL", "redis.call('DEL', 'l') return redis.call('SET', 'k', 1)", 0)
            both.ask_real("CONFIG", "SET", "maxmemory", "0")
    finally:
        server.remove()


class Told(RedisPlaneStory):
    """A story of which every request is kept, with its reply."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.requests: list[tuple[bytes, bytes, bool]] = []
        """Each with whether it was somebody's turn."""

    def _strikes(self) -> list[Callable[[], None]]:
        return []  # no restarts: the real server would have to go along

    def _stand_ins(self) -> dict[str, Any]:
        return super()._stand_ins() | {"simulation.redis_server.RedisServer.feed": self._keeping(RedisServer.feed)}

    def _keeping(self, feed: Callable[..., bytes]) -> Callable[..., bytes]:
        def wrapped(server: RedisServer, request: bytes, hear: Any) -> bytes:
            is_turn = server.find(PLANE.turn.encode()) is not None
            reply = feed(server, request, hear)
            if server is self.redis:
                self.requests.append((request, reply, is_turn))
            return reply

        return wrapped


NOT_COMPARED = (b"HELLO", b"INFO", b"TIME", b"SUBSCRIBE", SCRIPT_SHA.encode(), b"SCRIPT")
"""What depends on who is asked, and when; locks do."""


@pytest.mark.parametrize("seed", range(2))
def test_all_that_planes_ask_in_a_story_is_answered_alike(both: Both, seed: int) -> None:
    story = Told(seed)
    with quiet():
        story.run()
    both.ask_real("SCRIPT", "FLUSH")
    for request, reply, is_turn in story.requests:
        if any(word in NOT_COMPARED for words in commands_of(request) for word in words[:2]):
            continue
        # A turn ends by the clock, and here the clock is another.
        both.ask_real(*(("PERSIST", PLANE.turn) if is_turn else ("DEL", PLANE.turn)))
        assert _in_short(reply) == _in_short(both.feed_real(request)), [words[:3] for words in commands_of(request)]
