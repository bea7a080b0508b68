"""Staying awake for an answer: when it is tried, when it is given up, and what is learnt from that."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
import servers

from holdfast.locks.errors import Unavailable
from holdfast.locks.stores.redis.blocking import COMPANY_S
from holdfast.locks.stores.redis.vigil import SLEEPS_MAX, SLEEPS_MIN, VIGIL_S, Vigil
from locks.redis_setup import A, blocking, granted, opened

pytest_plugins = ["locks.redis_fixtures"]


class Scene:
    """A vigil over one end of a pair of sockets, by a clock that the test sets."""

    def __init__(self) -> None:
        self.ours, self.servers = socket.socketpair()
        self.time = 100.0
        self.vigil = Vigil(self.ours.fileno(), lambda: self.time)

    def keep_in_vain(self) -> None:
        assert self.vigil.begins()
        assert not self.vigil.look()
        self.time += VIGIL_S
        assert not self.vigil.goes_on()
        self.vigil.ended(answered=False)

    def keep_until_answered(self, *, looks: int) -> None:
        assert self.vigil.begins()
        for _ in range(looks - 1):
            assert not self.vigil.look()
        self.servers.send(b"+")
        assert self.vigil.look()
        self.vigil.ended(answered=True)
        self.ours.recv(1)

    def sleeps(self) -> int:
        """How many answers are slept for before the next vigil begins."""
        slept = 0
        while not self.vigil.begins():
            slept += 1
        return slept


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.ours.close()
    scene.servers.close()


def test_vigil_lasts_until_its_time_is_over(scene: Scene) -> None:
    assert scene.vigil.begins()
    scene.time += VIGIL_S * 0.9
    assert scene.vigil.goes_on()
    scene.time += VIGIL_S * 0.2
    assert not scene.vigil.goes_on()


def test_vigil_that_paid_is_kept_again(scene: Scene) -> None:
    for _ in range(3):
        scene.keep_until_answered(looks=2)
        assert scene.sleeps() == 0


def test_far_server_is_looked_for_less_and_less_often(scene: Scene) -> None:
    slept = []
    for _ in range(10):
        scene.keep_in_vain()
        slept.append(scene.sleeps())

    assert slept[:3] == [SLEEPS_MIN, 2 * SLEEPS_MIN, 4 * SLEEPS_MIN]
    assert slept[-1] == SLEEPS_MAX


def test_one_answer_in_time_forgives_earlier_ones(scene: Scene) -> None:
    scene.keep_in_vain()
    scene.sleeps()
    scene.keep_in_vain()
    scene.sleeps()
    scene.keep_until_answered(looks=3)
    scene.keep_in_vain()

    assert scene.sleeps() == SLEEPS_MIN


def test_answer_that_was_there_at_the_first_look_did_not_need_one(scene: Scene) -> None:
    """Other threads had the interpreter in the meantime; one look more only costs another turn."""
    scene.keep_until_answered(looks=1)

    assert scene.sleeps() == SLEEPS_MIN


async def test_loop_sleeps_while_the_server_is_silent(own_server: servers.Server, prefix: str) -> None:
    async with opened(own_server.url, prefix, timeout_s=0.4) as store:
        for _ in range(3):
            await granted(store, f"{prefix}k", A)
        own_server.pause()
        cpu = time.process_time()
        with pytest.raises(Unavailable):
            await store.release(f"{prefix}k", A)
        assert time.process_time() - cpu < 0.2
        own_server.resume()


def test_thread_sleeps_while_the_server_is_silent(own_server: servers.Server, prefix: str) -> None:
    with blocking(own_server.url, prefix, timeout_s=0.4) as store:
        settled_at = time.monotonic() + 2 * COMPANY_S  # a thread counts as alone by then
        while time.monotonic() < settled_at:
            store.release(f"{prefix}k", A)
        own_server.pause()
        cpu = time.process_time()
        with pytest.raises(Unavailable):
            store.release(f"{prefix}k", A)
        assert time.process_time() - cpu < 0.2
        own_server.resume()
