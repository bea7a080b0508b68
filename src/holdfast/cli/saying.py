"""What a person's word needs: who says it, and why."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import click

F = TypeVar("F", bound=Callable[..., None])


with_by = click.option(
    "--by", envvar="HOLDFAST_ACTOR", show_envvar=True, default="", metavar="NAME", help="Who you are."
)


class Span(click.ParamType[float]):
    """A length of time with its unit, such as 90s, 30m, 2h or 1d."""

    name = "time"
    _UNITS: ClassVar = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", value)
        if found is None or float(found[1]) == 0:
            self.fail(f"{value!r} is no length of time. Write 90s, 30m, 2h or 1d", param, ctx)
        return float(found[1]) * self._UNITS[found[2]]


class Seconds(click.FloatRange):
    """A number of seconds that can be waited for. Neither NaN, which no range keeps out, nor infinity is one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


def with_reason(words: str) -> Callable[[F], F]:
    return click.option("--reason", required=True, metavar="TEXT", callback=_not_blank, help=words)


def _not_blank(_: click.Context, param: click.Parameter, reason: str) -> str:
    if not reason.strip():
        raise click.BadParameter("it is what the next person reads", param=param)
    return reason
