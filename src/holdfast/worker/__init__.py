"""Workers: programs that take jobs from the plane and run them under a lease.

worker = Worker("http://127.0.0.1:7070", name="mailer")

@worker.task("mail.send")
async def send(job: Job) -> dict: ...

worker.run()
"""

from __future__ import annotations

from holdfast.worker.context import Job, SyncJob
from holdfast.worker.errors import (
    AttemptOver,
    BrokenWorker,
    EffectAbsent,
    EffectUnknown,
    Fatal,
    LeaseLost,
    PlaneRefused,
)
from holdfast.worker.worker import Isolation, Options, Worker, serve, serving

__all__ = [
    "AttemptOver",
    "BrokenWorker",
    "EffectAbsent",
    "EffectUnknown",
    "Fatal",
    "Isolation",
    "Job",
    "LeaseLost",
    "Options",
    "PlaneRefused",
    "SyncJob",
    "Worker",
    "serve",
    "serving",
]
