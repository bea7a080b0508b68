"""Settings: defaults < file (TOML) < `HOLDFAST_*` < flags. Read once, in one place; services get values.

    [plane]                 # each also as HOLDFAST_<NAME>
    store = "sqlite:///holdfast.db"
    bus = ""                # "nats://…"; empty: in the store
    dispatch = "direct"     # "outbox": deliveries are written with the state, and a relay gives them to the bus
    host = "127.0.0.1"
    port = 7070
    live_jobs_max = 100000
    live_runs_max = 10000

    [topics."mail.*"]
    pool = "mail"
    max_attempts = 5
    lease_s = 30
    dispatch_timeout_s = 300
    running_timeout_s = 900
    risk = "high"

    [topics."mail.*".schema]  # a JSON Schema for payloads
    required = ["to"]

    [tenants."acme"]        # "*" stands for all that are not named; 0 is no limit
    live_jobs_max = 1000
    running_max = 20

    [webhooks]
    allow_private = false   # true: webhooks may lead to private and loopback addresses

    [policy]
    file = "policy.yaml"    # published at the start, if it has changed

    [retention]             # 0 keeps it for ever
    finished_jobs_s = 2592000
    dead_letters_s = 7776000

    [people]                # who has a key of their own, by its digest: `holdfast key new alice`
    alice = "sha256:…"

The API key that programs share comes from `HOLDFAST_API_KEY` alone: it is not written into files or command lines.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.people import People
from holdfast.core.retention import Retention
from holdfast.core.retry import Backoff
from holdfast.core.schema import compile_schema
from holdfast.core.share import Quota, Quotas
from holdfast.core.states import Risk
from holdfast.core.topic import Topic, Topics
from holdfast.errors import Invalid
from holdfast.locks.stores import shown as without_password

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_KINDS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
_NUMBER_MAX = 10**12
"""More than anybody waits for or counts to, and few enough for every store."""
_SENDABLE = re.compile(r"([!-~]([ -~]*[!-~])?)?")
_Values = dict[str, Any]
SECTIONS = ("plane", "topics", "tenants", "people", "webhooks", "policy", "retention")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    allow_private: bool = False
    """Webhooks may lead to addresses that only this machine or its network can reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    file: str = ""
    """Rules that a plane publishes when it starts; a relative path is one from the settings file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    # Not in its representation, which debuggers and tracebacks show: passwords are in the URLs.
    store: str = field(default="sqlite:///holdfast.db", repr=False)
    bus: str = field(default="", repr=False)
    """What carries deliveries to workers; empty: the store itself."""
    dispatch: str = "direct"
    """How deliveries come to a bus that is not in the store: `direct`, published after the state and rolled back if
    that fails; `outbox`, written with the state, and passed on by a relay."""
    host: str = "127.0.0.1"
    port: int = 7070
    live_jobs_max: int = 100_000
    live_runs_max: int = 10_000
    run_renewal_failure: str = "fence"
    """What an engine does that cannot renew a run's lock: `fence`, stop; `continue`, go on, and be refused if
    somebody else has taken over."""
    notice_s: float = 0.0
    """After SIGTERM: how long a plane says that it is not ready, and serves on, before it stops listening."""
    drain_s: float = 10.0
    api_key: str = field(default="", repr=False)
    people: People = field(default_factory=People)
    topics: Topics = field(default_factory=Topics)
    tenants: Quotas = field(default_factory=Quotas)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    retention: Retention = field(default_factory=Retention)
    policy: PolicySettings = field(default_factory=PolicySettings)

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.api_key:
            raise Invalid(f"listening on {self.host} needs an API key: set HOLDFAST_API_KEY, or listen on 127.0.0.1")
        if not _SENDABLE.fullmatch(self.api_key):
            raise Invalid(
                "HOLDFAST_API_KEY has blanks or a newline around it, or characters outside ASCII: nobody can send it"
            )
        if not 0 <= self.port <= 65535:
            raise Invalid(f"port must be between 0 and 65535, not {self.port}")
        if self.live_jobs_max < 1:
            raise Invalid(f"live_jobs_max must be at least 1, not {self.live_jobs_max}")
        if self.live_runs_max < 1:
            raise Invalid(f"live_runs_max must be at least 1, not {self.live_runs_max}")
        if min(self.notice_s, self.drain_s) < 0:
            raise Invalid("notice_s and drain_s must be 0 or more seconds")
        if self.dispatch not in {"direct", "outbox"}:
            raise Invalid(f"dispatch must be direct or outbox, not {self.dispatch!r}")
        if self.dispatch == "outbox" and not self.bus:
            raise Invalid("dispatch = outbox needs a bus to pass deliveries on to: name one, nats://…, or leave it out")
        if self.run_renewal_failure not in {"fence", "continue"}:
            raise Invalid(f"run_renewal_failure must be fence or continue, not {self.run_renewal_failure!r}")


_KIND_BY_NAME = {f.name: type(f.default) for f in fields(Settings) if f.default is not MISSING}


def load(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings in force. A name in the file that is unknown is an error that lists the known ones."""
    values = _from_file(path)
    for name, kind in _KIND_BY_NAME.items():
        from_environment = _given(name)
        if from_environment is not None:
            values[name] = _converted(name, from_environment, kind)
    values.update({name: value for name, value in (flags or {}).items() if value is not None})
    return Settings(**values)


