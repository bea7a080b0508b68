"""Cancelling what waits and what works: nothing is eaten, nothing is held, nothing is left behind.

The block's own rules are told in `cancellation.py`, under every Python that is found.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.locks import LeaseLost, LockBusy, LockClass, Locks, SyncLocks, UndeclaredClass
from locks.cancellation import STORIES, Story, tell
from locks.faults import Fault, Network
from locks.invariants import Told, check_history
from locks.virtual import VirtualRuntime, on_virtual_time

ROOT = Path(__file__).parents[2]
JOB = LockClass("job", ttl=30, wait=5)
LOCAL = LockClass("run", ttl=30, wait=5, local_mutex=True)


@pytest.mark.parametrize("told", STORIES, ids=lambda told: told.__name__)
def test_in_a_block(told: Story) -> None:
    tell(told)


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_in_a_block_on_another_python(version: str) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine: the block's rules were not run there")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    told = subprocess.run(
        [python, ROOT / "tests/locks/cancellation.py"], env=environment, capture_output=True, text=True, check=False
    )

    assert told.returncode == 0, told.stdout


def find_python(version: str) -> str | None:
    """An interpreter that runs: on the path, or among pyenv's."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += [str(p) for p in sorted(pyenv.glob(f"versions/{version}.*/bin/python3"))]
    for candidate in candidates:
        if candidate and runs(candidate, version):
            return candidate
    return None


