"""What a person's word needs: who says it, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., None])


with_by = click.option(
    "--by", envvar="HOLDFAST_ACTOR", show_envvar=True, default="", metavar="NAME", help="Who you are."
)


def with_reason(words: str) -> Callable[[F], F]:
    return click.option("--reason", required=True, metavar="TEXT", help=words)
