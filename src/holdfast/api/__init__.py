"""What travels over HTTP, as types: one definition for gateway, client, worker and OpenAPI document.

Times are seconds since the epoch by the store's clock. Payloads, results and progress are JSON
values. A request with an unknown field is refused, so a misspelt option is told; in a reply one is
ignored, so a plane may be newer than those who ask it.

Here is what every worker and every submitter needs; other resources have modules of their own
beside these, to be imported by whoever speaks of them.
"""

from __future__ import annotations

from holdfast.api.jobs import (
    CancelJob,
    EventPage,
    EventView,
    JobPage,
    JobView,
    NewJob,
    NewJobs,
    Submitted,
    SubmittedJobs,
)
from holdfast.api.looking import (
    DeadLetterPage,
    DeadLetterView,
    EffectPage,
    EffectView,
    LocksPage,
    LockView,
    ResolveEffect,
    WorkerInfo,
    Workers,
)
from holdfast.api.words import (
    Fence,
    JobRef,
    Label,
    Labels,
    Name,
    Nothing,
    Problem,
    Reply,
    Request,
    json_value,
)
from holdfast.api.work import (
    AttemptRef,
    AttemptStanding,
    Claim,
    CommitEffect,
    CompleteWork,
    Deliveries,
    DeliveryView,
    EffectRuling,
    Goodbye,
    Heard,
    Hello,
    HelloReply,
    Listen,
    Outcome,
    PrepareEffect,
    Progress,
    RenewWork,
    Standings,
    StartWork,
    WithdrawEffect,
)

__all__ = [
    "AttemptRef",
    "AttemptStanding",
    "CancelJob",
    "Claim",
    "CommitEffect",
    "CompleteWork",
    "DeadLetterPage",
    "DeadLetterView",
    "Deliveries",
    "DeliveryView",
    "EffectPage",
    "EffectRuling",
    "EffectView",
    "EventPage",
    "EventView",
    "Fence",
    "Goodbye",
    "Heard",
    "Hello",
    "HelloReply",
    "JobPage",
    "JobRef",
    "JobView",
    "Label",
    "Labels",
    "Listen",
    "LockView",
    "LocksPage",
    "Name",
    "NewJob",
    "NewJobs",
    "Nothing",
    "Outcome",
    "PrepareEffect",
    "Problem",
    "Progress",
    "RenewWork",
    "Reply",
    "Request",
    "ResolveEffect",
    "Standings",
    "StartWork",
    "Submitted",
    "SubmittedJobs",
    "WithdrawEffect",
    "WorkerInfo",
    "Workers",
    "json_value",
]