def runs(python: str, version: str) -> bool:
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    return answer.stdout.strip() == version


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("lock_class", [JOB, LOCAL], ids=["plain", "local"])
@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
@on_virtual_time
async def test_cancelling_at_any_await_leaves_no_lock_held(
    runtime: VirtualRuntime, held: bool, lock_class: LockClass
) -> None:
    """Every step of an acquire: while asking, while queued, in the tick of the grant; with slow links."""
    for request_s, reply_s in [(0.0, 0.0), (0.01, 0.0), (0.0, 0.01)]:
        for steps in range(25):
            async with await Network.over("sqlite:///:memory:", runtime) as network:
                async with network.locks("A") as locks, network.locks("B") as rival:
                    holding = await rival.acquire(lock_class, "x") if held else None
                    network.fault("acquire", None, who="A", request_s=request_s, reply_s=reply_s)
                    waiting = asyncio.create_task(locks.acquire(lock_class, "x"))
                    await asyncio.sleep(0.001 * (steps // 2))
                    if holding is not None and steps % 3 == 0:
                        await rival.release(holding)
                        holding = None
                    await ticks(steps % 5)
                    waiting.cancel()
                    done = await asyncio.gather(waiting, return_exceptions=True)
                    if holding is not None:
                        await rival.release(holding)
                    await asyncio.sleep(1)

                    if isinstance(done[0], asyncio.CancelledError):
                        assert await rival.inspect(lock_class, "x") is None
                        assert locks._queues == {}
                check_history(network.history)


@on_virtual_time
async def test_a_turn_that_comes_to_a_cancelled_task_goes_on_to_the_next(runtime: VirtualRuntime) -> None:
    """Local mutex: handed the lock and cancelled in the same tick, before it could run."""
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        first = await locks.acquire(LOCAL, "x")
        second = asyncio.create_task(locks.acquire(LOCAL, "x"))
        third = asyncio.create_task(locks.acquire(LOCAL, "x"))
        await ticks(3)
        await locks.release(first)
        second.cancel()
        lease = await third

        assert lease.fence > first.fence
        lease.check()
        await locks.release(lease)
        assert await locks.inspect(LOCAL, "x") is None
        assert locks._queues == {}


@on_virtual_time
async def test_cancelling_during_the_release_still_releases(runtime: VirtualRuntime) -> None:
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        lease = await locks.acquire(JOB, "x")
        network.fault("release", None, times=1, request_s=0.5)
        releasing = asyncio.create_task(locks.release(lease))
        await asyncio.sleep(0.1)
        releasing.cancel()
        await asyncio.gather(releasing, return_exceptions=True)
        await asyncio.sleep(1)

        assert releasing.cancelled()
        assert await locks.inspect(JOB, "x") is None


@on_virtual_time
async def test_cancelling_while_they_are_closed_leaves_no_keeper_and_no_errand(runtime: VirtualRuntime) -> None:
    """A keeper that was left would renew for as long as the process runs. `on_virtual_time` asks for what is left."""
    async with await Network.over("sqlite:///:memory:", runtime) as network:
        locks = network.locks()
        await locks.open()
        await locks.acquire(JOB, "kept")
        network.fault("release", Fault.FAIL)
        await locks.release(await locks.acquire(JOB, "x"))
        closing = asyncio.create_task(locks.close())
        await asyncio.sleep(1)
        assert not closing.done()
        closing.cancel()
        await asyncio.wait([closing])

        assert closing.cancelled()
        tried = network.history.tried("renew")
        await asyncio.sleep(60)
        assert network.history.tried("renew") == tried


@on_virtual_time
async def test_an_override_holds_for_its_time_and_reverts_by_itself(runtime: VirtualRuntime) -> None:
    told = Told()
    async with await Network.over("sqlite:///:memory:", runtime) as network:
        async with network.locks(observer=told, classes=[JOB]) as locks:
            with pytest.raises(UndeclaredClass):
                locks.override("nobody", reason="incident 7", ttl=5)
            with pytest.raises(ValueError, match="reason"):
                locks.override("job", reason=" ", ttl=5)
            with pytest.raises(ValueError, match="no such setting"):
                locks.override("job", reason="incident 7", colour="red")
            locks.override("job", reason="incident 7", for_s=60, on_renewal_failure="continue")

            during = await locks.acquire("job", "x")
            await asyncio.sleep(61)
            after = await locks.acquire("job", "y")

            assert during.carries_on
            assert not after.carries_on
            assert told.values("policy_changed", "reason") == ["incident 7", "the override has run out"]
            await locks.release(during)
            await locks.release(after)


@on_virtual_time
async def test_an_override_to_local_does_not_let_two_in(runtime: VirtualRuntime) -> None:
    """An incident: A's lease from before it is lost while B already works on the local mutex alone."""
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks(classes=[JOB]) as locks:
        old = await locks.acquire("job", "x")
        network.fault("*", Fault.FAIL)
        locks.override("job", reason="store down", on_store_error="local", wait=0)
        await asyncio.sleep(31)
        fallback = await locks.acquire("job", "x")
        with pytest.raises(LeaseLost):
            await locks.release(old)

        assert fallback.fallback
        with pytest.raises(LockBusy):
            await locks.acquire("job", "x")
        await locks.release(fallback)


@on_virtual_time
async def test_two_tasks_on_a_local_fallback_follow_each_other(runtime: VirtualRuntime) -> None:
    both = LockClass("both", ttl=30, wait=0.2, local_mutex=True, on_store_error="local")
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        network.fault("*", Fault.FAIL)
        first = await locks.acquire(both, "x")
        second = asyncio.create_task(locks.acquire(both, "x", wait=5))
        await asyncio.sleep(0.1)
        await locks.release(first)
        lease = await second

        assert lease.fallback
        await locks.release(lease)


@on_virtual_time
async def test_renewing_a_local_fallback_by_hand_does_not_end_it(runtime: VirtualRuntime) -> None:
    """It has no end. The store, back again, has never heard of it, and would say so."""
    by_hand = LockClass("hand", ttl=30, renew_every=0, wait=0.2, on_store_error="local")
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        network.fault("*", Fault.FAIL)
        lease = await locks.acquire(by_hand, "x")
        network.heal()
        await locks.renew(lease)

        lease.check()
        await locks.release(lease)


@pytest.mark.parametrize("renew_every", [None, 0.0], ids=["renewed", "not renewed"])
@on_virtual_time
async def test_whoever_a_lock_is_passed_on_to_has_the_whole_of_max_hold(
    runtime: VirtualRuntime, renew_every: float | None
) -> None:
    bounded = LockClass("bounded", ttl=60, wait=50, local_mutex=True, max_hold=30, renew_every=renew_every)
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        first = await locks.acquire(bounded, "x")
        waiting = asyncio.create_task(locks.acquire(bounded, "x"))
        await asyncio.sleep(5)
        await locks.release(first)
        heir = await waiting
        assert heir.fence == first.fence + 1
        await asyncio.sleep(29)

        heir.check()
        assert network.history.tried("renew") == (1 if renew_every is None else 0)
        await asyncio.sleep(1.1)
        with pytest.raises(LeaseLost):
            heir.check()
        with pytest.raises(LeaseLost):
            await locks.release(heir)


FORKING = """
import asyncio, os, sys
from holdfast.locks import LeaseLost, LockClass, LockError, Locks, SyncLocks

JOB = LockClass("job", ttl=30)


def in_child(lease, leave):
    pid = os.fork()
    if pid == 0:
        try:
            assert lease.remaining() == 0
            try:
                lease.check()
            except LeaseLost:
                leave()
                os._exit(0)
        except BaseException as error:
            print(f"child: {error!r}", flush=True)
        os._exit(1)
    return os.waitpid(pid, 0)[1]


def threads(url):
    with SyncLocks(url) as locks:
        lease = locks.acquire(JOB, "x")
        try:
            status = in_child(lease, lambda: release(locks, lease))
        finally:
            still = locks.inspect(JOB, "x")
        lease.check()
        return status == 0 and still is not None and still.fence == lease.fence


def release(locks, lease):
    try:
        locks.release(lease)
    except LockError:
        return
    raise AssertionError("a child released its parent's lease")


async def tasks(url):
    async with Locks(url) as locks:
        lease = await locks.acquire(JOB, "x")

        def leave():
            steps = locks.release(lease)
            try:
                steps.send(None)
            except LockError:
                return
            raise AssertionError("a child began to release its parent's lease")

        status = in_child(lease, leave)
        still = await locks.inspect(JOB, "x")
        lease.check()
        return status == 0 and still is not None and still.fence == lease.fence


kind, url = sys.argv[1:]
sys.exit(0 if (threads(url) if kind == "threads" else asyncio.run(tasks(url))) else 1)
"""


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_forked_child_does_not_hold_its_parent_s_leases(tmp_path: Path, kind: str) -> None:
    """It is told so, it cannot release them, and it does not hang in trying; the parent goes on."""
    command = [sys.executable, "-W", "ignore", "-c", FORKING, kind, f"sqlite:///{tmp_path}/locks.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            said, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            pytest.fail("the child hangs")

    assert process.returncode == 0, said


def test_interrupting_a_waiting_thread_leaves_no_lock_held(tmp_path: Path) -> None:
    """Ctrl-C while queued: the place is given up, and the lock does not come later to nobody."""
    script = f"""
import os, signal, threading, time
from holdfast.locks import LockClass, SyncLocks
JOB = LockClass("job", ttl=30, wait=20)
url = "sqlite:///{tmp_path}/locks.db"
with SyncLocks(url, holder="other") as other, SyncLocks(url) as locks:
    lease = other.acquire(JOB, "x")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        locks.acquire(JOB, "x")
        raise SystemExit("not interrupted")
    except KeyboardInterrupt:
        pass
    time.sleep(1.2)  # longer than a waiter needs to confirm its place
    other.release(lease)
    time.sleep(0.1)
    holder = other.inspect(JOB, "x")
    raise SystemExit(f"held by {{holder}}" if holder else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)

    assert done.returncode == 0, done.stderr[-500:]


def test_threads_release_what_a_cancelled_block_held(tmp_path: Path) -> None:
    with SyncLocks(f"sqlite:///{tmp_path}/locks.db") as locks:
        with pytest.raises(KeyboardInterrupt), locks.hold(JOB, "x"):
            raise KeyboardInterrupt

        assert locks.inspect(JOB, "x") is None


async def test_cancelling_a_block_releases_its_lock(tmp_path: Path) -> None:
    async with Locks(f"sqlite:///{tmp_path}/locks.db") as locks:
        entered = asyncio.Event()

        async def work() -> None:
            async with locks.hold(JOB, "x"):
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()
        assert await locks.inspect(JOB, "x") is None
