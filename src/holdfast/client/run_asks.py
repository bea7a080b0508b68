"""What can be asked about workflows and runs, as values; see `asks`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypedDict, Unpack

from holdfast import api
from holdfast.api.runs import CancelRun, PauseRun, RerunRun, RunPage, RunPlan, RunView, StartRun, StepPage
from holdfast.api.workflows import ApplyWorkflow, WorkflowPage, WorkflowView
from holdfast.client.asks import ANSWER_S, Ask, get_ask, part, post_ask, read_as


class RunOptions(TypedDict, total=False):
    """What an order may say beside workflow and input; see `api.runs.StartRun`."""

    revision: int | None
    labels: dict[str, str]
    session: str
    session_policy: str


def apply_workflow(document: str, *, dry_run: bool = False) -> Ask[WorkflowView]:
    """Store a definition, YAML or JSON, as the next revision. The same one again is the same revision."""
    body = ApplyWorkflow(document=document, dry_run=dry_run)
    return post_ask("/v1/workflows", read_as(WorkflowView), body, repeatable=True)


def workflow(name: str, *, revision: int | None = None) -> Ask[WorkflowView]:
    """A workflow in one revision, or in its newest."""
    return get_ask(f"/v1/workflows/{part(name)}", read_as(WorkflowView), ("revision", revision))


def workflows(*, cursor: str | None = None, limit: int = 100) -> Ask[WorkflowPage]:
    """A page of workflows by name, each in its newest revision."""
    return get_ask("/v1/workflows", read_as(WorkflowPage), ("cursor", cursor), ("limit", limit))


def workflow_revisions(name: str, *, cursor: str | None = None, limit: int = 100) -> Ask[WorkflowPage]:
    """A page of a workflow's revisions, newest first."""
    path = f"/v1/workflows/{part(name)}/revisions"
    return get_ask(path, read_as(WorkflowPage), ("cursor", cursor), ("limit", limit))


def start_run(
    workflow: str,
    input: Any = None,  # noqa: A002  (what it is called everywhere)
    *,
    idempotency_key: str | None = None,
    **options: Unpack[RunOptions],
) -> Ask[RunView]:
    """Start a run, durable when it returns. With a key, the same order again gives the same run."""
    body = StartRun(workflow=workflow, input=input, **options)
    headers = {} if idempotency_key is None else {"idempotency-key": idempotency_key}
    return post_ask("/v1/runs", read_as(RunView), body, headers=headers, repeatable=idempotency_key is not None)


def start_and_wait(
    workflow: str,
    input: Any,  # noqa: A002
    *,
    idempotency_key: str,
    wait_s: float,
    within_s: float,
    **options: Unpack[RunOptions],
) -> Ask[RunView]:
    """The run when it has ended, or as it is after `wait_s`."""
    asked = start_run(workflow, input, idempotency_key=idempotency_key, **options)
    return replace(asked, query=[("wait", str(wait_s))], answer_s=ANSWER_S + wait_s, within_s=within_s)


def plan_run(workflow: str, input: Any = None, **options: Unpack[RunOptions]) -> Ask[RunPlan]:  # noqa: A002
    """A dry run: what would happen, as far as it can be known. Nothing is stored."""
    body = StartRun(workflow=workflow, input=input, **options)
    return post_ask("/v1/runs:plan", read_as(RunPlan), body, repeatable=True)


def get_run(run_id: str) -> Ask[RunView]:
    """One run as it is now. Raises `NotFound`."""
    return get_ask(f"/v1/runs/{part(run_id)}", read_as(RunView))


def get_run_later(run_id: str, wait_s: float) -> Ask[RunView]:
    """The run when it has ended, or as it is after `wait_s`."""
    return get_ask(f"/v1/runs/{part(run_id)}", read_as(RunView), ("wait", wait_s), answer_s=ANSWER_S + wait_s)


def list_runs(
    *, state: str | None = None, workflow: str | None = None, cursor: str | None = None, limit: int = 100
) -> Ask[RunPage]:
    """A page of runs, newest first."""
    wanted = (("state", state), ("workflow", workflow), ("cursor", cursor), ("limit", limit))
    return get_ask("/v1/runs", read_as(RunPage), *wanted)


def run_timeline(run_id: str, *, cursor: str | None = None, limit: int = 100) -> Ask[api.EventPage]:
    """A page of what happened to a run and its jobs, oldest first."""
    path = f"/v1/runs/{part(run_id)}/timeline"
    return get_ask(path, read_as(api.EventPage), ("cursor", cursor), ("limit", limit))


def run_steps(run_id: str, *, cursor: str | None = None, limit: int = 100) -> Ask[StepPage]:
    """A page of the steps that a run has reached, by name."""
    return get_ask(f"/v1/runs/{part(run_id)}/steps", read_as(StepPage), ("cursor", cursor), ("limit", limit))


def cancel_run(run_id: str, *, reason: str = "", compensate: bool = True) -> Ask[RunView]:
    """Nothing more of it begins, what runs is asked to stop, and what was done is undone if `compensate`."""
    body = CancelRun(reason=reason, compensate=compensate)
    return post_ask(f"/v1/runs/{part(run_id)}:cancel", read_as(RunView), body)


def pause_run(run_id: str, *, reason: str = "") -> Ask[RunView]:
    """Nothing more of it begins; what is under way goes on, and its results are kept."""
    return post_ask(f"/v1/runs/{part(run_id)}:pause", read_as(RunView), PauseRun(reason=reason))


def resume_run(run_id: str) -> Ask[RunView]:
    """Let a paused run go on."""
    return post_ask(f"/v1/runs/{part(run_id)}:resume", read_as(RunView))


def rerun(run_id: str, step: str) -> Ask[RunView]:
    """Run one that has ended again from a step on; what came before it stays as it was."""
    return post_ask(f"/v1/runs/{part(run_id)}:rerun", read_as(RunView), RerunRun(step=step))
