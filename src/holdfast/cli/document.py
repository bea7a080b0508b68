"""Commands that are given a document: a file, or stdin."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from holdfast.cli.refusals import Misused

F = TypeVar("F", bound=Callable[..., None])


def with_file(command: F) -> F:
    return click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))(command)


def read_stdin() -> str:
    """Documents are UTF-8 whatever the locale: read in another encoding, a payload would be kept as something else."""
    return sys.stdin.buffer.read().decode()


def read_text(file: Path, *, forms: str) -> str:
    """The whole of it; "-" is stdin. `forms` says what it may be written as."""
    try:
        return read_stdin() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise Misused(f"{file}: {error.strerror}. Name an existing file") from error
    except UnicodeDecodeError as error:
        raise Misused(f"{file}: not a text in UTF-8. Write it as {forms}") from error
