"""Reaching a plane from a command: flag, environment, profile, default, in this order."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import click

from holdfast.cli.output import with_output
from holdfast.cli.refusals import Misused, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.client import Client
    from holdfast.errors import HoldfastError

T = TypeVar("T")

DEFAULTS = {"url": "http://127.0.0.1:7070", "tenant": "default"}
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_API_KEY = re.compile(r"[!-~]*")
_COMMAND = re.compile(r"`[^`]+`")
ABSENT = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value in force, and where it was set."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Which plane a command asks, as whom, and how it is to answer."""

    url: Setting
    tenant: Setting
    profile: str
    """Empty: none is in use."""
    output: str
    api_key: str = field(repr=False)

    @contextmanager
    def plane(self, *, hint: str = "", absent: str = "") -> Iterator[Client]:
        """The plane's client. What goes wrong becomes a `Refusal` of one line, ending in `hint` if it fits; in `absent`, if
        there is no such thing to look at."""
        from holdfast.client import Client  # noqa: PLC0415  (`holdfast --help` speaks to nobody)
        from holdfast.errors import HoldfastError  # noqa: PLC0415

        self.check()
        try:
            with Client(self.url.value, api_key=self.api_key, tenant=self.tenant.value, actor=actor_given()) as client:
                yield client
        except HoldfastError as error:
            self.refuse(error, absent if absent and error.status == ABSENT else hint)

    def ask(self, question: Callable[[Client], T], *, hint: str = "", absent: str = "") -> T:
        with self.plane(hint=hint, absent=absent) as client:
            return question(client)

    def check(self) -> None:
        """What would fail later with less clear words. Values are not repeated: they may contain a secret."""
        check_url(self.url.value, self.url.origin)
        if not _TENANT.fullmatch(self.tenant.value):
            raise Misused(
                f"the tenant (from {self.tenant.origin}) may have up to 64 letters, digits, and '_', '.' or '-' inside"
            )
        if not _API_KEY.fullmatch(self.api_key):
            raise Misused("HOLDFAST_API_KEY contains spaces or characters outside ASCII")

    def refuse(self, error: HoldfastError, hint: str) -> NoReturn:
        from holdfast.errors import Unauthorized  # noqa: PLC0415

        said = f"{self.url.value} refuses the API key" if isinstance(error, Unauthorized) else ""
        then = self._next_step(error, hint)
        if any(command in str(error) for command in _COMMAND.findall(then)):
            then = ""  # the plane has said so itself
        raise refusal(error, then=then, said=said) from error

    def _next_step(self, error: HoldfastError, hint: str) -> str:
        from holdfast import errors  # noqa: PLC0415

        match error:
            case errors.VersionMismatch():
                return f"Look again: {hint}" if hint else "Look again"
            case errors.KeyReused():
                return "Take a new --key, or repeat the first submission exactly"
            case errors.Conflict(code=errors.SessionBusy.code):
                return "`--session-policy enqueue` comes after it, `interrupt` stops it"
            case errors.NotFound() | errors.Conflict():
                return hint
            case errors.NotApprover():
                return "Ask one of those who may, or have them delegate it to you"
            case errors.PlaneUnavailable():
                return _reach(self.url, applied=error.applied)
            case errors.Unauthorized():
                return "Set HOLDFAST_API_KEY to the plane's own"
            case errors.TooMany():
                return f"Repeat it after {max(1.0, error.retry_after_s):.0f} s"
            case _:
                return "Repeat it; the plane's log says more" if error.status >= 500 else ""


def check_url(url: str, origin: str) -> None:
    location, where = _split(url), f"the URL of the plane (from {origin})"
    if location is None:
        raise Misused(f"{where} must look like http://127.0.0.1:7070. Set it with --url or HOLDFAST_URL")
    if "@" in location:
        raise Misused(f"{where} contains a password. Take it out, and set HOLDFAST_API_KEY")


