"""`holdfast up`: the plane itself, as one process; and each of its roles as a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.connect import DEFAULTS
from holdfast.cli.logs import log_to_stderr, with_log
from holdfast.cli.refusals import Away, Failed, Misused

if TYPE_CHECKING:
    from holdfast.config import Settings

Command = Callable[..., Any]
GATEWAY_PORT = 7070


def _settings_options(*, store: str = "", port: str = "HOLDFAST_PORT, 7070") -> Callable[[Command], Command]:
    options = (
        click.option(
            "--config", type=click.Path(dir_okay=False, path_type=Path), envvar="HOLDFAST_CONFIG", show_envvar=True,
            help="A TOML file with the settings and topics of the plane.",
        ),
        click.option("--store", metavar="URL", help=f"Where jobs are kept.  [default: HOLDFAST_STORE{store}]"),
        click.option(
            "--bus", metavar="URL", help="What carries jobs to workers: nats://…  [default: HOLDFAST_BUS, in the store]"
        ),
        click.option(
            "--host", help="Beyond loopback only with HOLDFAST_API_KEY set.  [default: HOLDFAST_HOST, 127.0.0.1]"
        ),
        click.option("--port", type=int, help=f"0 takes a free one.  [default: {port}]"),
    )  # fmt: skip

    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


@click.command()
@_settings_options(store=", sqlite:///holdfast.db")
@click.option("--demo", is_flag=True, help="With two workers and a stream of jobs, in a store that goes with it.")
@with_log("Log every step of every job.")
def up(
    config: Path | None,
    *,
    store: str | None,
    bus: str | None,
    host: str | None,
    port: int | None,
    demo: bool,
    verbose: bool,
    log_format: str,
) -> None:
    """Run the control plane, until SIGTERM or Ctrl-C.

    Gateway, scheduler and the recovery loops, in one process. Everything it acknowledges is in the
    store: it may be killed and started again at any time.
    """
    log_to_stderr(verbose=verbose, log_format=log_format)
    flags = {"store": store, "bus": bus, "host": host, "port": port}
    if demo:
        from holdfast import demo as show  # noqa: PLC0415

        with nullcontext(store) if store else show.own_store() as url:
            settings = load_settings(config, {**flags, "store": url})
            _run(settings, show.up(settings, announce=_tell_what_to_try))
    else:
        from holdfast import app  # noqa: PLC0415  (what only this command needs)

        settings = load_settings(config, flags)
        _run(settings, app.up(settings, announce=_tell_where))


def _role(name: str, port: int, explanation: str) -> click.Command:
    """The command of one role. Its port is not that of the settings, which is the gateway's: they may be shared."""
    is_gateway = port == GATEWAY_PORT

    @click.command(name, help=explanation)
    @_settings_options(port=f"HOLDFAST_PORT, {port}" if is_gateway else str(port))
    @with_log("Log every step of every job.")
    def run(
        config: Path | None, *, store: str | None, bus: str | None, host: str | None, port: int | None,
        verbose: bool, log_format: str,
    ) -> None:  # fmt: skip
        from holdfast import app  # noqa: PLC0415
        from holdfast.roles import Role  # noqa: PLC0415

        log_to_stderr(verbose=verbose, log_format=log_format)
        flags = {"store": store, "bus": bus, "host": host, "port": own_port if port is None else port}
        settings = load_settings(config, flags)
        _run(settings, app.up(settings, roles={Role(name)}, announce=lambda url: _tell_where(url, f"holdfast {name}")))

    own_port = None if is_gateway else port
    return run


gateway = _role(
    "gateway",
    GATEWAY_PORT,
    """Run the plane's HTTP alone: for clients, people and workers.

    Any number of them on one store, behind one address. Jobs go on only where schedulers and reconcilers run, too.
    """,
)
scheduler = _role(
    "scheduler",
    7071,
    """Run the plane's schedulers alone: they dispatch jobs, advance runs and obey schedules.

    Any number of them on one store. Says how it is at --port.
    """,
)
reconciler = _role(
    "reconciler",
    7072,
    """Run the plane's recovery alone, and what may wait a moment: expiry, webhooks, retention.

    Any number of them on one store; most of its loops work in one of them at a time. Says how it is at --port.
    """,
)


def load_settings(config: Path | None, flags: dict[str, str | int | None]) -> Settings:
    from holdfast.config import load  # noqa: PLC0415
    from holdfast.errors import HoldfastError  # noqa: PLC0415

    try:
        return load(config, flags)
    except HoldfastError as error:
        raise Misused(str(error)) from error


def _tell_where(url: str, who: str = "holdfast") -> None:
    click.echo(f"{who} is up at {url}", err=True)


def _tell_what_to_try(url: str, agents: dict[str, int]) -> None:
    _tell_where(url)
    (first, pid), (second, other) = agents.items()
    if url != DEFAULTS["url"]:
        click.echo(f"\nIn another shell, first:\n  export HOLDFAST_URL={url}", err=True)
    click.echo(
        f"""
Two workers, {first} and {second}, are working on a stream of jobs. Try, in another shell:
  holdfast top                            how it all stands, live
  holdfast job watch                      everything that happens
  holdfast job list --state running       and `holdfast job get ID`, `holdfast why job ID`
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
