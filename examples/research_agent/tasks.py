"""What a research agent does with one source, and with what all of them said."""

from __future__ import annotations

from typing import Any

from holdfast.worker import Fatal, Job, Worker

worker = Worker(name="researcher", slots=8)


@worker.task("research.search", isolation="async")
async def search(job: Job) -> dict[str, Any]:
    source = job.payload["source"]
    if source == "the-silent-one":
        raise Fatal("it does not answer")
    return {"source": source, "says": f"{source} on {job.payload['question']!r}"}


@worker.task("research.answer", isolation="async")
async def answer(job: Job) -> dict[str, Any]:
    heard = [found for found in job.payload["found"] if found is not None]
    return {
        "question": job.payload["question"],
        "sources": len(heard),
        "missing": len(job.payload["found"]) - len(heard),
    }
