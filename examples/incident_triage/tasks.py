"""What the steps of an incident's triage do. In earnest each would ask a system of yours, or a model."""

from __future__ import annotations

from typing import Any

from holdfast.worker import Job, Worker

worker = Worker(name="triage", slots=4)


@worker.task("triage.logs", isolation="async")
async def read_logs(job: Job) -> list[str]:
    return [f"{job.payload['service']}: out of memory", f"{job.payload['service']}: worker 3 restarted"]


@worker.task("triage.metrics", isolation="async")
async def read_metrics(job: Job) -> dict[str, float]:
    return {"memory": 0.98, "errors_per_s": 12.0}


@worker.task("triage.diagnose", isolation="async")
async def diagnose(job: Job) -> dict[str, Any]:
    leaking = job.payload["metrics"]["memory"] > 0.9 and any("memory" in line for line in job.payload["logs"])
    return {"cause": "it leaks memory" if leaking else "unknown", "confidence": 0.9 if leaking else 0.1}


@worker.task("triage.restart", isolation="async")
async def restart(job: Job) -> str:
    # Once over all attempts: a worker that dies here leaves a question for a person, not a second restart.
    restarted: str = await job.once("restart", lambda: f"{job.payload['service']} was restarted")
    return restarted
