"""Why something is as it is, as requests of a client."""

from __future__ import annotations

from holdfast.api.summary import Summary
from holdfast.api.why import WhyView
from holdfast.client.asks import Ask, get_ask, part, read_as


def why_job(job_id: str) -> Ask[WhyView]:
    """Why the job is where it is, the cause first; and its attempts."""
    return get_ask(f"/v1/jobs/{part(job_id)}/why", read_as(WhyView))


def why_run(run_id: str) -> Ask[WhyView]:
    """Why the run is where it is."""
    return get_ask(f"/v1/runs/{part(run_id)}/why", read_as(WhyView))


def why_approval(approval_id: str) -> Ask[WhyView]:
    """Why the approval is as it is, and who can decide."""
    return get_ask(f"/v1/approvals/{part(approval_id)}/why", read_as(WhyView))


def why_worker(worker_id: str) -> Ask[WhyView]:
    """Why the worker gets nothing, or does nothing."""
    return get_ask(f"/v1/workers/{part(worker_id)}/why", read_as(WhyView))


def why_lock(key: str) -> Ask[WhyView]:
    """Why the lock is held, by whom, and until when."""
    return get_ask(f"/v1/locks/{part(key)}/why", read_as(WhyView))


def metrics() -> Ask[str]:
    """The Prometheus exposition of the process that answers."""
    return get_ask("/metrics", lambda raw: raw.decode())


def summary() -> Ask[Summary]:
    """How the plane stands: jobs, workers, locks, approvals, freezes and what to look into."""
    return get_ask("/v1/summary", read_as(Summary))
