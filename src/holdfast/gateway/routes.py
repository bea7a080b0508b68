"""The table of routes. Starlette's routes, the OpenAPI document and the reference page come from it."""

from __future__ import annotations

from holdfast import api
from holdfast.api import approvals as approval_types
from holdfast.api import policies as policy_types
from holdfast.gateway import (
    approvals,
    dead_letters,
    effects,
    events,
    health,
    jobs,
    locks,
    policies,
    problems,
    work,
    workers,
)
from holdfast.gateway.audit import AUDIT_ROUTES
from holdfast.gateway.calls import Route
from holdfast.gateway.freezes import FREEZE_ROUTES
from holdfast.gateway.incidents import INCIDENT_ROUTES
from holdfast.gateway.limits import BATCH_BYTES_MAX, BODY_BYTES_MAX
from holdfast.gateway.matrix import MATRIX_ROUTES
from holdfast.gateway.pages import PageQuery
from holdfast.gateway.run_routes import RUN_ROUTES
from holdfast.gateway.schedules import SCHEDULE_ROUTES
from holdfast.gateway.summary import SUMMARY_ROUTES
from holdfast.gateway.webhooks import WEBHOOK_ROUTES
from holdfast.gateway.why import WHY_ROUTES

JOBS, WORK, LOOK, HEALTH = ("jobs",), ("work",), ("looking around",), ("health",)
APPROVALS = ("approvals",)
POLICY = ("policy",)