def _split(url: str) -> str | None:
    """The network location of a usable URL."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts.netloc if usable else None


def _reach(url: Setting, *, applied: bool | None) -> str:
    if applied is None:
        return "Whether it was done is not known: look before you repeat it"
    if url.origin == "default":
        return "Start a plane with `holdfast up`, or name one with --url or HOLDFAST_URL"
    return f"Check that the plane is up; its URL is from {url.origin}"


def config_file() -> Path:
    return Path(click.get_app_dir("holdfast")) / "config.toml"


def read_profiles(path: Path) -> dict[str, dict[str, str]]:
    """The profiles of the person's configuration; none if there is no file. Raises `Misused`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Misused(f"{path}: {error}. Correct the file, or move it away") from error
    profiles = document.get("profiles", {})
    strange = sorted(document.keys() - {"profiles"})
    if strange or not isinstance(profiles, dict):
        raise Misused(f"{path}: no such section: {', '.join(strange) or 'profiles'} (there is: profiles.<name>)")
    for name, values in profiles.items():
        _check_profile(path, name, values)
    return profiles


def _check_profile(path: Path, name: str, values: Any) -> None:  # noqa: ANN401  (as TOML has it)
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise Misused(f"{path}: profile {name!r} must be a table of texts")
    if "api_key" in values:
        raise Misused(f"{path}: keep the API key out of files: set HOLDFAST_API_KEY")
    unknown = sorted(values.keys() - DEFAULTS.keys())
    if unknown:
        raise Misused(
            f"{path}: profile {name!r}: no such setting: {', '.join(unknown)} (there are: {', '.join(DEFAULTS)})"
        )


def choose_profile(wanted: str | None) -> tuple[str, dict[str, str]]:
    """The profile by name; without one, "default" if it is there."""
    path = config_file()
    profiles = read_profiles(path)
    if wanted is None:
        return ("default", profiles["default"]) if "default" in profiles else ("", {})
    if wanted not in profiles:
        known = ", ".join(profiles) or "none"
        raise Misused(f"{path}: no profile {wanted!r} (there are: {known}). `holdfast config list` shows what is set")
    return wanted, profiles[wanted]


def connect(context: click.Context, *, profile: str | None, output: str) -> Connection:
    """The connection that the options of a command, the environment and the profile amount to."""
    name, values = choose_profile(profile)

    def setting(option: str) -> Setting:
        given = context.params[option]
        if given is not None:
            flagged = context.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE
            return Setting(name=option, value=given, origin=f"--{option}" if flagged else f"HOLDFAST_{option.upper()}")
        if option in values:
            return Setting(name=option, value=values[option], origin=f"profile {name}")
        return Setting(name=option, value=DEFAULTS[option], origin="default")

    return Connection(
        url=setting("url"), tenant=setting("tenant"), profile=name, output=output, api_key=api_key_given()
    )


def api_key_given() -> str:
    # No option: a flag would be seen by everybody who lists processes.
    return os.environ.get("HOLDFAST_API_KEY", "")  # noqa: TID251


def actor_given() -> str:
    """Who asks, by their own word; empty if they do not say."""
    return os.environ.get("HOLDFAST_ACTOR", "")  # noqa: TID251


def with_plane(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a plane, as one `Connection` in front of its own parameters."""

    @click.option("--url", envvar="HOLDFAST_URL", show_envvar=True,
                  help=f"The plane to ask.  [default: {DEFAULTS['url']}]")  # fmt: skip
    @click.option("--tenant", envvar="HOLDFAST_TENANT", show_envvar=True, help="Whose jobs.  [default: default]")
    @click.option("--profile", envvar="HOLDFAST_PROFILE", metavar="NAME", show_envvar=True,
                  help="Take URL and tenant from this profile of the configuration file.")  # fmt: skip
    @with_output
    @click.pass_context
    @wraps(command)
    def reaching(
        context: click.Context, /, *, url: str, tenant: str, profile: str | None, output: str, **own: object
    ) -> None:
        del url, tenant  # read by `connect`, which also wants to know where they come from
        command(connect(context, profile=profile, output=output), **own)

    return reaching
