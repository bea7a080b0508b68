"""`ObjectGuard` over `FileObjects`: no overtaken holder writes, whatever comes between its read and its write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from fenced_lease import Lease

from holdfast.locks.errors import LeaseLost, StaleFence, Unavailable
from holdfast.locks.guards.objects import FileObjects, ObjectGuard, PreconditionFailed, StoredObject


@pytest.fixture
def objects(tmp_path: Path) -> FileObjects:
    return FileObjects(tmp_path)


@dataclass
class Disturbed:
    """A store in which something happens just before, or just after, the next put."""

    store: FileObjects
    before: Callable[[], object] | None = None
    refuse_after: bool = False

    def get(self, name: str) -> StoredObject | None:
        return self.store.get(name)

    def put(self, name: str, data: bytes, metadata: Mapping[str, str], *, if_match: str | None) -> str:
        before, self.before = self.before, None
        if before:
            before()
        etag = self.store.put(name, data, metadata, if_match=if_match)
        if self.refuse_after:
            raise PreconditionFailed(name)
        return etag


# -- FileObjects -----------------------------------------------------------------------------------


def test_put_is_conditional_and_keeps_metadata(objects: FileObjects) -> None:
    etag = objects.put("a/ü", b"one\ntwo", {"k": "v"}, if_match=None)

    assert objects.get("a/ü") == StoredObject(b"one\ntwo", {"k": "v"}, etag)
    for wrong in [None, "another"]:
        with pytest.raises(PreconditionFailed):
            objects.put("a/ü", b"", {}, if_match=wrong)
    with pytest.raises(PreconditionFailed):
        objects.put("absent", b"", {}, if_match=etag)
    assert objects.put("a/ü", b"three", {}, if_match=etag) != etag
    assert objects.get("absent") is None


def test_odd_names_stay_inside_the_directory(objects: FileObjects, tmp_path: Path) -> None:
    for name in ["..", "../up", "/root", "a b"]:
        objects.put(name, name.encode(), {}, if_match=None)

    assert all((found := objects.get(name)) and found.data == name.encode() for name in ["..", "../up", "/root", "a b"])
    assert len(list(tmp_path.glob("*.object"))) == 4


def test_one_of_many_concurrent_creations_wins(objects: FileObjects) -> None:
    def create(n: int) -> bool:
        try:
            objects.put("x", b"%d" % n, {}, if_match=None)
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(40))) == 1


# -- the guard -------------------------------------------------------------------------------------


def test_holder_reads_and_writes_many_times(objects: FileObjects) -> None:
    with ObjectGuard(Lease(7), objects, "x") as guard:
        assert guard.read() is None
        guard.write(b"one")
        guard.write(b"two")
        assert guard.read() == b"two"


def test_overtaken_holder_can_neither_write_nor_read_nor_enter(objects: FileObjects) -> None:
    old = ObjectGuard(Lease(7), objects, "x")
    with old:
        old.write(b"old")
        with ObjectGuard(Lease(8), objects, "x") as new:  # the claim alone shuts the old one out
            with pytest.raises(StaleFence) as caught:
                old.write(b"late")
            with pytest.raises(StaleFence):
                old.read()
            with pytest.raises(StaleFence), old:
                pass
            assert new.read() == b"old"

    assert caught.value.current == (8, 1)
    assert caught.value.offered == (7, 3)


def test_claim_between_read_and_put_wins(objects: FileObjects) -> None:
    disturbed = Disturbed(objects)
    with ObjectGuard(Lease(7), disturbed, "x") as old:
        disturbed.before = ObjectGuard(Lease(8), objects, "x").__enter__

        with pytest.raises(StaleFence):
            old.write(b"late")

    assert ObjectGuard(Lease(8), objects, "x").read() is None


def test_race_with_an_older_holder_is_won(objects: FileObjects) -> None:
    old = ObjectGuard(Lease(7), objects, "x")
    with old:
        disturbed = Disturbed(objects, before=lambda: old.write(b"old"))
        with ObjectGuard(Lease(8), disturbed, "x") as new:
            assert new.read() == b"old"  # written before our claim, so our read sees it


def test_write_repeated_by_a_client_library_is_one_write(objects: FileObjects) -> None:
    with ObjectGuard(Lease(7), disturbed := Disturbed(objects), "x") as guard:
        disturbed.refuse_after = True
        guard.write(b"once")

    assert guard.read() == b"once"


def test_lost_lease_starts_nothing(objects: FileObjects) -> None:
    lease = Lease(7)
    with ObjectGuard(lease, objects, "x") as guard:
        lease.lost = True
        with pytest.raises(LeaseLost):
            guard.write(b"late")
        with pytest.raises(LeaseLost):
            guard.read()


def test_lease_without_a_fence_guards_nothing(objects: FileObjects) -> None:
    with pytest.raises(ValueError, match="held locally"):
        ObjectGuard(Lease(0), objects, "x")
    with pytest.raises(ValueError, match="NUL"):
        ObjectGuard(Lease(7), objects, "x\0y")


def test_once_per_fence_admits_one_write(objects: FileObjects) -> None:
    lease = Lease(7)
    with ObjectGuard(lease, objects, "x", once_per_fence=True) as guard:
        guard.write(b"one")
        with pytest.raises(StaleFence):
            guard.write(b"two")
    with pytest.raises(StaleFence), ObjectGuard(lease, objects, "x", once_per_fence=True):
        pass

    with ObjectGuard(Lease(8), objects, "x", once_per_fence=True) as guard:
        guard.write(b"three")
    assert guard.read() == b"three"


def test_other_metadata_is_kept(objects: FileObjects) -> None:
    objects.put("x", b"data", {"content-type": "text/plain"}, if_match=None)

    with ObjectGuard(Lease(7), objects, "x") as guard:
        assert guard.read() == b"data"
        guard.write(b"more")

    found = objects.get("x")
    assert found is not None
    assert found.metadata["content-type"] == "text/plain"


def test_object_that_never_rests_is_given_up(objects: FileObjects) -> None:
    class Restless(Disturbed):
        def put(self, name: str, data: bytes, metadata: Mapping[str, str], *, if_match: str | None) -> str:
            raise PreconditionFailed(name)

    with pytest.raises(Unavailable) as caught, ObjectGuard(Lease(7), Restless(objects), "x"):
        pass
    assert caught.value.applied is False


def test_increments_of_many_holders_are_not_lost(objects: FileObjects) -> None:
    def add(fence: int) -> int:
        try:
            with ObjectGuard(Lease(fence), objects, "sum") as guard:
                guard.write(b"%d" % (int(guard.read() or 0) + 1))
        except StaleFence:
            return 0
        return 1

    with ThreadPoolExecutor(6) as pool:
        written = sum(pool.map(add, range(1, 61)))

    found = objects.get("sum")
    assert found is not None
    assert int(found.data) == written > 0
