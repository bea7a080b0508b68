"""The plane's store on Redis, done wrong: its scripts with a line changed, its client, or its ledger of a batch."""

from __future__ import annotations

from typing import Any

from holdfast.core.job import Job
from holdfast.locks.errors import Unavailable
from holdfast.stores.batch import BatchLedger
from holdfast.stores.redis.commands import Commands
from holdfast.stores.redis.index import replace_job
from holdfast.stores.redis.link import PlaneLink
from holdfast.stores.redis.load import Questions, _Loading
from holdfast.stores.redis.writer import Moved
from simulation.mutant import Mutant
from simulation.redis_mutants import edited, give_up_the_question_alone

# -- a batch, decided --------------------------------------------------------------------------------


def _replace_blindly(self: BatchLedger, before: Job, after: Job, look_at: float | None) -> bool:
    """Last writer wins: the version is not looked at."""
    self.versions[before.id] = before.version
    return _replace(self, before, after, look_at)


def _renew_whatever(self: BatchLedger, job_id: Any, *_: Any) -> Job | None:
    """A renewal is answered yes whoever asks."""
    return self.jobs.get(job_id)


async def _look_at_the_head_last(self: _Loading) -> None:
    """What was read before may be older than the head that the write will name."""
    await _then(self)
    head = Questions(self._ask)
    head.add(self._take_head, "GET", self._keys.head)
    await head.answered()


_replace, _then = BatchLedger.replace_job, _Loading.then
_LEDGER = "holdfast.stores.batch.BatchLedger"

# -- a batch, written --------------------------------------------------------------------------------


class _Hoarder(Commands):
    """Nothing leaves a list that it once stood in."""

    def drop(self, key: str, *members: Any) -> None:
        if not key.endswith("ready"):
            super().drop(key, *members)


class _Forgetful(Commands):
    """No list says when recovery is to look at a job."""

    def list(self, key: str, member: Any, score: float = 0) -> None:
        if not key.endswith("live"):
            super().list(key, member, score)


def _write_nothing(*_: Any) -> None:
    """The history tells of a change that nobody has made."""


def _write_no_result(commands: Commands, keys: Any, before: Job, after: Job, look_at: float | None) -> None:
    """A worker's result is taken, and kept nowhere."""
    replace_job(commands, keys, before, after, look_at)
    commands._put.pop(keys.results, None)


async def _ask_nobody(*_: Any) -> None:
    """What was lost cannot have been applied."""
    raise Moved


async def _be_sure(*_: Any) -> None:
    """What was sent will have been applied."""


async def _send_again(self: PlaneLink, *script: Any) -> Any:
    """Whatever the script does."""
    try:
        return await _run(self, *script)
    except Unavailable:
        return await _run(self, *script)


_run = PlaneLink.run
_ANY_NUMBER = ("call('XADD', stream, n", "redis.pcall('XADD', stream, n")
"""A pair with what is wrong before: the stream refuses a number that is taken, and with it nearly every write that comes too late."""
_BATCHES = "holdfast.stores.redis.writer.RedisBatches"
_FLUSH = "holdfast.stores.redis.flush"

MUTANTS = (
    Mutant("write whatever others have written since", "J1", edited(("if (call('GET', head) or '') ~= expected then", "if false then"), _ANY_NUMBER)),
    Mutant("look at the head last", "J1", {"holdfast.stores.redis.load._Loading.then": _look_at_the_head_last, **edited(_ANY_NUMBER)}),
    Mutant("write batches without looking at versions", "J1", {f"{_LEDGER}.replace_job": _replace_blindly}),
    Mutant("ignore the keys of submissions", "J4", {f"{_LEDGER}.find_key": lambda *_: None}),
    Mutant("renew in a batch for whoever asks", "P2", {f"{_LEDGER}._renew": _renew_whatever}),
    Mutant("tell of a change that is not written", "U1", {f"{_FLUSH}.replace_job": _write_nothing}),
    Mutant("write what nobody is told of", "U1", edited(("  call('XADD', stream, n .. '-0', 'e', ARGV[at + 2])\n", ""))),
    Mutant("leave what is dispatched in the list of what waits", "U1", {f"{_FLUSH}.Commands": _Hoarder}),
    Mutant("list no job for recovery", "J8", {f"{_FLUSH}.Commands": _Forgetful}),
    Mutant("take results and keep none", "U1", {f"{_FLUSH}.replace_job": _write_no_result}),
    Mutant("take a write that got lost for undone", "U1", {f"{_BATCHES}._settle": _ask_nobody}),
    Mutant("take a write that got lost for done", "U1", {f"{_BATCHES}._settle": _be_sure}),
    Mutant("send a script again that may have run", "U1", {"holdfast.stores.redis.link.PlaneLink.run": _send_again}),
    Mutant("take another question's answer", "U1", {"holdfast.locks.stores.redis.connection.Connection._drop_overdue": give_up_the_question_alone}),
    Mutant("set the clock by whatever answer comes first", "P2", {"holdfast.stores.server_clock.LOOKS_MAX": 1}),
)  # fmt: skip
