"""A workflow as a picture: lines of text for a terminal, Mermaid for a page."""

from __future__ import annotations

from holdfast.core.workflow import (
    ApprovalStep,
    ConditionStep,
    Definition,
    DelayStep,
    ForEachStep,
    JobStep,
    NotifyStep,
    ParallelStep,
    StepSpec,
    SwitchStep,
    TransformStep,
    WorkflowStep,
)


def draw_text(definition: Definition) -> str:
    """One line for each step: its id, what it is, and what it waits for."""
    ids = max(len(step.id) for step in definition.steps)
    about = {step.id: _about(step) for step in definition.steps}
    widest = max(len(text) for text in about.values())
    lines = [f"{definition.name}: {len(definition.steps)} step{'s' * (len(definition.steps) != 1)}"]
    for step in definition.steps:
        waits = f"  ← {', '.join(step.depends_on)}" if step.depends_on else ""
        lines.append(f"  {step.id:<{ids}}  {about[step.id]:<{widest if waits else 0}}{waits}")
    return "\n".join(lines) + "\n"


def draw_mermaid(definition: Definition) -> str:
    lines = ["flowchart TD"]
    for step in definition.steps:
        left, right = _OUTLINES.get(type(step), ("[", "]"))
        lines.append(f'    {step.id}_{left}"{step.id}<br/>{_quoted(_about(step))}"{right}')
    for step in definition.steps:
        for dependency in step.depends_on:
            before, _, case = dependency.partition("=")
            lines.append(f"    {before}_ -->{f'|{case}|' if case else ''} {step.id}_")
    return "\n".join(lines) + "\n"


_OUTLINES = {
    ConditionStep: ("{", "}"),
    SwitchStep: ("{", "}"),
    ApprovalStep: ("[/", "/]"),
    DelayStep: ("([", "])"),
    ForEachStep: ("[[", "]]"),
    ParallelStep: ("[[", "]]"),
    WorkflowStep: ("[[", "]]"),
}
"""Mermaid's shapes. An id has a `_` behind it, for some words (`end`) mean something there."""


def _about(step: StepSpec) -> str:
    match step:
        case JobStep():
            return f"job {step.topic}"
        case ApprovalStep():
            return f"approval, {step.quorum} of {len(step.approvers)}" if step.approvers else "approval"
        case TransformStep():
            return "transform"
        case NotifyStep():
            return f"notify {step.webhook}"
        case WorkflowStep():
            return f"workflow {step.workflow}"
        case _:
            return _about_flow(step)


def _about_flow(step: ConditionStep | SwitchStep | DelayStep | ForEachStep | ParallelStep) -> str:
    match step:
        case ConditionStep():
            return f"if {_short(step.test)}"
        case SwitchStep():
            return f"switch {' | '.join([*step.cases, *([step.default] if step.default else [])])}"
        case DelayStep():
            return f"wait until {_short(step.until)}" if step.until else f"wait {step.seconds} s"
        case ForEachStep():
            return f"for each {_short(step.items)}: {_about(step.step)}"
        case ParallelStep():
            return f"{step.wait} of {' | '.join(step.branches)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else line[:39] + "…"


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