def _from_file(path: Path | None) -> _Values:
    """What the file says, each section as what it is made into. Errors name the file."""
    sections: _Values = {name: {} for name in SECTIONS} | _read(path)
    try:
        return {
            **_table("plane", sections["plane"], Settings, besides={*SECTIONS, "api_key"}),
            "topics": Topics(tuple(_topic(name, options) for name, options in sections["topics"].items())),
            "tenants": Quotas({name: _quota(name, options) for name, options in sections["tenants"].items()}),
            "people": People(sections["people"]),
            "webhooks": WebhookSettings(**_table("webhooks", sections["webhooks"], WebhookSettings)),
            "retention": _retention(sections["retention"]),
            "policy": _policy(path, sections["policy"]),
        }
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from error


class Shown(NamedTuple):
    """One setting in force, and where it was set: a variable, the file, or nowhere (`default`)."""

    name: str
    value: str
    origin: str


def explain(path: Path) -> list[Shown]:
    """Every setting of a plane started with this file, but the API key. No password is shown."""
    settings, document = load(path), _read(path)
    shown = [
        Shown(
            f"plane.{f.name}",
            _plain(f.name, getattr(settings, f.name)),
            f"HOLDFAST_{f.name.upper()}" if _given(f.name) is not None else _origin(path, document, "plane", f.name),
        )
        for f in fields(Settings)
        if f.default is not MISSING and f.name != "api_key"
    ]
    # The family of all others stands for topics that are not declared.
    topics = settings.topics.declared
    for topic in topics if any(t.name == "*" for t in topics) else (*topics, Topic(name="*")):
        in_file = document.get("topics", {})
        shown += [
            Shown(
                f"topics.{topic.name}.{f.name}",
                _text(getattr(topic, f.name)),
                _origin(path, in_file, topic.name, f.name),
            )
            for f in fields(Topic)
            if f.name != "name"
        ]
    for tenant, quota in settings.tenants.declared.items():
        shown += [
            Shown(
                f"tenants.{tenant}.{f.name}",
                str(getattr(quota, f.name)),
                _origin(path, document["tenants"], tenant, f.name),
            )
            for f in fields(Quota)
        ]
    shown += [
        Shown(f"people.{name}", digest, _origin(path, document, "people", name))
        for name, digest in settings.people.digests.items()
    ]
    sections: dict[str, Any] = {
        "webhooks": settings.webhooks,
        "policy": settings.policy,
        "retention": settings.retention,
    }
    return shown + [
        Shown(f"{name}.{f.name}", str(getattr(section, f.name)), _origin(path, document, name, f.name))
        for name, section in sections.items()
        for f in fields(section)
    ]


def _origin(path: Path, document: Mapping[str, Any], section: str, name: str) -> str:
    return str(path) if name in document.get(section, {}) else "default"


