"""Reaching a store from a command: its options, one question at a time, and what an error becomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

import click

from holdfast.cli.output import with_output
from holdfast.cli.refusals import Away, Misused, refusal

if TYPE_CHECKING:
    from holdfast.locks.port import LockStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where a command looks, and how it is to answer."""

    url: str
    prefix: str
    output: str

    def key(self, given: str) -> str:
        """The whole key, whether or not it was given with the prefix. Raises `Misused`."""
        try:
            given.encode()
        except UnicodeEncodeError:
            raise Misused("a key is a text in UTF-8, and this is none") from None
        return given if given.startswith(self.prefix) else self.prefix + given

    def ask(self, question: Callable[[LockStore], Awaitable[T]]) -> T:
        """Connect, ask, disconnect. What goes wrong becomes a `Refusal` with the next step."""
        # Imported here: `holdfast --help` needs no event loop, and no store.
        import asyncio  # noqa: PLC0415

        from holdfast.locks.errors import LockError, Unavailable  # noqa: PLC0415
        from holdfast.locks.runtime import SYSTEM, default_holder  # noqa: PLC0415
        from holdfast.locks.stores import open_store  # noqa: PLC0415

        async def answer() -> T:
            store = open_store(self.url, holder=default_holder(), prefix=self.prefix, runtime=SYSTEM)
            try:
                await store.open()
                return await question(store)
            finally:
                await store.close()

        try:
            self._check_url()
            return asyncio.run(answer())
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="'--store' (or HOLDFAST_STORE)") from error
        except Unavailable as error:
            raise refusal(error, then=_next_step(error.applied)) from error
        except LockError as error:
            raise refusal(error, then="") from error

    def _check_url(self) -> None:
        from holdfast.locks.stores import shown  # noqa: PLC0415  (`holdfast --help` asks no store)
        from holdfast.stores import file_of  # noqa: PLC0415

        file = file_of(self.url)
        # A store makes its file when it opens it: a mistyped name must not be answered with "nothing is held".
        if file is not None and not file.exists():
            raise Away(
                f"{shown(self.url)}: no such file. Name the store your program uses with --store or HOLDFAST_STORE; "
                "a plane is asked for its locks with `holdfast lock classes` and `holdfast why lock KEY`"
            )


def with_access(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a store, as one `Access` in front of its own parameters."""

    @click.option("--store", "url", envvar="HOLDFAST_STORE", default="sqlite:///holdfast.db", metavar="URL",
                  show_default=True, show_envvar=True, help="The store that keeps the locks.")  # fmt: skip
    @click.option(
        "--prefix", default="holdfast:", show_default=True, help="What the keys of this deployment start with."
    )
    @with_output
    @wraps(command)
    def reaching(*, url: str, prefix: str, output: str, **own: object) -> None:
        command(Access(url=url, prefix=prefix, output=output), **own)

    return reaching


def _next_step(applied: bool | None) -> str:  # noqa: FBT001
    if applied is None:
        return "Whether it was done is not known: repeat the command, which is safe"
    return "Check that the store is up, and that --store or HOLDFAST_STORE names it"
