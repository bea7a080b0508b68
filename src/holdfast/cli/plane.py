"""`holdfast up`: the plane itself, as one process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.connect import Away, Failed, Misused

if TYPE_CHECKING:
    from holdfast.config import Settings


def log_to_stderr(*, verbose: bool) -> None:
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # What our libraries say about each request and each event of their loops is not about jobs.
    for name in ("asyncio", "httpcore", "httpx", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)


def verbosely(words: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("-v", "--verbose", is_flag=True, help=words)


@click.command()
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), envvar="HOLDFAST_CONFIG", show_envvar=True,
    help="A TOML file with the settings and topics of the plane.",
)  # fmt: skip
@click.option("--store", metavar="URL", help="Where jobs are kept.  [default: HOLDFAST_STORE, sqlite:///holdfast.db]")
@click.option("--host", help="Beyond loopback only with HOLDFAST_API_KEY set.  [default: HOLDFAST_HOST, 127.0.0.1]")
@click.option("--port", type=int, help="0 takes a free one.  [default: HOLDFAST_PORT, 7070]")
@verbosely("Log every step of every job.")
def up(config: Path | None, store: str | None, host: str | None, port: int | None, *, verbose: bool) -> None:
    """Run the control plane, until SIGTERM or Ctrl-C.

    Gateway, scheduler, reconciler and replayer, in one process. Everything it acknowledges is in
    the store: it may be killed and started again at any time.
    """
    from holdfast.config import load  # noqa: PLC0415  (what only this command needs)
    from holdfast.errors import HoldfastError  # noqa: PLC0415

    log_to_stderr(verbose=verbose)
    try:
        settings = load(config, {"store": store, "host": host, "port": port})
    except HoldfastError as error:
        raise Misused(str(error)) from error
    _run(settings)


def _run(settings: Settings) -> None:
    import uvloop  # noqa: PLC0415

    from holdfast import app  # noqa: PLC0415
    from holdfast.errors import HoldfastError  # noqa: PLC0415
    from holdfast.locks.errors import LockError  # noqa: PLC0415

    try:
        uvloop.run(app.up(settings, announce=lambda url: click.echo(f"holdfast is up at {url}", err=True)))
    except (HoldfastError, LockError) as error:
        raise Away(f"{error}. Check --store or HOLDFAST_STORE") from error
    except ValueError as error:
        raise Misused(f"{error}. Check --store or HOLDFAST_STORE") from error
    except OSError as error:
        raise Failed(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}. "
            "Choose another --port, or end what listens there"
        ) from error