def _plain(name: str, value: object) -> str:
    return without_password(str(value)) if name in {"store", "bus"} and value else str(value)


def _text(value: object) -> str:
    return " ".join(f"{k}={v}" for k, v in asdict(value).items()) if isinstance(value, Backoff) else str(value)


def _given(name: str) -> str | None:
    return os.environ.get(f"HOLDFAST_{name.upper()}")  # noqa: TID251  (the one place that reads it)


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}; name an existing file with --config") from error
    except ValueError as error:  # bytes that are no text are one as well
        raise Invalid(f"{path}: not valid TOML: {error}") from error
    unknown = sorted(document.keys() - set(SECTIONS))
    if unknown:
        raise Invalid(f"{path}: no such section: {', '.join(unknown)} (there are: {', '.join(SECTIONS)})")
    for name, section in document.items():
        if not isinstance(section, dict):
            raise Invalid(f"{path}: {name} must be a section, [{name}], not {section!r}")
    if "api_key" in document.get("plane", {}):
        raise Invalid(f"{path}: keep the API key out of files: set HOLDFAST_API_KEY")
    return document


def _topic(name: str, options: object) -> Topic:
    where = f"topic {name!r}"
    values = _table(where, options, Topic, besides={"name"})
    try:
        if "risk" in values:
            values["risk"] = _risk(values["risk"])
        if "backoff" in values:
            values["backoff"] = Backoff(**_table(f"{where}: backoff", values["backoff"], Backoff))
        if "schema" in values:
            values["schema"] = compile_schema(values["schema"], trusted=True)
        return Topic(name=name, **values)
    except ValueError as error:
        raise Invalid(f"{where}: {error}") from error


def _risk(value: str) -> Risk:
    if value not in list(Risk):
        raise ValueError(f"risk must be one of {', '.join(Risk)}, not {value!r}")
    return Risk(value)


def _quota(name: str, options: object) -> Quota:
    try:
        return Quota(**_table(f"tenant {name!r}", options, Quota))
    except ValueError as error:
        raise Invalid(f"tenant {name!r}: {error}") from error


def _retention(options: object) -> Retention:
    try:
        return Retention(**_table("retention", options, Retention))
    except ValueError as error:
        raise Invalid(f"retention: {error}") from error


def _policy(path: Path | None, options: object) -> PolicySettings:
    file = PolicySettings(**_table("policy", options, PolicySettings)).file
    return PolicySettings(file=str(path.parent / file) if path is not None and file else file)


def _table(where: str, options: object, kind: type[DataclassInstance], *, besides: Collection[str] = ()) -> _Values:
    """The values of one table of the file, each of them a setting of `kind` and of the kind that its default has."""
    if not isinstance(options, dict):
        raise Invalid(f"{where}: must be a table of settings, not {options!r}")
    defaults = {f.name: f.default for f in fields(kind) if f.name not in besides}
    unknown = sorted(options.keys() - defaults.keys())
    if unknown:
        raise Invalid(f"{where}: no such setting: {', '.join(unknown)} (there are: {', '.join(sorted(defaults))})")
    for name, value in options.items():
        wanted = type(defaults[name])
        # TOML has its own types, and `true` is no number in it: only a whole one may stand for one with a fraction.
        if wanted in _KINDS and type(value) is not wanted and (wanted, type(value)) != (float, int):
            raise Invalid(f"{where}: {name} must be {_KINDS[wanted]}, not {value!r}")
        _check_size(f"{where}: {name}", value)
    return dict(options)


def _check_size(what: str, value: object) -> None:
    """TOML has NaN and infinity, and JSON, by which workers are told of leases, has no word for them."""
    if isinstance(value, int | float) and not abs(value) <= _NUMBER_MAX:
        raise Invalid(f"{what} must be a number of at most {_NUMBER_MAX}, not {value!r}")


def _converted(name: str, text: str, kind: type) -> object:
    try:
        value = kind(text)
    except ValueError as error:
        raise Invalid(f"HOLDFAST_{name.upper()} must be {_KINDS[kind]}, not {text!r}") from error
    _check_size(f"HOLDFAST_{name.upper()}", value)
    return value