ROUTES: tuple[Route, ...] = (
    Route(
        method="POST", path="/v1/jobs", run=jobs.submit_job, query=jobs.SubmitQuery, request=api.NewJob,
        reply=api.JobView, statuses=(202, 200), headers=("Idempotency-Key", "Holdfast-Actor", "traceparent"), body_max=BODY_BYTES_MAX, tags=JOBS,
        summary="Submit a job. Durable when answered; 200 if it has ended meanwhile, or with the first job where the key repeats it.",
    ),
    Route(
        method="POST", path="/v1/jobs:batch", run=jobs.submit_jobs, request=api.NewJobs, reply=api.SubmittedJobs,
        headers=("Holdfast-Actor", "traceparent"), body_max=BATCH_BYTES_MAX, tags=JOBS,
        summary="Submit many jobs. One answer per member, in order.",
    ),
    Route(
        method="GET", path="/v1/jobs", run=jobs.list_jobs, query=jobs.JobQuery, reply=api.JobPage, tags=JOBS,
        summary="List jobs, newest first.",
    ),
    Route(
        method="GET", path="/v1/jobs/{id}", run=jobs.get_job, query=jobs.WaitQuery, reply=api.JobView,
        statuses=(200, 304), headers=("If-None-Match",), tags=JOBS,
        summary="One job, at once or when it has ended or changed.",
    ),
    Route(
        method="GET", path="/v1/jobs/{id}/events", run=jobs.list_job_events, query=PageQuery,
        reply=api.EventPage, tags=JOBS, summary="A job's history, oldest first.",
    ),
    Route(
        method="POST", path="/v1/jobs/{id}:cancel", run=jobs.cancel_job, request=api.CancelJob, optional=True,
        reply=api.JobView, headers=("Holdfast-Actor", "If-Match"), tags=JOBS,
        summary="Cancel: at once before it runs, by asking its worker afterwards.",
    ),
    Route(
        method="POST", path="/v1/jobs/{id}:retry", run=jobs.retry_job, reply=api.JobView, statuses=(202, 200),
        headers=("Holdfast-Actor",), tags=JOBS, summary="Submit a FAILED, TIMEOUT or CANCELLED job anew; the same job again if repeated.",
    ),
    Route(
        method="POST", path="/v1/work/hello", run=work.hello, request=api.Hello, reply=api.HelloReply, tags=WORK,
        summary="A worker introduces itself.",
    ),
    Route(
        method="POST", path="/v1/work/claim", run=work.claim_work, request=api.Claim, reply=api.Deliveries,
        body_max=BATCH_BYTES_MAX, tags=WORK, summary="Take deliveries; waits for the first one.",
    ),
    Route(
        method="POST", path="/v1/work/start", run=work.start_work, request=api.StartWork, reply=api.Standings,
        tags=WORK, summary="Begin attempts: the jobs are RUNNING from now on.",
    ),
    Route(
        method="POST", path="/v1/work/renew", run=work.renew_work, request=api.RenewWork, reply=api.Standings,
        body_max=BATCH_BYTES_MAX, tags=WORK, summary="Extend leases, and be heard of.",
    ),
    Route(
        method="POST", path="/v1/work/listen", run=work.listen, request=api.Listen, reply=api.Heard,
        body_max=BATCH_BYTES_MAX, tags=WORK,
        summary="Hear which jobs somebody wants to be stopped, and be heard of; waits for the first one.",
    ),
    Route(
        method="POST", path="/v1/work/progress", run=work.tell_progress, request=api.Progress,
        reply=api.AttemptStanding, body_max=BODY_BYTES_MAX, tags=WORK, summary="Say how far an attempt is.",
    ),
    Route(
        method="POST", path="/v1/work/complete", run=work.complete_work, request=api.CompleteWork,
        reply=api.Completed, body_max=BATCH_BYTES_MAX, tags=WORK,
        summary="Say how attempts ended, and be given what follows, if wanted. A single outcome that is refused is answered 409.",
    ),
    Route(
        method="POST", path="/v1/work/effect/prepare", run=work.prepare_effect, request=api.PrepareEffect,
        reply=api.EffectRuling, tags=WORK, summary="Enter an effect before it happens.",
    ),
    Route(
        method="POST", path="/v1/work/effect/commit", run=work.commit_effect, request=api.CommitEffect,
        reply=api.Nothing, body_max=BODY_BYTES_MAX, tags=WORK, summary="Say that an effect has happened.",
    ),
    Route(
        method="POST", path="/v1/work/effect/withdraw", run=work.withdraw_effect, request=api.WithdrawEffect,
        reply=api.Nothing, tags=WORK, summary="Say that an effect has not happened, for certain.",
    ),
    Route(
        method="POST", path="/v1/work/goodbye", run=work.goodbye, request=api.Goodbye, reply=api.Nothing,
        tags=WORK, summary="Draining, or gone.",
    ),
    Route(
        method="GET", path="/v1/workers", run=workers.list_workers, reply=api.Workers, tags=LOOK,
        summary="Every worker the plane knows.",
    ),
    Route(
        method="POST", path="/v1/workers/{id}:drain", run=workers.drain_worker, reply=api.Nothing, wide=("id",),
        headers=("Holdfast-Actor",), tags=LOOK, summary="Give a worker nothing more.",
    ),
    Route(
        method="GET", path="/v1/locks", run=locks.list_locks, query=locks.LockQuery, reply=api.LocksPage,
        tags=LOOK, summary="Held locks, in key order.",
    ),
    Route(
        method="GET", path="/v1/dead-letters", run=dead_letters.list_dead_letters, query=PageQuery,
        reply=api.DeadLetterPage, tags=LOOK, summary="Jobs that ended badly, newest first, without their events.",
    ),
    Route(
        method="GET", path="/v1/dead-letters/{number}", run=dead_letters.get_dead_letter, reply=api.DeadLetterView,
        tags=LOOK, summary="One dead letter, with its events.",
    ),
    Route(
        method="POST", path="/v1/dead-letters/{number}:replay", run=dead_letters.replay_dead_letter, reply=api.JobView,
        statuses=(202, 200), headers=("Holdfast-Actor",), tags=LOOK, summary="Submit a dead letter's job anew, once.",
    ),
    Route(
        method="GET", path="/v1/effects", run=effects.list_effects, query=effects.EffectQuery, reply=api.EffectPage,
        tags=LOOK, summary="Effects, such as those that nobody knows whether they happened.",
    ),
    Route(
        method="POST", path="/v1/effects/{job}/{key}:resolve", run=effects.resolve_effect, request=api.ResolveEffect,
        reply=api.EffectView, headers=("Holdfast-Actor",), body_max=BODY_BYTES_MAX, wide=("key",), tags=LOOK,
        summary="Say what became of an unknown effect; a job that waits for it may go on.",
    ),
    Route(
        method="GET", path="/v1/events", run=events.stream_events, query=events.EventQuery,
        headers=("Last-Event-ID",), media="text/event-stream", tags=LOOK,
        summary="Everything that happens, as server-sent events.",
    ),
    Route(
        method="GET", path="/problems/{code}", run=problems.explain, media="text/plain", open=True, tags=HEALTH,
        summary="What a problem's type means.",
    ),
    Route(
        method="GET", path="/livez", run=health.tell_alive, media="text/plain", open=True, tags=HEALTH,
        summary="The process runs.",
    ),
    Route(
        method="GET", path="/readyz", run=health.tell_ready, media="text/plain", open=True, tags=HEALTH,
        summary="The store answers, and the plane is not shutting down.",
    ),
    Route(
        method="GET", path="/metrics", run=health.tell_metrics, media="text/plain", tags=HEALTH,
        summary="Prometheus metrics.",
    ),
    Route(
        method="GET", path="/v1/approvals", run=approvals.list_approvals, query=approvals.ApprovalQuery,
        reply=approval_types.ApprovalPage, tags=APPROVALS, summary="Approvals, newest first.",
    ),
    Route(
        method="GET", path="/v1/approvals/{id}", run=approvals.get_approval, reply=approval_types.ApprovalView,
        tags=APPROVALS, summary="One approval, with everything that was said on it.",
    ),
    Route(
        method="POST", path="/v1/approvals/{id}:decide", run=approvals.decide_approval,
        request=approval_types.DecideApproval, reply=approval_types.ApprovalView,
        headers=("Holdfast-Actor", "Holdfast-Via", "If-Match"), needs=("Holdfast-Actor",), body_max=BODY_BYTES_MAX,
        tags=APPROVALS,
        summary="Approve, reject, edit or respond. The same again from the same person is answered the same.",
    ),
    Route(
        method="POST", path="/v1/approvals/{id}:delegate", run=approvals.delegate_approval,
        request=approval_types.DelegateApproval, reply=approval_types.ApprovalView, headers=("Holdfast-Actor",),
        needs=("Holdfast-Actor",), tags=APPROVALS, summary="Let somebody else decide in the caller's place, this once.",
    ),
    Route(
        method="GET", path="/v1/policy", run=policies.get_policy, reply=policy_types.PolicyView, tags=POLICY,
        summary="The active version of the policy, and the one that this plane uses.",
    ),
    Route(
        method="POST", path="/v1/policy:publish", run=policies.publish_policy, request=policy_types.PublishPolicy,
        reply=policy_types.PolicyView, headers=("Holdfast-Actor", "If-Match"), tags=POLICY,
        summary="Store a document as the next version, and make it the active one.",
    ),
    Route(
        method="POST", path="/v1/policy:rollback", run=policies.roll_back_policy, request=policy_types.RollBackPolicy,
        reply=policy_types.PolicyView, headers=("Holdfast-Actor", "If-Match"), tags=POLICY,
        summary="Make an older version the active one.",
    ),
    Route(
        method="POST", path="/v1/policy:simulate", run=policies.simulate_policy, request=policy_types.SimulatePolicy,
        reply=policy_types.Simulation, tags=POLICY,
        summary="What a draft would have decided about the tenant's newest jobs. Changes nothing.",
    ),
    Route(
        method="GET", path="/v1/policy/versions", run=policies.list_policy_versions, query=PageQuery,
        reply=policy_types.PolicyVersionPage, tags=POLICY, summary="Versions of the policy, newest first.",
    ),
    Route(
        method="GET", path="/v1/policy/versions/{version}", run=policies.get_policy_version,
        reply=policy_types.PolicyVersionView, tags=POLICY, summary="One version of the policy, with its document.",
    ),
    *RUN_ROUTES,
    *SCHEDULE_ROUTES,
    *WEBHOOK_ROUTES,
    *WHY_ROUTES,
    *locks.LOCK_ROUTES,
    *SUMMARY_ROUTES,
    *AUDIT_ROUTES,
    *FREEZE_ROUTES,
    *MATRIX_ROUTES,
    *INCIDENT_ROUTES,
)  # fmt: skip

HEALTH_ROUTES = tuple(route for route in ROUTES if route.tags == HEALTH)
"""What a process serves that is no gateway."""
