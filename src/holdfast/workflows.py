"""Workflows in Python: a small builder for the definitions of `docs/reference/workflows.md`.

    from holdfast.workflows import Workflow, approval, compensation, job

    refund = Workflow("refund", timeout_s=3600)
    refund.step("check", job("orders.check", {"order": "${input.order}"}))
    refund.step("allowed", approval("Refund order ${input.order}?"), after="check", when="steps.check.output.sum > 100")
    refund.step("pay", job("payments.refund", undo=compensation("payments.charge")), after=["check", "allowed"])
    refund.to_json()      # for `holdfast workflow apply`, or a client

It makes the same document that could be written by hand, and nothing that it could not: whatever has
to be said is said in the definition, so that the plane never runs Python of whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.decision import Choice
from holdfast.core.states import Risk
from holdfast.core.workflow import (
    ApprovalStep,
    Compensation,
    ConditionStep,
    Definition,
    DelayStep,
    ForEachStep,
    JobStep,
    NotifyStep,
    OnError,
    ParallelStep,
    Retry,
    SimpleStep,
    StepSpec,
    SwitchStep,
    TransformStep,
    WorkflowStep,
)
from holdfast.core.workflow_check import parse

__all__ = [
    "Retry",
    "Workflow",
    "approval",
    "compensation",
    "condition",
    "delay",
    "for_each",
    "job",
    "notify",
    "parallel",
    "run",
    "switch",
    "transform",
]


class Workflow:
    """A definition in the making. Steps are added in any order; what depends on what is said by name."""

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        input_schema: dict[str, Any] | None = None,
        output: object = None,
        output_schema: dict[str, Any] | None = None,
        timeout_s: float | None = None,
        max_parallel: int | None = None,
    ) -> None:
        self._head: dict[str, Any] = {
            "name": name,
            "description": description,
            "input_schema": input_schema,
            "output": output,
            "output_schema": output_schema,
            "timeout_s": timeout_s,
            "max_parallel": max_parallel,
        }
        self._steps: list[StepSpec] = []

    def step(
        self,
        step_id: str,
        what: StepSpec,
        *,
        after: str | Sequence[str] = (),
        when: str = "",
        timeout_s: float | None = None,
        on_error: OnError = "compensate",
    ) -> str:
        """Add a step, and give back its id, for others to come `after`. `id=case` comes after a case."""
        depends_on = (after,) if isinstance(after, str) else tuple(after)
        changes = {"id": step_id, "depends_on": depends_on, "when": when, "timeout_s": timeout_s, "on_error": on_error}
        self._steps.append(msgspec.structs.replace(what, **changes))
        return step_id

    def definition(self) -> Definition:
        """Checked as if it had been written by hand. Raises `holdfast.errors.Invalid`."""
        return parse(self.to_json())

    def to_json(self) -> str:
        """The document, one step to a few lines: the lines that a refusal names can be found in it."""
        definition = Definition(steps=tuple(self._steps), **self._head)
        return msgspec.json.format(msgspec.json.encode(definition), indent=2).decode()


def job(
    topic: str,
    payload: object = None,
    *,
    retry: Retry | None = None,
    undo: Compensation | None = None,
    labels: Mapping[str, str] | None = None,
    priority: int = 0,
    risk: Literal["low", "medium", "high"] | None = None,
    session: str = "",
    max_attempts: int | None = None,
) -> JobStep:
    return JobStep(
        topic=topic,
        payload=payload,
        labels=dict(labels or {}),
        priority=priority,
        risk=None if risk is None else Risk(risk),
        session=session,
        max_attempts=max_attempts,
        retry=retry or Retry(),
        compensate=undo,
    )


def compensation(
    topic: str, payload: object = None, *, retry: Retry | None = None, timeout_s: float | None = None
) -> Compensation:
    """The job that undoes a step. Its payload may ask for `output`, the step's."""
    return Compensation(topic=topic, payload=payload, retry=retry or Retry(), timeout_s=timeout_s)


def approval(
    message: str,
    *,
    payload: object = None,
    approvers: Sequence[str] = (),
    quorum: int = 1,
    expires_s: float | None = None,
    separate: bool = False,
    choices: Sequence[Literal["approve", "reject", "respond"]] | None = None,
    response_schema: dict[str, Any] | None = None,
    effect_preview: str = "",
) -> ApprovalStep:
    """With a `response_schema` people answer: later steps find it in `steps.<id>.output.response`."""
    return ApprovalStep(
        message=message,
        payload=payload,
        approvers=tuple(approvers),
        quorum=quorum,
        expires_s=expires_s,
        separate=separate,
        choices=None if choices is None else tuple(Choice(choice) for choice in choices),
        response_schema=response_schema,
        effect_preview=effect_preview,
    )


def condition(test: str) -> ConditionStep:
    """Others come after `id=true` or `id=false`."""
    return ConditionStep(test=test)


def switch(cases: Mapping[str, str], *, default: str = "") -> SwitchStep:
    """The first case whose expression is true. Others come after `id=case`."""
    return SwitchStep(cases=dict(cases), default=default)


def delay(seconds: float | str | None = None, *, until: str = "") -> DelayStep:
    return DelayStep(seconds=seconds, until=until)


def transform(value: object) -> TransformStep:
    return TransformStep(value=value)


def notify(
    webhook: str, payload: object = None, *, retry: Retry | None = None, undo: Compensation | None = None
) -> NotifyStep:
    return NotifyStep(webhook=webhook, payload=payload, retry=retry or Retry(), compensate=undo)


def run(
    workflow: str,
    run_input: object = None,
    *,
    revision: int | None = None,
    retry: Retry | None = None,
    undo: Compensation | None = None,
) -> WorkflowStep:
    """A run of another workflow, as a step of this one."""
    return WorkflowStep(workflow=workflow, input=run_input, revision=revision, retry=retry or Retry(), compensate=undo)


def for_each(items: str, step: SimpleStep, *, at_once: int = 10, collect: bool = True) -> ForEachStep:
    return ForEachStep(items=items, step=step, parallel=at_once, collect=collect)


def parallel(wait: int | Literal["all", "any"] = "all", **branches: SimpleStep) -> ParallelStep:
    return ParallelStep(branches=branches, wait=wait)
