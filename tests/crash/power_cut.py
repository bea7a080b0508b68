"""A power cut: what a disk keeps of a SQLite file when everything stops at one moment.

`Recorder` is a VFS that passes everything through and writes down each write, truncation and
sync. `Recorder.cut` makes, for any moment of the record, a folder as the disk might have been
left: what was synced is there; of what was written since, each sector may be there or not.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import apsw

SECTOR = 512


class Step(NamedTuple):
    name: str
    """Of the file, without its folder."""
    offset: int
    content: bytes
    what: str
    """write, truncate, sync, delete"""


class Recorder(apsw.VFS):
    """The default VFS from its creation until `close`, for files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[Step] = []
        self.room: int | None = None
        """Bytes that may still be written; None: a disk without end."""
        self.beneath = apsw.vfs_names()[0]
        self._registered = True
        super().__init__("holdfast-recorder", self.beneath, makedefault=True)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.steps.append(Step(Path(filename).name, 0, b"", "delete"))
        super().xDelete(filename, syncdir)

    def close(self) -> None:
        if self._registered:
            self._registered = False
            self.unregister()

    def cut(self, moment: int, into: Path, chance: random.Random) -> None:
        """Make `into` what is left of the folder if the power goes after `moment` steps."""
        kept: dict[str, bytearray] = defaultdict(bytearray)
        unsynced: dict[str, list[Step]] = defaultdict(list)
        for step in self.steps[:moment]:
            if step.what == "sync":
                content = kept[step.name]  # a sync also makes the file itself durable
                for done in unsynced.pop(step.name, []):
                    _carry_out(content, done)
            elif step.what == "delete":
                kept.pop(step.name, None)
                unsynced.pop(step.name, None)
            else:
                unsynced[step.name].append(step)
        for name, steps in unsynced.items():
            for step in steps:
                for part in _sectors(step):
                    if chance.random() < 0.5:
                        _carry_out(kept[name], part)
        into.mkdir()
        for name, content in kept.items():
            (into / name).write_bytes(content)


class _File(apsw.VFSFile):
    def __init__(self, recorder: Recorder, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        super().__init__(recorder.beneath, name, flags)
        path = Path(name if isinstance(name, str) else name.filename()) if name is not None else None
        self._recorder = recorder
        self._name = path.name if path is not None and path.parent == recorder.folder else ""

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        recorder = self._recorder
        if self._name:
            if recorder.room is not None:
                if recorder.room < len(data):
                    raise apsw.FullError("the disk is full")
                recorder.room -= len(data)
            recorder.steps.append(Step(self._name, offset, bytes(data), "write"))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        if self._name:
            self._recorder.steps.append(Step(self._name, newsize, b"", "truncate"))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        if self._name:
            self._recorder.steps.append(Step(self._name, 0, b"", "sync"))


def _carry_out(content: bytearray, step: Step) -> None:
    if step.what == "truncate":
        del content[step.offset :]
        return
    content.extend(b"\0" * (step.offset - len(content)))
    content[step.offset : step.offset + len(step.content)] = step.content


def _sectors(step: Step) -> list[Step]:
    if step.what == "truncate":
        return [step]
    return [
        step._replace(offset=step.offset + at, content=step.content[at : at + SECTOR])
        for at in range(0, len(step.content), SECTOR)
    ]
