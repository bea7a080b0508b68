"""Which process a worker id names, and when it is proved dead."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from holdfast.api import Name
from holdfast.worker.identity import Identity, find_start, is_dead, own_identity


def test_worker_id_is_a_name_that_the_plane_accepts() -> None:
    worker = own_identity().worker_id("mail/sender-with-a-name-of-sixty-characters-and-not-one-more-")

    assert msgspec.convert(worker, Name) == worker


def test_living_process_is_not_dead() -> None:
    me = own_identity()

    assert not is_dead(me.worker_id("w"), me)


def test_ended_process_is_dead_even_before_it_is_reaped() -> None:
    me = own_identity()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    worker = me._replace(pid=process.pid, started_at=find_start(process.pid) or "").worker_id("w")
    assert not is_dead(worker, me)

    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(worker, me)
    process.communicate()
    assert is_dead(worker, me)


def test_another_process_with_the_same_number_is_no_proof_of_life() -> None:
    me = own_identity()
    namespace = me.started_at.partition("-")[2]

    assert is_dead(me._replace(started_at=f"1-{namespace}").worker_id("w"), me)


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"host": "other-host"},
        {"boot_id": "00000000-0000"},  # a machine of the same image
        {"started_at": "1-4026530000"},  # a container beside this one
    ],
)
def test_process_that_cannot_be_seen_from_here_is_not_called_dead(elsewhere: dict[str, str]) -> None:
    me = own_identity()
    other = Identity(**{**me._asdict(), "pid": 999_999, **elsewhere})

    assert not is_dead(other.worker_id("w"), me)


@pytest.mark.parametrize("worker", ["", "curl", "w@host", "w@host.1.2", "w@host.1.x.3"])
def test_id_of_another_form_says_nothing(worker: str) -> None:
    assert not is_dead(worker, own_identity())
