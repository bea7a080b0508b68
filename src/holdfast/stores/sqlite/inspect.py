"""What a SQLite file says of itself: read from the very connection that writes it, and from the list of mounts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from holdfast.core.inspection import Aspect, Fact, Files, Inspection, Replicas, Sync
from holdfast.errors import StoreUnavailable
from holdfast.locks.errors import LockError
from holdfast.locks.stores import shown
from holdfast.locks.stores.sqlite.store import path_of
from holdfast.locks.stores.sqlite.writer import MEMORY, Writer, join
from holdfast.stores.sqlite.file import find_offset, translated

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs"})
VOLATILE = frozenset({"tmpfs", "ramfs"})
_SYNC = {0: Sync.NEVER, 1: Sync.INTERVAL, 2: Sync.COMMIT, 3: Sync.COMMIT}
_WORDS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


async def inspect(url: str, *, runtime: Runtime, timeout_s: float) -> Inspection:  # noqa: ARG001  (a file answers)
    """Raises `StoreUnavailable` if there is no such file: one that was mistyped must not be made."""
    return await asyncio.get_running_loop().run_in_executor(None, _inspected, url, runtime)


def _inspected(url: str, runtime: Runtime) -> Inspection:
    path = path_of(url, runtime)
    if not path.startswith(MEMORY) and not Path(path).exists():
        raise StoreUnavailable(shown(url), "there is no such file; `holdfast up` makes it", applied=False)
    try:
        look = _look_at(path, shown(url), runtime)
    except LockError as error:
        raise translated(error) from error
    in_memory = path.startswith(MEMORY)
    kind = "" if in_memory else file_system_of(os.path.realpath(path), MOUNTS)
    sync = Fact(
        aspect=Aspect.SYNC,
        value=Sync.NOTHING if in_memory else _SYNC[look.pragmas["synchronous"]],
        setting="file" if in_memory else "synchronous",
        found=MEMORY if in_memory else _WORDS[look.pragmas["synchronous"]],
        fix="keep the plane in a file: sqlite:///holdfast.db" if in_memory else "let Holdfast open the file itself",
    )
    files = Fact(
        aspect=Aspect.FILES,
        value=_files(kind),
        setting="file system",
        found=kind or "unknown",
        fix="move the file to a disk of this machine, or use Postgres or Redis",
    )
    return Inspection(
        engine="SQLite",
        version=apsw.sqlite_lib_version(),
        place=shown(url),
        facts=(sync, Fact(aspect=Aspect.REPLICAS, value=Replicas.NONE, setting="replicas", found="none"))
        + (() if in_memory else (files,)),
        settings={"journal_mode": str(look.pragmas["journal_mode"])},
        clock=look.clock,
        clock_fix="the file keeps the time that this machine had when a plane first opened it after a boot: "
        "set the machine's clock right, then boot it again",
    )


def file_system_of(path: str, mounts: Path) -> str:
    """The type of the file system that a file is on; empty where the machine does not say."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    found = [(line.split()[4], line.partition(" - ")[2].split()[0]) for line in lines]
    inside = [(place, kind) for place, kind in found if path == place or path.startswith(place.rstrip("/") + "/")]
    # The deepest; of several on one place the last one, which hides the others.
    return max(enumerate(inside), key=lambda one: (len(one[1][0]), one[0]))[1][1] if inside else ""


def _files(kind: str) -> Files:
    if kind in NETWORK:
        return Files.NETWORK
    return Files.MEMORY if kind in VOLATILE else Files.LOCAL


def _look_at(path: str, place: str, runtime: Runtime) -> _Look:
    looks: list[_Look] = []

    def make(writer: Writer) -> _Look:
        looks.append(_Look(writer, runtime))
        return looks[0]

    join(path, place, runtime, "inspection", make)
    looks[0].writer.leave()
    return looks[0]


class _Look:
    """A part of the file that writes nothing: it only asks the connection how it is set."""

    def __init__(self, writer: Writer, runtime: Runtime) -> None:
        self.writer = writer
        self.pragmas: dict[str, Any] = {}
        self.clock: float | None = None
        self._runtime = runtime

    def prepare(self, connection: apsw.Connection) -> None:
        self.pragmas = {name: connection.pragma(name) for name in ("synchronous", "journal_mode")}
        offset_s = find_offset(connection, self._runtime)
        self.clock = None if offset_s is None else offset_s + self._runtime.now()

    def begin(self, connection: apsw.Connection) -> Any:
        raise AssertionError("nobody writes through an inspection")

    def committed(self, unit: Any) -> None:
        raise AssertionError("nobody writes through an inspection")
