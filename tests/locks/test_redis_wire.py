"""What we say to Redis and understand of it, without a socket."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from holdfast.locks.stores.redis.wire import Parser, Push, ReplyError, parse_url


def test_replies_are_understood_however_they_are_cut() -> None:
    stream = b"+OK\r\n:42\r\n$5\r\na\r\nbc\r\n-ERR no\r\n*2\r\n$0\r\n\r\n_\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n%1\r\n$1\r\nk\r\n:1\r\n"
    for size in range(1, len(stream) + 1):
        parser = Parser()
        replies = [reply for i in range(0, len(stream), size) for reply in parser.feed(stream[i : i + size])]
        ok, number, text, error, array, push, table = replies
        assert (ok, number, text, array, push, table) == (
            b"OK",
            42,
            b"a\r\nbc",
            [b"", None],
            [b"message", b"c", b"m"],
            [b"k", 1],
        )
        assert isinstance(error, ReplyError)
        assert error.code == "ERR"
        assert isinstance(push, Push)


def test_replies_within_replies_are_understood_however_they_are_cut() -> None:
    stream = b"*3\r\n*2\r\n*0\r\n*1\r\n:1\r\n~1\r\n=5\r\ntxt:a\r\n*1\r\n-ERR no\r\n*-1\r\n+OK\r\n"
    for size in range(1, len(stream) + 1):
        parser = Parser()
        replies = [reply for i in range(0, len(stream), size) for reply in parser.feed(stream[i : i + size])]
        [[nested, text, [error]], nothing, ok] = replies
        assert (nested, text, nothing, ok) == ([[], [1]], [b"a"], [], b"OK")
        assert isinstance(error, ReplyError)


def test_long_reply_takes_no_more_steps_than_its_length() -> None:
    """Of jobs with the largest payload there is, in pieces as a socket gives them. To begin anew with each piece took
    a hundred times as long, and the connection was given up before."""

    def steps(members: int) -> int:
        stream = b"*%d\r\n" % members + (b"$1048576\r\n" + bytes(1 << 20) + b"\r\n") * members
        pieces = [stream[i : i + (1 << 17)] for i in range(0, len(stream), 1 << 17)]
        parser, taken = Parser(), 0

        def count(_frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
            nonlocal taken
            taken += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            replies = [parser.feed(piece) for piece in pieces]
        finally:
            sys.settrace(before)
        assert [len(reply) for got in replies for reply in got] == [members]
        return taken

    assert steps(32) < 9 * steps(4)


def test_urls_name_what_they_say() -> None:
    one = parse_url("rediss://me:p%40ss@db.example:7000/5?ssl_cert_reqs=none").addresses[0]
    assert (one.host, one.port, one.db, one.username, one.password, one.tls is None) == (
        "db.example",
        7000,
        5,
        "me",
        "p@ss",
        False,
    )
    assert "p@ss" not in repr(one)
    assert parse_url("unix:///run/redis.sock?db=2").addresses[0].path == "/run/redis.sock"
    assert parse_url("valkey://[::1]:7000").addresses[0].host == "::1"
    seeds = parse_url("redis+cluster://:pw@a:1,b").addresses
    assert [(seed.host, seed.port, seed.password) for seed in seeds] == [("a", 1, "pw"), ("b", 6379, "pw")]
    service = parse_url("redis+sentinel://u:pw@a:1,b/pay/4?sentinel_password=other")
    assert [(s.host, s.port, s.password) for s in service.addresses] == [("a", 1, "other"), ("b", 26379, "other")]
    assert service.account is not None
    assert (service.service, service.account.db, service.account.password) == ("pay", 4, "pw")
