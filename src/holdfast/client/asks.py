"""The requests of a client, as values: both clients send the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote

import msgspec

from holdfast import api

T = TypeVar("T")

ANSWER_S = 10.0
LONG_POLL_S = 30.0


class Limits(TypedDict, total=False):
    """What a submission may say beside topic and payload; see `api.NewJob`."""

    labels: dict[str, str]
    priority: int
    risk: str
    max_attempts: int
    delay_s: float
    timeout_s: float


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
    """One request, as a value: both clients send the same ones."""

    method: str
    path: str
    reply: type[T]
    body: msgspec.Struct | None = None
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    answer_s: float = ANSWER_S
    repeatable: bool = False

    def arguments(self) -> dict[str, Any]:
        headers = dict(self.headers)
        if self.body is not None:
            headers["content-type"] = "application/json"
        content = None if self.body is None else msgspec.json.encode(self.body)
        return {
            "method": self.method,
            "url": self.path,
            "params": list(self.query) or None,
            "headers": headers,
            "content": content,
            "timeout": self.answer_s,
        }

    def read(self, content: bytes) -> T:
        return msgspec.json.decode(content, type=self.reply)


def get(path: str, reply: type[T], *query: tuple[str, object], answer_s: float = ANSWER_S) -> Ask[T]:
    given = [(name, str(value)) for name, value in query if value is not None]
    return Ask(method="GET", path=path, reply=reply, query=given, answer_s=answer_s, repeatable=True)


def submit(new: api.NewJob) -> Ask[api.JobView]:
    keyed = new.idempotency_key is not None
    return Ask(method="POST", path="/v1/jobs", reply=api.JobView, body=new, repeatable=keyed)


def submit_many(jobs: Sequence[api.NewJob]) -> Ask[api.SubmittedJobs]:
    keyed = all(new.idempotency_key is not None for new in jobs)
    body = api.NewJobs(jobs=list(jobs))
    return Ask(method="POST", path="/v1/jobs:batch", reply=api.SubmittedJobs, body=body, repeatable=keyed)


def job(job_id: str, *, wait_s: float = 0.0) -> Ask[api.JobView]:
    return get(f"/v1/jobs/{part(job_id)}", api.JobView, ("wait", wait_s or None), answer_s=ANSWER_S + wait_s)


def jobs(wanted: JobsWanted) -> Ask[api.JobPage]:
    labels = [("label", f"{name}={value}") for name, value in wanted.get("labels", {}).items()]
    fields = [("state", wanted.get("state")), ("topic", wanted.get("topic")), ("worker", wanted.get("worker"))]
    place = [("cursor", wanted.get("cursor")), ("limit", wanted.get("limit"))]
    return get("/v1/jobs", api.JobPage, *fields, *labels, *place)


def events(job_id: str, cursor: str | None, limit: int) -> Ask[api.EventPage]:
    return get(f"/v1/jobs/{part(job_id)}/events", api.EventPage, ("cursor", cursor), ("limit", limit))


def cancel(job_id: str, reason: str, version: int | None) -> Ask[api.JobView]:
    headers = {} if version is None else {"if-match": f'"{version}"'}
    path, body = f"/v1/jobs/{part(job_id)}:cancel", api.CancelJob(reason=reason)
    return Ask(method="POST", path=path, reply=api.JobView, body=body, headers=headers, repeatable=version is None)


def again(path: str) -> Ask[api.JobView]:
    """Retry and replay happen once, however often they are said."""
    return Ask(method="POST", path=path, reply=api.JobView, repeatable=True)


def effects(state: str | None, job_id: str | None, limit: int) -> Ask[api.Effects]:
    return get("/v1/effects", api.Effects, ("state", state), ("job", job_id), ("limit", limit))


def resolve(job_id: str, key: str, found: api.ResolveEffect) -> Ask[api.EffectView]:
    path = f"/v1/effects/{part(job_id)}/{part(key)}:resolve"
    return Ask(method="POST", path=path, reply=api.EffectView, body=found)


def drain(worker: str) -> Ask[api.Nothing]:
    return Ask(method="POST", path=f"/v1/workers/{part(worker)}:drain", reply=api.Nothing, repeatable=True)


def part(text: str) -> str:
    return quote(text, safe="")
