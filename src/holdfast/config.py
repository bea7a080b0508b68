"""Settings: defaults < file (TOML) < `HOLDFAST_*` < flags. Read once, in one place; services get values.

    [plane]                 # each also as HOLDFAST_<NAME>
    store = "sqlite:///holdfast.db"
    host = "127.0.0.1"
    port = 7070
    live_jobs_max = 100000

    [topics."mail.*"]
    pool = "mail"
    max_attempts = 5
    lease_s = 30
    dispatch_timeout_s = 300
    running_timeout_s = 900
    risk = "high"

    [retention]             # 0 keeps it for ever
    finished_jobs_s = 2592000
    dead_letters_s = 7776000

The API key comes from `HOLDFAST_API_KEY` alone: it is not written into files or command lines.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.retention import Retention
from holdfast.core.retry import Backoff
from holdfast.core.states import Risk
from holdfast.core.topic import Topic, Topics
from holdfast.errors import Invalid
from holdfast.locks.stores import shown as without_password

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECTIONS = ("plane", "topics", "retention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    store: str = "sqlite:///holdfast.db"
    host: str = "127.0.0.1"
    port: int = 7070
    live_jobs_max: int = 100_000
    drain_s: float = 10.0
    api_key: str = ""
    topics: Topics = field(default_factory=Topics)
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.api_key:
            raise Invalid(f"listening on {self.host} needs an API key: set HOLDFAST_API_KEY, or listen on 127.0.0.1")
        if not 0 <= self.port <= 65535:
            raise Invalid(f"port must be between 0 and 65535, not {self.port}")
        if self.live_jobs_max < 1:
            raise Invalid(f"live_jobs_max must be at least 1, not {self.live_jobs_max}")


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
    return Settings(**values, topics=Topics(declared), retention=_retention(document.get("retention", {})))


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
            without_password(settings.store) if f.name == "store" else str(getattr(settings, f.name)),
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
    return shown + [
        Shown(
            f"retention.{f.name}",
            str(getattr(settings.retention, f.name)),
            _origin(path, document, "retention", f.name),
        )
        for f in fields(Retention)
    ]


def _origin(path: Path, document: Mapping[str, Any], section: str, name: str) -> str:
    return str(path) if name in document.get(section, {}) else "default"


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
        return Topic(name=name, **values)
    except (ValueError, TypeError) as error:
        raise Invalid(f"topic {name!r}: {error}") from error


def _retention(options: dict[str, Any]) -> Retention:
    _refuse_unknown("retention", options, {f.name for f in fields(Retention)})
    try:
        return Retention(**options)
    except (ValueError, TypeError) as error:
        raise Invalid(f"retention: {error}") from error


def _refuse_unknown(section: str, options: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(options.keys() - known)
    if unknown:
        raise Invalid(f"{section}: no such setting: {', '.join(unknown)} (there are: {', '.join(sorted(known))})")


def _converted(name: str, text: str, kind: type) -> object:
    try:
        return kind(text)
    except ValueError as error:
        raise Invalid(f"HOLDFAST_{name.upper()} must be a {kind.__name__}") from error
