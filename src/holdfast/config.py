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
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.people import People
from holdfast.core.retention import Retention
from holdfast.core.retry import Backoff
from holdfast.core.schema import compile_schema
from holdfast.core.share import Quota, Quotas
from holdfast.core.states import Risk
from holdfast.core.topic import Topic, Topics
from holdfast.errors import Invalid
from holdfast.locks.stores import shown as without_password

LOOPBACK = ("127.0.0.1", "::1", "localhost")
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
    store: str = "sqlite:///holdfast.db"
    bus: str = ""
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
    api_key: str = ""
    people: People = field(default_factory=People)
    topics: Topics = field(default_factory=Topics)
    tenants: Quotas = field(default_factory=Quotas)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    retention: Retention = field(default_factory=Retention)
    policy: PolicySettings = field(default_factory=PolicySettings)

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.api_key:
            raise Invalid(f"listening on {self.host} needs an API key: set HOLDFAST_API_KEY, or listen on 127.0.0.1")
        if not 0 <= self.port <= 65535:
            raise Invalid(f"port must be between 0 and 65535, not {self.port}")
        if self.live_jobs_max < 1:
            raise Invalid(f"live_jobs_max must be at least 1, not {self.live_jobs_max}")
        if self.live_runs_max < 1:
            raise Invalid(f"live_runs_max must be at least 1, not {self.live_runs_max}")
        if self.dispatch not in {"direct", "outbox"}:
            raise Invalid(f"dispatch must be direct or outbox, not {self.dispatch!r}")
        if self.dispatch == "outbox" and not self.bus:
            raise Invalid("dispatch = outbox needs a bus to pass deliveries on to: name one, nats://…, or leave it out")
        if self.run_renewal_failure not in {"fence", "continue"}:
            raise Invalid(f"run_renewal_failure must be fence or continue, not {self.run_renewal_failure!r}")


def load(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings in force. Unknown names are errors that list the known ones."""
    document = _read(path)
    values: dict[str, Any] = dict(document.get("plane", {}))
    known = {f.name: type(f.default) for f in fields(Settings) if f.default is not MISSING}
    for name, kind in known.items():
        from_environment = _given(name)
        if from_environment is not None:
            values[name] = _converted(name, from_environment, kind)
    values.update({name: value for name, value in (flags or {}).items() if value is not None})
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise Invalid(f"no such setting: {', '.join(unknown)} (there are: {', '.join(sorted(known))})")
    declared = tuple(_topic(name, options) for name, options in document.get("topics", {}).items())
    return Settings(
        **values,
        topics=Topics(declared),
        tenants=Quotas({name: _quota(name, options) for name, options in document.get("tenants", {}).items()}),
        people=People(document.get("people", {})),
        webhooks=_webhooks(document.get("webhooks", {})),
        retention=_retention(document.get("retention", {})),
        policy=_policy(path, document.get("policy", {})),
    )


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
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}; name an existing file with --config") from error
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{path}: not valid TOML: {error}") from error
    unknown = sorted(document.keys() - set(SECTIONS))
    if unknown:
        raise Invalid(f"{path}: no such section: {', '.join(unknown)} (there are: {', '.join(SECTIONS)})")
    if "api_key" in document.get("plane", {}):
        raise Invalid(f"{path}: keep the API key out of files: set HOLDFAST_API_KEY")
    return document


def _topic(name: str, options: dict[str, Any]) -> Topic:
    _refuse_unknown(f"topic {name!r}", options, {f.name for f in fields(Topic)} - {"name"})
    values = dict(options)
    try:
        if "risk" in values:
            values["risk"] = Risk(values["risk"])
        if "backoff" in values:
            values["backoff"] = Backoff(**values["backoff"])
        if "schema" in values:
            values["schema"] = compile_schema(values["schema"])
        return Topic(name=name, **values)
    except (ValueError, TypeError) as error:
        raise Invalid(f"topic {name!r}: {error}") from error


def _quota(name: str, options: dict[str, Any]) -> Quota:
    _refuse_unknown(f"tenant {name!r}", options, {f.name for f in fields(Quota)})
    try:
        return Quota(**options)
    except (ValueError, TypeError) as error:
        raise Invalid(f"tenant {name!r}: {error}") from error


def _webhooks(options: dict[str, Any]) -> WebhookSettings:
    _refuse_unknown("webhooks", options, {f.name for f in fields(WebhookSettings)})
    if not isinstance(options.get("allow_private", False), bool):
        raise Invalid("webhooks: allow_private must be true or false")
    return WebhookSettings(**options)


def _retention(options: dict[str, Any]) -> Retention:
    _refuse_unknown("retention", options, {f.name for f in fields(Retention)})
    try:
        return Retention(**options)
    except (ValueError, TypeError) as error:
        raise Invalid(f"retention: {error}") from error


def _policy(path: Path | None, options: dict[str, Any]) -> PolicySettings:
    _refuse_unknown("policy", options, {f.name for f in fields(PolicySettings)})
    file = options.get("file", "")
    if not isinstance(file, str):
        raise Invalid("policy: file must be a path")
    return PolicySettings(file=str(path.parent / file) if path is not None and file else file)


def _refuse_unknown(section: str, options: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(options.keys() - known)
    if unknown:
        raise Invalid(f"{section}: no such setting: {', '.join(unknown)} (there are: {', '.join(sorted(known))})")


def _converted(name: str, text: str, kind: type) -> object:
    try:
        return kind(text)
    except ValueError as error:
        raise Invalid(f"HOLDFAST_{name.upper()} must be a {kind.__name__}") from error
