"""What `holdfast why` would say on a stage."""

from __future__ import annotations

from typing import Any, cast

from flow.run_stage import RunStage
from flow.stage import ACME, Stage
from holdfast.core.approval import Approval
from holdfast.core.job import Job, Tenant
from holdfast.core.run import Run
from holdfast.core.why import Finding, Reason
from holdfast.flow.explain import Explainer, Explanation
from holdfast.flow.explain_run import RunExplainer
from holdfast.ports import Store
from holdfast.registry import SILENT_S


def explainer(stage: Stage, *, gone: str = "") -> Explainer:
    """`gone` is a holder of locks whose process is known to be dead."""
    return Explainer(
        store=stage.typed_store,
        locks=stage.locks,
        topics=stage.topics,
        quotas=stage.quotas,
        workers=stage.registry.candidates,
        is_claiming=stage.claims.waits,
        is_gone=lambda holder: holder == gone,
        silent_s=SILENT_S,
    )


async def why(stage: Stage, job: Job) -> Explanation:
    return await explainer(stage).job(ACME, job.id)


async def cause(stage: Stage, job: Job) -> Finding:
    """The first finding, which is to be the true cause."""
    return (await why(stage, job)).findings[0]


async def cause_of_run(staged: RunStage, run: Run) -> Finding:
    stage = staged.stage
    explains = RunExplainer(
        explainer(stage),
        store=cast(Store, stage.store),
        locks=stage.locks,
        workflows=staged.first.workflows,
        is_gone=lambda _: False,
    )
    return (await explains.run(ACME, run.id)).findings[0]


async def cause_of_lock(stage: Stage, key: str, *, gone: str = "") -> list[Finding]:
    return list((await explainer(stage, gone=gone).lock(key)).findings)


async def cause_of_approval(stage: Stage, approval: Approval) -> Finding:
    return (await explainer(stage).approval(ACME, approval)).findings[0]


async def cause_of_worker(stage: Stage, worker: str, tenant: Tenant = ACME) -> list[Finding]:
    return list((await explainer(stage).worker(tenant, worker)).findings)


def codes(found: Explanation | list[Finding]) -> list[Reason]:
    return [one.reason for one in (found if isinstance(found, list) else found.findings)]


def evidence(found: Finding, *names: str) -> list[Any]:
    return [found.evidence[name] for name in names]
