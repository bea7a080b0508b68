"""Locks, done wrong: each of these has been somebody's bug."""

from __future__ import annotations

from typing import Any

from locks.invariants import Resource

from holdfast.locks.fence import Mark, Ruling
from holdfast.locks.front import Front
from holdfast.locks.keeper import Keeper
from holdfast.locks.lease import Lease
from holdfast.locks.local_queue import LocalQueue
from holdfast.locks.locks import Locks
from holdfast.locks.port import Busy, Grant, Standing
from holdfast.locks.renewal import Belief, Verdict, believe
from holdfast.locks.stores.sqlite.table import Ask, Held, Table
from simulation.lock_link import LinkedStore
from simulation.mutant import Mutant
from simulation.world import SimRuntime

# -- the store ---------------------------------------------------------------------------------------


def _release_blindly(self: Table, key: str, token: str) -> bool:
    held = self._find(key)
    if held is None:
        return False
    self._end(key, held, "released")
    return True


def _renew_blindly(self: Table, renewal: Any) -> Standing:
    held = self._find(renewal.key)
    if held is None:
        return Standing.GONE
    self._keep(renewal.key, held, renewal.ttl_ms)
    return Standing.OWNED


def _mint_by_counter(self: Table, fences: int) -> int:
    last = int(self._meta("last_fence") or 0)
    self.known.last_fence = last + fences
    self._fence_moved = True
    return last + 1


def _mint_with_the_lease(self: Table, fences: int) -> int:
    """The counter's key has a ttl, as the lock's: it starts anew."""
    self._fence_moved = False
    return 1 + self._now_ms % 7


def _take_over_expired_early(self: Table, key: str) -> Held | None:
    held = self._look_up(key)
    return held if held is not None and held.expires - 1500 > self._now_ms else None


def _never_expire(self: Table, key: str) -> Held | None:
    return self._look_up(key)


def _grant_again(self: Table, ask: Ask) -> Grant | Busy:
    """The holder who repeats its request gets another fence: its first reply was lost, and burnt one."""
    held = self._find(ask.key)
    if held is not None and held.token == ask.token:
        return Grant(self._grant(ask, ask.ttl_ms).fence)
    return _acquire(self, ask)


def _own_lock_is_foreign(self: Table, ask: Ask) -> Grant | Busy:
    held = self._find(ask.key)
    if held is not None and held.token == ask.token:
        return Busy(held.holder, held.expires - self._now_ms)
    return _acquire(self, ask)


def _jump_the_queue(self: Table, ask: Ask) -> Grant | Busy:
    if self._find(ask.key) is None:
        return Grant(self._grant(ask, ask.ttl_ms).fence)
    return _acquire(self, ask)


def _hand_over_to_nobody(self: Table, key: str) -> Held | None:
    return None


def _hand_over_to_the_dead(self: Table, key: str) -> Held | None:
    """To the first waiter, dead or alive, for a whole ttl."""
    waiting = self._execute(
        "SELECT place, token, ttl_ms, queue_ms, fences, holder, mailbox FROM holdfast_waiters WHERE key = ? "
        "ORDER BY place LIMIT 1",
        (key,),
    ).fetchone()
    if waiting is None:
        return None
    place, token, ttl_ms, queue_ms, fences, holder, mailbox = waiting
    self._execute("DELETE FROM holdfast_waiters WHERE place = ?", (place,))
    return self._grant(Ask(key, token, ttl_ms, queue_ms, fences, holder, mailbox), ttl_ms)


_acquire = Table.acquire
_TABLE = "holdfast.locks.stores.sqlite.table.Table"

# -- the library -------------------------------------------------------------------------------------


def _trust_from_the_reply(self: Lease, *, sent_at: float, neighbour: Lease | None = None) -> None:
    _renewal_succeeded(self, sent_at=self._runtime.now())


def _acquired_at_the_reply(self: Front, *args: Any, sent_at: float, waited_s: float) -> Lease:
    return _acquired(self, *args, sent_at=self._runtime.now(), waited_s=waited_s)


def _judge_never(belief: Belief, policy: Any, now: float) -> Verdict:
    return Verdict.RENEW if now >= belief.due else Verdict.HOLD


def _believe_to_the_end(policy: Any, **options: Any) -> Belief:
    """No margin: trusted for the whole ttl, counted from the send, plus what the way back took."""
    belief = believe(policy, **options)
    return belief._replace(trusted_until=belief.trusted_until + policy.trust_s)


def _releasable_always(self: Front, lease: Lease) -> None:
    self.keeper.forget(lease)


def _check_nothing(self: Lease) -> None:
    return


def _not_owned_ignored(self: Lease, standing: Standing, *, operation: str) -> None:
    return


def _pass_on_the_same_fence(self: LocalQueue, lease: Lease) -> Lease | None:
    if not self._has_waiter():
        return None
    heir = lease.successor(lease.fence)
    self._waiters.popleft().set_result(heir)
    return heir


def _pass_on_for_ever(self: LocalQueue, lease: Lease) -> Lease | None:
    """Beyond the block of fences that was granted, and however little is left of the lease."""
    if not self._has_waiter():
        return None
    heir = lease.successor(lease.fence + 1)
    self._waiters.popleft().set_result(heir)
    return heir


async def _enter_at_once(self: LocalQueue, wait_s: float) -> None:
    return None


def _same_token(self: SimRuntime) -> str:
    return self._process.name.ljust(32, "x")


