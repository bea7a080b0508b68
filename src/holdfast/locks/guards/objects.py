"""Fenced objects in a store that writes on condition: S3, GCS, Azure Blob, or a directory.

The mark lives in the object's metadata, so an object and its mark change in one conditional put.
Every writer of a guarded object must come through a guard: one that does not know of the mark
drops it with the metadata.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self
from urllib.parse import quote

from holdfast.locks.errors import StaleFence, Unavailable
from holdfast.locks.fence import NO_MARK, Mark, rule
from holdfast.locks.guards.fenced import Fenced, require_fence

#: How often a put is tried again because the object changed between our read and our write.
RACES_MAX = 20

_MARK = "holdfast-mark"
_VOID = "holdfast-void"


class PreconditionFailed(Exception):
    """The object is not, or no longer, the one the put was meant to replace. Nothing was written."""


class StoredObject(NamedTuple):
    data: bytes
    metadata: Mapping[str, str]
    etag: str


class ConditionalStore(Protocol):
    """What a guard needs of an object store. Reads see every put that has returned."""

    def get(self, name: str) -> StoredObject | None:
        """The object with its metadata, of one version, or None if there is none."""

    def put(self, name: str, data: bytes, metadata: Mapping[str, str], *, if_match: str | None) -> str:
        """Replace the version whose etag is `if_match`, or create the object if that is None.

        Returns the new etag. Raises `PreconditionFailed` if another version is there.
        """


class ObjectGuard:
    """Reads and writes of one object that no overtaken holder can follow.

        with ObjectGuard(lease, store, "reports/42") as report:
            report.write(update(report.read()))

    Entering claims the object: from then on every older fence is refused, so what is read stays
    true until it is written. Each write carries the lease's next sequence number; a delayed
    earlier one cannot overwrite it. All of it raises `StaleFence` once a newer holder has
    claimed the object, and `LeaseLost` once the lease is not to be trusted any more.

    `once_per_fence` admits a single write in the whole life of the lease, through whichever guard.
    A lease without a fence (a local fallback) is a `ValueError`. Calls block: from asyncio use `asyncio.to_thread(guard.write, …)`.
    """

    def __init__(self, lease: Fenced, store: ConditionalStore, name: str, *, once_per_fence: bool = False) -> None:
        require_fence(lease, name)
        self._lease = lease
        self._store = store
        self._name = name
        self._once_per_fence = once_per_fence

    def __enter__(self) -> Self:
        # A claim is no operation: with number 0 it leaves the one write of a fence to come.
        self._offer(Mark(self._lease.fence, 0 if self._once_per_fence else self._lease.next_seq()), None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The claim stays: it is what keeps older holders out."""

    def read(self) -> bytes | None:
        """The object's content, None if it was never written."""
        self._lease.check()
        found = self._store.get(self._name)
        current = _mark(found)
        if current.fence > self._lease.fence:
            self._lease.fence_refused(self._name)
            raise StaleFence(self._name, current=current, offered=Mark(self._lease.fence, current.seq))
        return None if found is None or _VOID in found.metadata else found.data

    def write(self, data: bytes) -> None:
        """Replace the content. If it raises anything but `StaleFence`, it may or may not have happened."""
        self._offer(Mark(self._lease.fence, self._lease.next_seq()), data)

    def _offer(self, offered: Mark, data: bytes | None) -> None:
        """Raise the mark, and replace the data unless it is None, in one conditional put."""
        for _ in range(RACES_MAX):
            self._lease.check()
            found = self._store.get(self._name)
            current = _mark(found)
            before = NO_MARK if current == Mark(offered.fence, 0) else current
            ruling = rule(before, offered, once_per_fence=self._once_per_fence)
            if not ruling.accepted:
                self._lease.fence_refused(self._name)
                raise StaleFence(self._name, current=current, offered=offered)
            if ruling.repeated:
                return  # a client library has repeated our put by itself, and reported the refusal
            try:
                self._put(found, offered, data)
            except PreconditionFailed:
                continue  # somebody else was faster: who it was decides what it means for us
            return
        raise Unavailable(self._name, f"changed {RACES_MAX} times while it was to be written", applied=False)

    def _put(self, found: StoredObject | None, mark: Mark, data: bytes | None) -> None:
        metadata = dict(found.metadata) if found else {_VOID: "1"}
        metadata[_MARK] = f"{mark.fence}.{mark.seq}"
        if data is None:
            data = found.data if found else b""
        else:
            metadata.pop(_VOID, None)
        self._store.put(self._name, data, metadata, if_match=found.etag if found else None)


class FileObjects:
    """Objects as files of one directory, for the processes of one host. A put survives a power cut.

    A file is a line of JSON, the metadata, and the data after it.
    """

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)

    def get(self, name: str) -> StoredObject | None:
        try:
            content = self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        metadata, _, data = content.partition(b"\n")
        return StoredObject(data, json.loads(metadata), hashlib.sha256(content).hexdigest())

    def put(self, name: str, data: bytes, metadata: Mapping[str, str], *, if_match: str | None) -> str:
        content = json.dumps(dict(metadata), sort_keys=True).encode() + b"\n" + data
        path = self._path(name)
        unfinished = path.with_suffix(".unfinished")
        with self._locked():
            found = self.get(name)
            if (found.etag if found else None) != if_match:
                raise PreconditionFailed(name)
            with open(unfinished, "wb") as file:
                file.write(content)
                file.flush()
                # Synced before it gets its name: after a power cut the name must not lead to an empty file.
                os.fsync(file.fileno())
            unfinished.replace(path)
            self._sync_directory()
        return hashlib.sha256(content).hexdigest()

    def _path(self, name: str) -> Path:
        return self._directory / f"{quote(name, safe='')}.object"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._directory / "lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed, also by our death
            yield

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _mark(found: StoredObject | None) -> Mark:
    if found is None or _MARK not in found.metadata:
        return NO_MARK
    fence, _, seq = found.metadata[_MARK].partition(".")
    return Mark(int(fence), int(seq))
