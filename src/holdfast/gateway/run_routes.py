"""The routes of workflows and runs: a part of the table in `routes`."""

from __future__ import annotations

from holdfast import api
from holdfast.api import runs as run_types
from holdfast.api import workflows as workflow_types
from holdfast.gateway import runs, workflows
from holdfast.gateway.calls import Route
from holdfast.gateway.limits import BODY_BYTES_MAX
from holdfast.gateway.pages import PageQuery

WORKFLOWS, RUNS = ("workflows",), ("runs",)
DOCUMENT = 2 * workflow_types.DOCUMENT_MAX
"""A document as a text within JSON: its line ends and quotes take two bytes each."""

RUN_ROUTES: tuple[Route, ...] = (
    Route(
        method="POST", path="/v1/workflows", run=workflows.apply_workflow, request=workflow_types.ApplyWorkflow,
        reply=workflow_types.WorkflowView, headers=("Holdfast-Actor",), body_max=DOCUMENT, tags=WORKFLOWS,
        summary="Store a definition as the next revision of its workflow. What is wrong with it is told with its line.",
    ),
    Route(
        method="GET", path="/v1/workflows", run=workflows.list_workflows, query=workflows.WorkflowsQuery,
        reply=workflow_types.WorkflowPage, tags=WORKFLOWS, summary="Workflows by name, each in its newest revision.",
    ),
    Route(
        method="GET", path="/v1/workflows/{name}", run=workflows.get_workflow, query=workflows.WorkflowQuery,
        reply=workflow_types.WorkflowView, tags=WORKFLOWS, summary="One workflow, in its newest revision or another.",
    ),
    Route(
        method="GET", path="/v1/workflows/{name}/revisions", run=workflows.list_revisions, query=PageQuery,
        reply=workflow_types.WorkflowPage, tags=WORKFLOWS, summary="A workflow's revisions, newest first.",
    ),
    Route(
        method="POST", path="/v1/runs", run=runs.start_run, query=runs.RunWaitQuery, request=run_types.StartRun,
        reply=run_types.RunView, statuses=(202, 200), headers=("Idempotency-Key", "Holdfast-Actor"), body_max=BODY_BYTES_MAX, tags=RUNS,
        summary="Start a run. Durable when answered; 200 if it has ended meanwhile, or with the first run where the key repeats it.",
    ),
    Route(
        method="POST", path="/v1/runs:plan", run=runs.plan_run, request=run_types.StartRun, reply=run_types.RunPlan,
        body_max=BODY_BYTES_MAX, tags=RUNS, summary="A dry run: what would happen, as far as it can be known.",
    ),
    Route(
        method="GET", path="/v1/runs", run=runs.list_runs, query=runs.RunQuery, reply=run_types.RunPage, tags=RUNS,
        summary="List runs, newest first.",
    ),
    Route(
        method="GET", path="/v1/runs/{id}", run=runs.get_run, query=runs.RunWaitQuery, reply=run_types.RunView,
        tags=RUNS, summary="One run, at once or when it has ended.",
    ),
    Route(
        method="GET", path="/v1/runs/{id}/timeline", run=runs.list_timeline, query=PageQuery, reply=api.EventPage,
        tags=RUNS, summary="All that happened to a run and its jobs, oldest first.",
    ),
    Route(
        method="GET", path="/v1/runs/{id}/steps", run=runs.list_steps, query=PageQuery, reply=run_types.StepPage,
        tags=RUNS, summary="The steps that a run has reached, by name.",
    ),
    Route(
        method="POST", path="/v1/runs/{id}:cancel", run=runs.cancel_run, request=run_types.CancelRun, optional=True,
        reply=run_types.RunView, headers=("Holdfast-Actor",), tags=RUNS,
        summary="Stop a run: nothing more begins, what runs is asked to stop, what was done is undone.",
    ),
    Route(
        method="POST", path="/v1/runs/{id}:pause", run=runs.pause_run, request=run_types.PauseRun, optional=True,
        reply=run_types.RunView, headers=("Holdfast-Actor",), tags=RUNS,
        summary="Begin nothing more of a run; what is under way goes on.",
    ),
    Route(
        method="POST", path="/v1/runs/{id}:resume", run=runs.resume_run, reply=run_types.RunView,
        headers=("Holdfast-Actor",), tags=RUNS, summary="Let a paused run go on.",
    ),
    Route(
        method="POST", path="/v1/runs/{id}:rerun", run=runs.rerun_run, request=run_types.RerunRun,
        reply=run_types.RunView, headers=("Holdfast-Actor",), tags=RUNS,
        summary="Run one that has ended again from a step on; what came before it stays as it was.",
    ),
)  # fmt: skip