def _wall_now(self: SimRuntime) -> float:
    """The time of day instead of a clock that does not step: for those who keep leases, not for the store."""
    step_s = 0.0 if self._process.name == "store" else self._process.wall_step_us / 1e6
    return self._world.clock_s + step_s


async def _undo_nothing(self: Locks, key: str, token: str, until: float) -> None:
    return


def _renewing_forgotten(self: Keeper, leases: list[Lease]) -> None:
    """A renewal that hangs: nobody counts it, nobody tries again."""
    for lease in leases:
        lease.renewing = True


_renewal_succeeded = Lease.renewal_succeeded
_acquired = Front.acquired
_LOCKS = "holdfast.locks"

# -- the resource ------------------------------------------------------------------------------------


def _accept_all(current: Mark, offered: Mark, **_: Any) -> Ruling:
    return Ruling(accepted=True, repeated=offered == current)


def _accept_strictly(current: Mark, offered: Mark, **_: Any) -> Ruling:
    return Ruling(accepted=offered.fence > current.fence, repeated=offered == current)


def _accept_without_sequence(current: Mark, offered: Mark, **_: Any) -> Ruling:
    return Ruling(accepted=offered.fence >= current.fence, repeated=False)


def _read_unfenced(self: Resource, fence: int, seq: int) -> tuple[str, ...]:
    return tuple(self.values)


# -- the protocol ------------------------------------------------------------------------------------


async def _split_fence(self: LinkedStore, key: str, token: str, **options: Any) -> Grant | Busy:
    """SET NX, then INCR: a second request fetches the fence."""
    reply = await _linked_acquire(self, key, token, **options)
    if isinstance(reply, Busy):
        return reply

    async def increment() -> Grant:
        self._story.counter = max(getattr(self._story, "counter", 0), reply.fence) + 1  # type: ignore[attr-defined]
        return Grant(self._story.counter)  # type: ignore[attr-defined]

    fence: Grant = await self._story.network.call(self._process, self._story.server, "INCR", increment)
    self._story.granted[token] = range(fence.fence, fence.fence + 1)
    return fence


_linked_acquire = LinkedStore.acquire

MUTANTS = (
    Mutant("release blindly", "L2", {f"{_TABLE}.release": _release_blindly}),
    Mutant("renew blindly", "L2", {f"{_TABLE}._renew": _renew_blindly}),
    Mutant("count fences without the clock", "L1", {f"{_TABLE}._mint": _mint_by_counter}),
    Mutant("let the fence counter expire", "L1", {f"{_TABLE}._mint": _mint_with_the_lease}),
    Mutant("take over before expiry", "L3", {f"{_TABLE}._find": _take_over_expired_early}),
    Mutant("never expire", "L7", {f"{_TABLE}._find": _never_expire}),
    Mutant("grant a repeat another fence", "L8", {f"{_TABLE}.acquire": _grant_again}),
    Mutant("see one's own lock as foreign", "L8", {f"{_TABLE}.acquire": _own_lock_is_foreign}),
    Mutant("let newcomers jump the queue", "L3", {f"{_TABLE}.acquire": _jump_the_queue}),
    Mutant("hand over to nobody", "L7", {f"{_TABLE}._hand_over": _hand_over_to_nobody}),
    Mutant("hand over to a dead waiter", "L7", {f"{_TABLE}._hand_over": _hand_over_to_the_dead}),
    Mutant("count the window from the renewal's reply", "L6", {f"{_LOCKS}.lease.Lease.renewal_succeeded": _trust_from_the_reply}),
    Mutant("count the window from the grant's reply", "L6", {f"{_LOCKS}.front.Front.acquired": _acquired_at_the_reply}),
    Mutant("never give up a lease", "L6", {f"{_LOCKS}.keeper.judge": _judge_never, f"{_LOCKS}.lease.Lease.check": _check_nothing}),
    Mutant("trust beyond the ttl", "L6", {f"{_LOCKS}.front.believe": _believe_to_the_end, f"{_LOCKS}.lease.believe": _believe_to_the_end}),
    Mutant("release after abandonment", "P3", {f"{_LOCKS}.front.Front.releasable": _releasable_always}),
    Mutant("do not check before use", "L6", {f"{_LOCKS}.lease.Lease.check": _check_nothing}),
    Mutant("renew a lease once, then wait for ever", "L6", {f"{_LOCKS}.keeper.Keeper._renew": _renewing_forgotten, f"{_LOCKS}.lease.Lease.check": _check_nothing}),
    Mutant("pass the same fence on to the next task", "L5", {f"{_LOCKS}.local_queue.LocalQueue.pass_on": _pass_on_the_same_fence}),
    Mutant("pass on beyond the granted fences", "L4", {f"{_LOCKS}.local_queue.LocalQueue.pass_on": _pass_on_for_ever}),
    Mutant("reuse the owner's id", "L5", {"simulation.world.SimRuntime.token": _same_token}),
    Mutant("judge leases by the time of day", "L6", {"simulation.world.SimRuntime.now": _wall_now}),
    Mutant("no fence check", "L4", {"locks.invariants.rule": _accept_all}),
    Mutant("strict > at the resource", "L7", {"locks.invariants.rule": _accept_strictly}),
    Mutant("fence without sequence", "L5", {"locks.invariants.rule": _accept_without_sequence}),
    Mutant("read without fence", "L5", {"locks.invariants.Resource.read": _read_unfenced}),
    Mutant("fetch the fence in a second step", "L4", {"simulation.lock_link.LinkedStore.acquire": _split_fence, f"{_LOCKS}.lease.Lease.check": _check_nothing}),
)  # fmt: skip
