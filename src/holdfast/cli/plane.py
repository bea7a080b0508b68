"""`holdfast up`: the plane itself, as one process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.connect import DEFAULTS
from holdfast.cli.refusals import Away, Failed, Misused

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
@click.option(
    "--bus", metavar="URL", help="What carries jobs to workers: nats://…  [default: HOLDFAST_BUS, in the store]"
)
@click.option("--host", help="Beyond loopback only with HOLDFAST_API_KEY set.  [default: HOLDFAST_HOST, 127.0.0.1]")
@click.option("--port", type=int, help="0 takes a free one.  [default: HOLDFAST_PORT, 7070]")
@click.option("--demo", is_flag=True, help="With two workers and a stream of jobs, in a store that goes with it.")
@verbosely("Log every step of every job.")
def up(
    config: Path | None,
    *,
    store: str | None,
    bus: str | None,
    host: str | None,
    port: int | None,
    demo: bool,
    verbose: bool,
) -> None:
    """Run the control plane, until SIGTERM or Ctrl-C.

    Gateway, scheduler and the recovery loops, in one process. Everything it acknowledges is in the
    store: it may be killed and started again at any time.
    """
    log_to_stderr(verbose=verbose)
    flags = {"store": store, "bus": bus, "host": host, "port": port}
    if demo:
        from holdfast import demo as show  # noqa: PLC0415

        with nullcontext(store) if store else show.own_store() as url:
            settings = _load(config, {**flags, "store": url})
            _run(settings, show.up(settings, announce=_tell_what_to_try))
    else:
        from holdfast import app  # noqa: PLC0415  (what only this command needs)

        settings = _load(config, flags)
        _run(settings, app.up(settings, announce=_tell_where))


def _load(config: Path | None, flags: dict[str, str | int | None]) -> Settings:
    from holdfast.config import load  # noqa: PLC0415
    from holdfast.errors import HoldfastError  # noqa: PLC0415

    try:
        return load(config, flags)
    except HoldfastError as error:
        raise Misused(str(error)) from error


def _tell_where(url: str) -> None:
    click.echo(f"holdfast is up at {url}", err=True)


def _tell_what_to_try(url: str, agents: dict[str, int]) -> None:
    _tell_where(url)
    (first, pid), (second, other) = agents.items()
    if url != DEFAULTS["url"]:
        click.echo(f"\nIn another shell, first:\n  export HOLDFAST_URL={url}", err=True)
    click.echo(
        f"""
Two workers, {first} and {second}, are working on a stream of jobs. Try, in another shell:
  holdfast job watch                      everything that happens
  holdfast job list --state running       and `holdfast job get ID`, `holdfast job events ID`
  holdfast job submit report.write --payload '{{"seconds": 3}}' --wait
  holdfast dead-letter list               jobs that were given up; `holdfast dead-letter replay NUMBER`
  holdfast effect list                    a refund whose worker crashed: paid or not? Nobody repeats it, until
  holdfast effect resolve JOB pay --state committed --reason "it is in the bank's list"
  kill -STOP {pid:<7}                      stop {first}: in a few seconds its jobs are {second}'s
  kill -CONT {pid:<7}                      let it go on: what it says too late is refused
  kill -9 {other:<7}                         kill {second}: it comes back, and is handed its jobs again
Ctrl-C ends it all.""",
        err=True,
    )


def _look_at(settings: Settings) -> str:
    return "Check --store or HOLDFAST_STORE" + (", --bus or HOLDFAST_BUS" if settings.bus else "")


def _run(settings: Settings, serving: Coroutine[Any, Any, None]) -> None:
    import uvloop  # noqa: PLC0415

    from holdfast.errors import HoldfastError, Invalid  # noqa: PLC0415
    from holdfast.locks.errors import LockError  # noqa: PLC0415

    try:
        uvloop.run(serving)
    except Invalid as error:
        raise Misused(str(error)) from error
    except (HoldfastError, LockError) as error:
        raise Away(f"{error}. {_look_at(settings)}") from error
    except ValueError as error:
        raise Misused(f"{error}. {_look_at(settings)}") from error
    except OSError as error:
        raise Failed(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}. "
            "Choose another --port, or end what listens there"
        ) from error
