"""What can be asked about incidents, as values; see `asks`."""

from __future__ import annotations

from holdfast.api.incidents import AddNote, IncidentExport, IncidentPage, IncidentView, StartIncident, StopIncident
from holdfast.client.asks import Ask, get_ask, post_ask, read_as, said_by


def start_incident(title: str, *, strict: bool = True, by: str = "") -> Ask[IncidentView]:
    """Keep a snapshot, and have the policy matrix strict until it is stopped."""
    body = StartIncident(title=title, strict=strict)
    return post_ask("/v1/incidents", read_as(IncidentView), body, headers=said_by(by))


def note_incident(number: int, text: str, *, by: str = "") -> Ask[IncidentView]:
    """Write something down in an incident, also when it is over."""
    return post_ask(f"/v1/incidents/{number}:note", read_as(IncidentView), AddNote(text=text), headers=said_by(by))


def stop_incident(number: int, *, summary: str = "", by: str = "") -> Ask[IncidentView]:
    """Stop an incident, and what it has made strict."""
    body = StopIncident(summary=summary)
    return post_ask(f"/v1/incidents/{number}:stop", read_as(IncidentView), body, headers=said_by(by))


def incidents(*, cursor: str | None = None, limit: int = 100) -> Ask[IncidentPage]:
    """A page of incidents, newest first."""
    return get_ask("/v1/incidents", read_as(IncidentPage), ("cursor", cursor), ("limit", limit))


def incident(number: int) -> Ask[IncidentView]:
    """One incident, with its notes and snapshots."""
    return get_ask(f"/v1/incidents/{number}", read_as(IncidentView))


def export_incident(number: int) -> Ask[IncidentExport]:
    """Its timeline, and a draft of the post-mortem."""
    return get_ask(f"/v1/incidents/{number}/export", read_as(IncidentExport))
