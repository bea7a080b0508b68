"""How a command says no: one line on stderr, and an exit code that says what kind of no it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.output import printable

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError
    from holdfast.locks.errors import LockError


class Refusal(click.ClickException):
    def format_message(self) -> str:
        return printable(" ".join(self.message.split()))


class Failed(Refusal):
    exit_code = 1


class Misused(Refusal):
    """As click's own usage errors, but in one line and without the usage."""

    exit_code = 2


class Absent(Refusal):
    """No such thing; a lock that is not held."""

    exit_code = 3


class Clash(Refusal):
    """It is not in a state that allows this, or somebody else's."""

    exit_code = 4


class Away(Refusal):
    """The plane or the store could not be asked."""

    exit_code = 5


class TookTooLong(Refusal):
    exit_code = 6


class Broken(Refusal):
    """A promise does not hold: a drill or the doctor has found one."""

    exit_code = 7


_BY_CODE = {"idempotency-key-reused": Clash, "not-an-approver": Clash}
_BY_STATUS = {401: Away, 404: Absent, 409: Clash, 412: Clash, 423: Clash, 429: Away}


def refusal(error: HoldfastError | LockError, *, then: str, said: str = "") -> Refusal:
    """The error as a command tells it, and what to do next."""
    by_status = _BY_STATUS.get(error.status, Away if error.status >= 500 else Misused)
    said = (said or str(error)).rstrip(".")
    return _BY_CODE.get(error.code, by_status)(f"{said}. {then}" if then else said)
