"""The requests of a client, as values. Each function here is a verb of both clients, with its signature and promise."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec

from holdfast import api, tracing
from holdfast.core.plain_json import to_json
from holdfast.errors import Invalid

T = TypeVar("T")
Read = Callable[[bytes], T]

ANSWER_S = 10.0
_ONE_TYPE_AT_A_TIME = threading.Lock()
NO_TEXT = "half of a surrogate pair is no text, and cannot be sent: what was read into it was not UTF-8"
_SENDABLE = re.compile(r"[\x20-\x7e]*")


class Limits(TypedDict, total=False):
    """What a submission may say beside topic and payload; see `api.NewJob`."""

    labels: dict[str, str]
    priority: int
    risk: str
    max_attempts: int
    delay_s: float
    timeout_s: float
    session: str
    session_policy: str


class JobsWanted(TypedDict, total=False):
    """Filters of a list of jobs."""

    state: str
    topic: str
    worker: str
    labels: Mapping[str, str]
    cursor: str | None
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(Generic[T]):
    method: str
    path: str
    read: Read[T]
    body: msgspec.Struct | None = None
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    answer_s: float = ANSWER_S
    """Of silence, before a try has failed."""
    repeatable: bool = False
    """Doing it twice is doing it once."""
    within_s: float = float("inf")
    """The whole call takes no longer, from its first try's connection to the last byte of its last try's answer: whoever
    asks has no more time."""
    may_join: bool = False
    """A job that may be submitted together with others."""

    def target(self) -> str:
        """Raises `Invalid` for what cannot be sent; so do the others."""
        try:
            return f"{self.path}?{urlencode(self.query)}" if self.query else self.path
        except UnicodeEncodeError:
            raise Invalid(NO_TEXT) from None

    def content(self) -> bytes | None:
        try:
            return None if self.body is None else to_json(self.body)
        except UnicodeEncodeError:
            raise Invalid(NO_TEXT) from None
        except ValueError as why:
            raise Invalid(str(why)) from None

    def sent_headers(self) -> dict[str, str]:
        check_sendable(self.headers)
        return {**self.headers, **({} if self.body is None else {"content-type": "application/json"})}


def check_sendable(headers: Mapping[str, str]) -> None:
    """Raises `Invalid`, which does not show the value: it may be a key."""
    for name, value in headers.items():
        if not _SENDABLE.fullmatch(value):
            raise Invalid(f"{name}: only printable ASCII characters can be sent")


def submit(
    topic: str,
    payload: Any = None,
    *,
    idempotency_key: str | None = None,
    actor: str = "",
    **limits: Unpack[Limits],
) -> Ask[api.JobView]:
    """Submit a job, durable when it returns. With a key, the same submission again gives the same job.

    Raises `ValueError` or `TypeError` for a payload that is no JSON."""
    new = api.NewJob(topic=topic, payload=payload, idempotency_key=idempotency_key, **limits)
    headers, repeatable = said_by(actor) | _traced(), idempotency_key is not None
    alone = post_ask("/v1/jobs", read_as(api.JobView), new, headers=headers, repeatable=repeatable)
    return replace(alone, may_join=True)


def said_by(actor: str) -> dict[str, str]:
    """Without a name it is the client's `actor`."""
    return {"holdfast-actor": actor} if actor else {}


def _traced() -> dict[str, str]:
    """The span that the caller is in, if it is in one."""
    trace = tracing.current()
    return {"traceparent": trace} if trace else {}


def submit_and_wait(
    topic: str, payload: Any, *, idempotency_key: str, wait_s: float, within_s: float, **limits: Unpack[Limits]
) -> Ask[api.JobView]:
    """The job when it has ended, or as it is after `wait_s`."""
    asked = submit(topic, payload, idempotency_key=idempotency_key, **limits)
    return replace(asked, query=[("wait", str(wait_s))], answer_s=ANSWER_S + wait_s, within_s=within_s, may_join=False)


def submit_many(jobs: Sequence[api.NewJob], *, actor: str = "") -> Ask[Sequence[api.Submitted]]:
    """One answer per job, in order; a bad one does not fail the others. Raises as `submit`, and then sends none."""
    keyed = all(new.idempotency_key is not None for new in jobs)
    read, body = read_as(api.SubmittedJobs), api.NewJobs(jobs=list(jobs))
    headers = said_by(actor) | _traced()
    return post_ask("/v1/jobs:batch", lambda raw: read(raw).jobs, body, headers=headers, repeatable=keyed)


def get(job_id: str) -> Ask[api.JobView]:
    """One job as it is now. Raises `NotFound`."""
    return get_ask(f"/v1/jobs/{part(job_id)}", read_as(api.JobView))


