"""`/v1/jobs`: submit, look, list, cancel, retry."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

from msgspec import Meta, field, to_builtins

from holdfast import api, tracing
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.states import TERMINAL, Risk, State
from holdfast.errors import HoldfastError, Invalid
from holdfast.flow.again import retry
from holdfast.flow.cancel import cancel
from holdfast.flow.session import SessionPolicy
from holdfast.flow.submit import Order
from holdfast.gateway import limits, problems
from holdfast.gateway.actors import find_actor
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.pages import (
    Cursor,
    Limit,
    PageQuery,
    from_cursor,
    number_from_cursor,
    read_events,
    read_page,
    to_cursor,
)
from holdfast.gateway.views import event_page, job_view, weight_of
from holdfast.gateway.waiting import Patience
from holdfast.ports import Accepted, JobFilter

WAITING = frozenset({State.PENDING, State.APPROVAL_REQUIRED, State.SCHEDULED})
"""What a freeze is about: nobody has been given the job."""
LabelFilter = Annotated[str, Meta(pattern=r"^[^=]{1,128}=[\s\S]{0,256}$(?!\n)")]

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,200})?")


class JobQuery(api.Request, kw_only=True):
    cursor: Cursor | None = None
    limit: Limit = 100
    state: State | None = None
    topic: Annotated[str, Meta(max_length=128)] = ""
    """Exact, or a family ending in `*`."""
    label: list[LabelFilter] = field(default_factory=list)
    """`name=value`. Repeated: all of them."""
    worker: Annotated[str, Meta(max_length=128)] = ""


class SubmitQuery(api.Request, kw_only=True):
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """Seconds to wait until the job has ended. It is durable before the waiting begins."""


class WaitQuery(api.Request, kw_only=True):
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """Seconds to wait until the job is terminal or, with If-None-Match, has changed."""


async def submit_job(desk: Desk, call: Call) -> Answer:
    new: api.NewJob = call.body
    key = limits.find_idempotency_key(call.headers)
    if key is not None:
        if new.idempotency_key not in {None, key}:
            raise Invalid("the header Idempotency-Key and the field idempotency_key differ; send one of them")
        new.idempotency_key = key
    query: SubmitQuery = call.query
    with tracing.span(f"submit {new.topic}", "producer", trace=_trace(call), topic=new.topic) as traced:
        order = to_order(new, call.tenant, actor=find_actor(call), trace=traced.trace)
        reply = await desk.plane.submitter.submit_one(order)
        traced.say("holdfast.job.id", reply.job.id)
    await asyncio.sleep(0)  # the worker that it was given to, if it was, is answered first
    answer = accepted(desk, reply)
    if not query.wait:
        return answer
    job = await _job_after_wait(desk, call, reply.job.id, query.wait)
    return Answer(_view(desk, job), status=200 if job.is_terminal else answer.status, headers=_headers(job))


def to_order(new: api.NewJob, tenant: Tenant, *, actor: str, trace: str) -> Order:
    return Order(
        tenant=tenant,
        topic=new.topic,
        payload=limits.stored_json(new.payload, "payload"),
        labels=new.labels,
        priority=new.priority,
        risk=None if new.risk is None else Risk(new.risk),
        max_attempts=new.max_attempts,
        delay_s=new.delay_s,
        timeout_s=new.timeout_s,
        key=new.idempotency_key,
        trace=trace,
        actor=actor,
        session=new.session,
        session_policy=SessionPolicy(new.session_policy),
    )


def _trace(call: Call) -> str:
    """The caller's trace; none if it is not one, as W3C asks."""
    given = call.headers.get(b"traceparent", b"")
    return given.decode() if _TRACEPARENT.fullmatch(given) else ""


def accepted(desk: Desk, reply: Accepted) -> Answer:
    """202 for a new job; 200 with the first one where the request was a repetition."""
    return Answer(_view(desk, reply.job), status=200 if reply.repeated else 202, headers=_headers(reply.job))


def _view(desk: Desk, job: Job) -> api.JobView:
    view = job_view(job)
    if job.state in WAITING and (freeze := desk.plane.freezes.of(job)) is not None:
        view.frozen = freeze.scope
    return view


def _headers(job: Job) -> tuple[tuple[bytes, bytes], ...]:
    return (b"location", f"/v1/jobs/{job.id}".encode()), _etag(job)


def version_of_tag(tag: str) -> int | None:
    """The version an entity tag names; None for `*` or no tag. Raises `Invalid` for anything else."""
    if tag in {"", "*"}:
        return None
    version = limits.find_number(tag.removeprefix("W/").strip('"'))
    if version is None:
        raise Invalid('an entity tag here is a version in quotes, such as "7"')
    return version


def _etag(job: Job) -> tuple[bytes, bytes]:
    return b"etag", b'"%d"' % job.version


