"""Moving: all that a store keeps, into a file, out of one, or straight into another store.

A file is JSON lines: what it is, then a row per line, then how many there were of each kind, with a digest
of each. Without that last line it is not whole, and nothing of it is taken. What was written is read
again and compared before it is committed.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from pathlib import Path
from typing import IO, NamedTuple, cast

import msgspec

from holdfast.errors import Invalid
from holdfast.locks.runtime import Runtime
from holdfast.stores import open_portable
from holdfast.stores.portable import PAGE, Page, Row

FORMAT = 1
GZIP = b"\x1f\x8b"
Progress = Callable[[str, int], None]
"""Told how many rows of a kind there were so far."""


class Begin(msgspec.Struct, frozen=True, tag_field="row", tag="begin"):
    holdfast: str
    """What it is: an export."""
    format: int


class Sum(msgspec.Struct, frozen=True):
    rows: int
    sha256: str
    """Of its lines, in their order."""


class End(msgspec.Struct, frozen=True, tag_field="row", tag="end"):
    sums: dict[str, Sum]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Row | End).decode
_decode_begin = msgspec.json.Decoder(Begin).decode


class Moved(NamedTuple):
    kind: str
    rows: int
    sha256: str


class Tally:
    """Counts and digests of the rows that pass through it, by kind."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._digests: dict[str, hashlib._Hash] = {}
        self._rows: dict[str, int] = {}

    def add(self, page: Page) -> list[bytes]:
        """The page's lines."""
        lines = [_encode(row) for row in page]
        if page:
            kind = str(page[0].__struct_config__.tag)
            digest = self._digests.setdefault(kind, hashlib.sha256())
            for line in lines:
                digest.update(line + b"\n")
            self._rows[kind] = self._rows.get(kind, 0) + len(lines)
            if self._progress is not None:
                self._progress(kind, self._rows[kind])
        return lines

    async def count(self, pages: AsyncIterator[Page]) -> AsyncIterator[Page]:
        async for page in pages:
            self.add(page)
            yield page

    def sums(self) -> dict[str, Sum]:
        return {kind: Sum(self._rows[kind], digest.hexdigest()) for kind, digest in self._digests.items()}

    def moved(self) -> list[Moved]:
        return [Moved(kind, found.rows, found.sha256) for kind, found in self.sums().items()]


async def export_store(
    url: str, file: Path, *, alone: bool, runtime: Runtime, progress: Progress | None = None
) -> list[Moved]:
    """Write a file that `import_store` takes; compressed, if its name ends in `.gz`. Its owner alone may read it.

    Raises `Invalid` if there is such a file. It appears when it is whole and on the disk.
    """
    tally = Tally(progress)
    if file.exists():  # noqa: ASYNC240  (a command has nothing else to do)
        raise _is_there(file)
    part = file.with_name(f"{file.name}.{runtime.token()[:8]}.part")
    raw = _create(part)
    try:
        await _write(url, raw, tally, alone=alone, packed=file.suffix == ".gz", runtime=runtime)
        _appear(part, file)
    finally:
        part.unlink()
    return tally.moved()


async def _write(url: str, raw: IO[bytes], tally: Tally, *, alone: bool, packed: bool, runtime: Runtime) -> None:
    with raw:
        with gzip.open(raw, "wb") if packed else nullcontext(raw) as out:
            out.write(_encode(Begin("export", FORMAT)) + b"\n")
            async with aclosing(open_portable(url, runtime=runtime).dump(alone=alone)) as pages:
                async for page in pages:
                    out.writelines(line + b"\n" for line in tally.add(page))
            out.write(_encode(End(tally.sums())) + b"\n")
        raw.flush()
        os.fsync(raw.fileno())


async def import_store(file: Path, url: str, *, runtime: Runtime, progress: Progress | None = None) -> list[Moved]:
    """Fill an empty store with what a file has, or leave it empty. Raises `Invalid` for a file that is not whole."""
    with _opened(file) as lines:
        return await _fill(url, _read(file, lines), runtime=runtime, progress=progress)


async def migrate_store(source: str, target: str, *, runtime: Runtime, progress: Progress | None = None) -> list[Moved]:
    """Fill an empty store with all that another one has, or leave it empty. Both must be nobody's. The source stays as
    it is."""
    async with aclosing(open_portable(source, runtime=runtime).dump(alone=True)) as pages:
        return await _fill(target, pages, runtime=runtime, progress=progress)


async def _fill(url: str, pages: AsyncIterator[Page], *, runtime: Runtime, progress: Progress | None) -> list[Moved]:
    wanted, found = Tally(progress), Tally()

    async def check(written: AsyncIterator[Page]) -> None:
        async for page in written:
            found.add(page)
        different = [kind for kind, one in wanted.sums().items() if found.sums().get(kind) != one]
        if different or found.sums().keys() != wanted.sums().keys():
            raise Invalid(
                f"what was written is not what was read ({', '.join(different) or 'there is more'}): nothing was kept. "
                "Please report it"
            )

    await open_portable(url, runtime=runtime).load(wanted.count(pages), check=check)
    return wanted.moved()


async def _read(file: Path, lines: IO[bytes]) -> AsyncIterator[Page]:
    tally = Tally()
    page: list[Row] = []
    for row in _rows(file, lines):
        if page and (len(page) == PAGE or type(page[0]) is not type(row)):
            tally.add(page)
            yield page
            page = []
        if isinstance(row, End):
            if row.sums == tally.sums():
                return
            break
        page.append(row)
    raise Invalid(f"{file} is not whole: it was cut off or changed. Nothing was kept")


def _rows(file: Path, lines: IO[bytes]) -> Iterator[Row | End]:
    number = 1
    try:
        begin = _decode_begin(lines.readline())
        if begin.format != FORMAT:
            raise Invalid(
                f"{file} has format {begin.format}, and this release reads {FORMAT}: use the one that wrote it"
            )
        for line in lines:
            number += 1
            yield _decode(line)
    except msgspec.DecodeError as error:
        raise Invalid(f"{file}, line {number}: not of an export: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise Invalid(f"{file} cannot be read to its end: {error}") from error


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    try:
        raw = file.open("rb")
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}; name a file that `holdfast store export` has written") from error
    with raw:
        # Looked at, not read: what comes through a pipe comes once.
        if raw.peek(len(GZIP)).startswith(GZIP):
            with gzip.open(raw) as unpacked:
                yield cast(IO[bytes], unpacked)
        else:
            yield raw


def _create(part: Path) -> IO[bytes]:
    """Payloads are in it: nobody else may read them, and a file that somebody has laid there is not written to."""
    try:
        return os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise Invalid(f"{part}: {error.strerror}; name a file in a folder that can be written") from error


def _appear(part: Path, file: Path) -> None:
    """Under its own name, for good. A link replaces nothing, as a rename would."""
    try:
        file.hardlink_to(part)
    except FileExistsError:
        raise _is_there(file) from None
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}; name a file in a folder that can have links") from error
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_there(file: Path) -> Invalid:
    return Invalid(f"{file} is there already; name a new file")
