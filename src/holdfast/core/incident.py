"""Incidents: what was seen, said and done while something was wrong, kept together for those who ask afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind, Record
from holdfast.errors import Conflict

NOTES_MAX = 500
OPEN = "open"
CLOSED = "closed"


TENANT = "tenant"
OF_A_TENANT = (TENANT, "jobs", "waiting longest (s)", "approvals pending", "effects unknown", "warnings")
"""What of a snapshot is about the tenant that is named in it; the rest is about the plane."""


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wanted to have written down."""

    at: float
    by: str
    text: str


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    title: str
    by: str = ""
    started_at: float
    stopped_at: float | None = None
    strict: bool
    """Whether the matrix is strict for its duration."""
    after: int
    """The number of the last event before it."""
    before: dict[str, Any]
    """How things stood when it was started."""
    end: dict[str, Any] = {}
    """How they stood when it was stopped."""
    summary: str = ""
    remarks: tuple[Remark, ...] = ()
    version: int = 0


class Happening(NamedTuple):
    """A line of the timeline."""

    at: float
    kind: str
    """`note`, `did` (somebody changed something) or `saw` (the plane tells)."""
    by: str
    text: str


def remarked(incident: Incident, remark: Remark) -> Incident:
    """Raises `Conflict` when there are too many."""
    if len(incident.remarks) >= NOTES_MAX:
        raise Conflict(f"incident {incident.number} has {NOTES_MAX} notes; stop it, and start another")
    return replace(incident, remarks=(*incident.remarks, remark))


def seen_by(tenant: Tenant, incident: Incident) -> Incident:
    """An incident is the plane's, and everybody may read it; how the jobs of another tenant stood is nobody else's business.
    It may be stopped for another tenant than it was started for, so each snapshot is judged alone."""
    return replace(incident, before=_snapshot_for(tenant, incident.before), end=_snapshot_for(tenant, incident.end))


def _snapshot_for(tenant: Tenant, snapshot: dict[str, Any]) -> dict[str, Any]:
    hidden = (TENANT,) if snapshot.get(TENANT) == tenant else OF_A_TENANT
    return {name: value for name, value in snapshot.items() if name not in hidden}


def incident_id(number: int) -> str:
    return f"{number:08d}"


def incident_record(incident: Incident) -> Record:
    """As it is to be stored, one version on."""
    version = incident.version + 1
    return Record(
        kind=Kind.INCIDENT,
        tenant=PLANE,
        id=incident_id(incident.number),
        version=version,
        state=OPEN if incident.stopped_at is None else CLOSED,
        created_at=incident.started_at,
        body=msgspec.json.encode(replace(incident, version=version)),
    )


def incident_from(record: Record) -> Incident:
    return msgspec.json.decode(record.body, type=Incident)


_ESCAPED = str.maketrans({"\\": "\\\\", "[": "\\[", "<": "&lt;", "&": "&amp;"})


def post_mortem(incident: Incident, timeline: Sequence[Happening], counts: dict[str, int]) -> str:
    """A draft in Markdown: what is known is filled in, what people must say is asked for."""
    lasted = "it goes on" if incident.stopped_at is None else _length(incident.stopped_at - incident.started_at)
    parts = [
        f"# Incident {incident.number}: {_plain(incident.title)}",
        "\n".join(
            [
                f"- started: {_moment(incident.started_at)}{' by ' + _plain(incident.by) if incident.by else ''}",
                f"- stopped: {'-' if incident.stopped_at is None else _moment(incident.stopped_at)}",
                f"- lasted: {lasted}",
                f"- strict matrix: {'yes' if incident.strict else 'no'}",
            ]
        ),
        f"## Summary\n\n{incident.summary or '_In three sentences, for somebody who was not there._'}",
        "## Impact\n\n_Who noticed what, and how much of it._",
        f"## How it stood\n\n{_standing(incident.before, incident.end)}",
        f"## Timeline\n\n{_timeline(timeline)}",
        f"## What happened, by kind\n\n{_counted(counts)}",
        "## Causes\n\n_What made it possible, what set it off, what made it last._",
        "## What went well, what did not, where we were lucky\n\n_To be said by those who were there._",
        "## What we will change\n\n| what | who | by when |\n|---|---|---|\n| | | |",
    ]
    return "\n\n".join(parts) + "\n"


def _standing(before: dict[str, Any], end: dict[str, Any]) -> str:
    names = list(dict.fromkeys([*before, *end]))
    rows = [f"| {name} | {_cell(before.get(name))} | {_cell(end.get(name))} |" for name in names]
    return "\n".join(["| | at the start | at the end |", "|---|---|---|", *rows])


def _timeline(timeline: Sequence[Happening]) -> str:
    rows = [f"| {_moment(one.at)} | {one.kind} | {_cell(one.by)} | {_cell(one.text)} |" for one in timeline]
    return "\n".join(["| when | | who | what |", "|---|---|---|---|", *rows])


def _counted(counts: dict[str, int]) -> str:
    if not counts:
        return "Nothing."
    rows = [f"| `{kind}` | {count} |" for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return "\n".join(["| event | times |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    if value in (None, "", [], {}):
        return "-"
    return _plain(value if isinstance(value, str) else msgspec.json.encode(value).decode()).replace("|", "\\|")


def _plain(text: str) -> str:
    """Other people's words as words, in one line: they break no table, begin no section, and bring no links, pictures or
    scripts along into whatever shows the draft."""
    return " ".join(text.splitlines()).translate(_ESCAPED)


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ}"


def _length(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