def get_later(job_id: str, wait_s: float) -> Ask[api.JobView]:
    """The job when it is terminal, or as it is after `wait_s`."""
    return get_ask(f"/v1/jobs/{part(job_id)}", read_as(api.JobView), ("wait", wait_s), answer_s=ANSWER_S + wait_s)


def list_jobs(**wanted: Unpack[JobsWanted]) -> Ask[api.JobPage]:
    """A page of jobs, newest first."""
    labels = [("label", f"{name}={value}") for name, value in wanted.get("labels", {}).items()]
    names = ("state", "topic", "worker", "cursor", "limit")
    return get_ask("/v1/jobs", read_as(api.JobPage), *((name, wanted.get(name)) for name in names), *labels)


def list_events(job_id: str, *, cursor: str | None = None, limit: int = 100) -> Ask[api.EventPage]:
    """A page of a job's history, oldest first."""
    return get_ask(f"/v1/jobs/{part(job_id)}/events", read_as(api.EventPage), ("cursor", cursor), ("limit", limit))


def cancel(job_id: str, *, reason: str = "", version: int | None = None) -> Ask[api.JobView]:
    """Ends it at once before it runs; asks its worker afterwards. With a version, only if it still has that one."""
    body = api.CancelJob(reason=reason)
    headers = {} if version is None else {"if-match": f'"{version}"'}
    # Repeated under a version, it would be refused because of its own first success.
    path, repeatable = f"/v1/jobs/{part(job_id)}:cancel", version is None
    return post_ask(path, read_as(api.JobView), body, headers=headers, repeatable=repeatable)


def retry(job_id: str) -> Ask[api.JobView]:
    """A new job like this one, which ended badly. However often it is said, it happens once."""
    return post_ask(f"/v1/jobs/{part(job_id)}:retry", read_as(api.JobView), repeatable=True)


def dead_letters(*, cursor: str | None = None, limit: int = 100) -> Ask[api.DeadLetterPage]:
    """A page of dead letters, newest first, without their events."""
    return get_ask("/v1/dead-letters", read_as(api.DeadLetterPage), ("cursor", cursor), ("limit", limit))


def dead_letter(number: int) -> Ask[api.DeadLetterView]:
    """One dead letter, with its events."""
    return get_ask(f"/v1/dead-letters/{number}", read_as(api.DeadLetterView))


def replay(number: int) -> Ask[api.JobView]:
    """The job of a dead letter anew. However often it is said, it happens once."""
    return post_ask(f"/v1/dead-letters/{number}:replay", read_as(api.JobView), repeatable=True)


def effects(
    *, state: str | None = None, job_id: str | None = None, cursor: str | None = None, limit: int = 100
) -> Ask[api.EffectPage]:
    """A page of effects, such as those that nobody knows whether they happened."""
    wanted = (("state", state), ("job", job_id), ("cursor", cursor), ("limit", limit))
    return get_ask("/v1/effects", read_as(api.EffectPage), *wanted)


def resolve_effect(job_id: str, key: str, found: api.ResolveEffect) -> Ask[api.EffectView]:
    """Say what became of an unknown effect."""
    return post_ask(f"/v1/effects/{part(job_id)}/{part(key)}:resolve", read_as(api.EffectView), found)


def workers() -> Ask[api.Workers]:
    """Every worker that the plane knows."""
    return get_ask("/v1/workers", read_as(api.Workers))


def drain(worker: str) -> Ask[None]:
    """Give the worker nothing more."""
    return post_ask(f"/v1/workers/{part(worker)}:drain", lambda _: None, repeatable=True)


def locks(*, family: str | None = None, cursor: str | None = None, limit: int = 100) -> Ask[api.LocksPage]:
    """A page of held locks, in key order; of one lock class, if `family` names it."""
    return get_ask("/v1/locks", read_as(api.LocksPage), ("family", family), ("cursor", cursor), ("limit", limit))


def get_ask(path: str, read: Read[T], *query: tuple[str, object], answer_s: float = ANSWER_S) -> Ask[T]:
    given = [(name, str(value)) for name, value in query if value is not None]
    return Ask(method="GET", path=path, read=read, query=given, answer_s=answer_s, repeatable=True)


def post_ask(
    path: str,
    read: Read[T],
    body: msgspec.Struct | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    repeatable: bool = False,
) -> Ask[T]:
    return Ask(method="POST", path=path, read=read, body=body, headers=headers or {}, repeatable=repeatable)


@cache
def read_as(reply: type[T]) -> Read[T]:
    # msgspec shows other threads what it knows of a type before that is complete, and the process crashes if one uses it.
    with _ONE_TYPE_AT_A_TIME:
        return msgspec.json.Decoder(reply).decode


def part(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise Invalid(NO_TEXT) from None