async def submit_jobs(desk: Desk, call: Call) -> Answer:
    """One answer per member, in order; a bad one does not fail the others."""
    if b"idempotency-key" in call.headers:
        raise Invalid("in a batch each member carries its own idempotency_key; the header is for a single job")
    actor = find_actor(call)
    batch: api.NewJobs = call.body
    prepared: list[Order | HoldfastError] = []
    with tracing.span("submit batch", "producer", trace=_trace(call), jobs=len(batch.jobs)) as traced:
        for new in batch.jobs:
            try:
                prepared.append(to_order(new, call.tenant, actor=actor, trace=traced.trace))
            except HoldfastError as error:
                prepared.append(error)
        replies = iter(await desk.plane.submitter.submit([order for order in prepared if isinstance(order, Order)]))
    answers = [next(replies) if isinstance(order, Order) else order for order in prepared]
    return Answer(api.SubmittedJobs(jobs=[_submitted(desk, answer) for answer in answers]))


def _submitted(desk: Desk, reply: Accepted | HoldfastError) -> api.Submitted:
    if isinstance(reply, HoldfastError):
        return api.Submitted(error=to_builtins(problems.problem(reply)))
    return api.Submitted(job=_view(desk, reply.job), repeated=reply.repeated)


async def list_jobs(desk: Desk, call: Call) -> Answer:
    query: JobQuery = call.query
    start = from_cursor(query.cursor)
    wanted = JobFilter(state=query.state, topic=query.topic, labels=_labels(query.label), worker=query.worker)
    page, last = await read_page(
        lambda before, limit: desk.plane.store.list_jobs(call.tenant, wanted, before=before, limit=limit),
        start=None if start is None else JobId(start),
        limit=query.limit,
        place=lambda job: job.id,
        weigh=weight_of,
    )
    more = None if last is None else to_cursor(last)
    return Answer(api.JobPage(items=[_view(desk, job) for job in page], next_cursor=more))


def _labels(given: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for label in given:
        name, _, value = label.partition("=")
        if labels.setdefault(name, value) != value:
            raise Invalid(f"no job has two values of the label {name!r}; ask for one of them")
    return labels


async def get_job(desk: Desk, call: Call) -> Answer:
    """The job now, or after waiting: until it is terminal or, with If-None-Match, has another version."""
    query: WaitQuery = call.query
    known = version_of_tag(call.header(b"if-none-match"))
    job = await _job_after_wait(desk, call, JobId(call.path["id"]), query.wait, known)
    if known == job.version:
        return Answer(status=304, headers=(_etag(job),))
    return Answer(_view(desk, job), headers=(_etag(job),))


async def _job_after_wait(desk: Desk, call: Call, job_id: JobId, wait_s: float, known: int | None = None) -> Job:
    """The job once there is news of it, or as it is after `wait_s`, or when its caller has hung up."""
    hints = desk.feed.ends if known is None else desk.feed.jobs
    with hints.of(job_id) as hint:
        async with Patience(hint, seconds=wait_s, receive=call.receive) as patience:
            job = await desk.plane.store.get_job(call.tenant, job_id)
            while wait_s and not hints.closed and not _is_news(job, known):
                hinted = await patience.wait_hint()
                # After the last wait as well: a hint may be lost, above all that of another process.
                job = await desk.plane.store.get_job(call.tenant, job_id)
                if not hinted:
                    break
    return job


def _is_news(job: Job, known: int | None) -> bool:
    return job.state in TERMINAL if known is None else job.version != known or job.state in TERMINAL


async def list_job_events(desk: Desk, call: Call) -> Answer:
    query: PageQuery = call.query
    job_id = JobId(call.path["id"])
    after = number_from_cursor(query.cursor) or 0
    await desk.plane.store.get_job(call.tenant, job_id)  # another tenant's job has no events either
    page, last = await read_events(desk.plane.store, call.tenant, after=after, limit=query.limit, job_id=job_id)
    return Answer(event_page(page, last))


async def cancel_job(desk: Desk, call: Call) -> Answer:
    wanted: api.CancelJob = call.body
    version = version_of_tag(call.header(b"if-match"))
    job_id = JobId(call.path["id"])
    entry = entry_of(desk, call, "job.cancelled", f"job/{job_id}", reason=wanted.reason)
    job = await cancel(call.tenant, job_id, wanted.reason, store=desk.plane.store, version=version, entry=entry)
    return Answer(job_view(job), headers=(_etag(job),))


async def retry_job(desk: Desk, call: Call) -> Answer:
    plane = desk.plane
    job_id = JobId(call.path["id"])
    entry = entry_of(desk, call, "job.retried", f"job/{job_id}")
    reply = await retry(call.tenant, job_id, store=plane.store, submitter=plane.submitter, entry=entry)
    return accepted(desk, reply)
