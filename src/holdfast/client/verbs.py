"""The verbs that both clients have, written down once: each is a request, and a client knows how to ask it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

from holdfast.client import (
    approval_asks,
    asks,
    audit_asks,
    freeze_asks,
    incident_asks,
    lock_asks,
    matrix_asks,
    policy_asks,
    run_asks,
    schedule_asks,
    webhook_asks,
    why_asks,
)

if TYPE_CHECKING:
    from holdfast.client.async_client import AsyncClient
    from holdfast.client.sync_client import Client

P = ParamSpec("P")
T = TypeVar("T")


class Verb(Generic[P, T]):
    """A method made of a request: called on a `Client` it returns the answer, on an `AsyncClient` it is awaited."""

    def __init__(self, request: Callable[P, asks.Ask[T]]) -> None:
        self._request = request
        self.__doc__ = request.__doc__

    @overload
    def __get__(self, client: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(self, client: Client, owner: type[object]) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: AsyncClient, owner: type[object]) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Client | AsyncClient | None, owner: type[object]) -> Any:
        if client is None:
            return self

        @wraps(self._request)
        def call(*args: P.args, **kwargs: P.kwargs) -> T | Coroutine[Any, Any, T]:
            return client.ask(self._request(*args, **kwargs))

        return call


class Verbs:
    submit = Verb(asks.submit)
    submit_many = Verb(asks.submit_many)
    get = Verb(asks.get)
    list = Verb(asks.list_jobs)
    events = Verb(asks.list_events)
    cancel = Verb(asks.cancel)
    retry = Verb(asks.retry)
    dead_letters = Verb(asks.dead_letters)
    dead_letter = Verb(asks.dead_letter)
    replay = Verb(asks.replay)
    effects = Verb(asks.effects)
    resolve_effect = Verb(asks.resolve_effect)
    workers = Verb(asks.workers)
    drain = Verb(asks.drain)
    locks = Verb(asks.locks)
    approvals = Verb(approval_asks.approvals)
    approval = Verb(approval_asks.approval)
    approve = Verb(approval_asks.approve)
    reject = Verb(approval_asks.reject)
    edit_approval = Verb(approval_asks.edit_approval)
    respond = Verb(approval_asks.respond)
    delegate = Verb(approval_asks.delegate)
    apply_workflow = Verb(run_asks.apply_workflow)
    workflow = Verb(run_asks.workflow)
    workflows = Verb(run_asks.workflows)
    workflow_revisions = Verb(run_asks.workflow_revisions)
    start_run = Verb(run_asks.start_run)
    plan_run = Verb(run_asks.plan_run)
    get_run = Verb(run_asks.get_run)
    list_runs = Verb(run_asks.list_runs)
    run_timeline = Verb(run_asks.run_timeline)
    run_steps = Verb(run_asks.run_steps)
    cancel_run = Verb(run_asks.cancel_run)
    pause_run = Verb(run_asks.pause_run)
    resume_run = Verb(run_asks.resume_run)
    rerun = Verb(run_asks.rerun)
    policy = Verb(policy_asks.policy)
    policy_versions = Verb(policy_asks.policy_versions)
    policy_version = Verb(policy_asks.policy_version)
    publish_policy = Verb(policy_asks.publish_policy)
    roll_back_policy = Verb(policy_asks.roll_back_policy)
    simulate_policy = Verb(policy_asks.simulate_policy)
    add_webhook = Verb(webhook_asks.add_webhook)
    webhooks = Verb(webhook_asks.webhooks)
    webhook = Verb(webhook_asks.webhook)
    remove_webhook = Verb(webhook_asks.remove_webhook)
    enable_webhook = Verb(webhook_asks.enable_webhook)
    rotate_webhook_secret = Verb(webhook_asks.rotate_webhook_secret)
    test_webhook = Verb(webhook_asks.test_webhook)
    webhook_posts = Verb(webhook_asks.webhook_posts)
    retry_post = Verb(webhook_asks.retry_post)
    add_schedule = Verb(schedule_asks.add_schedule)
    schedules = Verb(schedule_asks.schedules)
    schedule = Verb(schedule_asks.schedule)
    pause_schedule = Verb(schedule_asks.pause_schedule)
    resume_schedule = Verb(schedule_asks.resume_schedule)
    remove_schedule = Verb(schedule_asks.remove_schedule)
    trigger_schedule = Verb(schedule_asks.trigger_schedule)
    lock_classes = Verb(lock_asks.lock_classes)
    evict_lock = Verb(lock_asks.evict_lock)
    why_job = Verb(why_asks.why_job)
    why_run = Verb(why_asks.why_run)
    why_approval = Verb(why_asks.why_approval)
    why_worker = Verb(why_asks.why_worker)
    why_lock = Verb(why_asks.why_lock)
    summary = Verb(why_asks.summary)
    metrics = Verb(why_asks.metrics)
    audit = Verb(audit_asks.audit)
    audit_line = Verb(audit_asks.audit_line)
    verify_audit = Verb(audit_asks.verify_audit)
    freeze = Verb(freeze_asks.freeze)
    unfreeze = Verb(freeze_asks.unfreeze)
    freezes = Verb(freeze_asks.freezes)
    start_incident = Verb(incident_asks.start_incident)
    note_incident = Verb(incident_asks.note_incident)
    stop_incident = Verb(incident_asks.stop_incident)
    incidents = Verb(incident_asks.incidents)
    incident = Verb(incident_asks.incident)
    export_incident = Verb(incident_asks.export_incident)
    matrix = Verb(matrix_asks.matrix)
    set_matrix = Verb(matrix_asks.set_matrix)
    reset_matrix = Verb(matrix_asks.reset_matrix)
    simulate_matrix = Verb(matrix_asks.simulate_matrix)
