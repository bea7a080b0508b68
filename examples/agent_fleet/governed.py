"""The same fleet under rules: one job is denied, one tenant slowed down, and a run waits for a person's yes."""

from __future__ import annotations

from dataclasses import dataclass

from stage import OffScript, Stage

from holdfast.client import Client
from holdfast.errors import HoldfastError, TooMany

POLICY = {
    "format": 1,
    "rules": [
        {
            "name": "nobody-deletes",
            "match": {"topic": "infra.delete"},
            "action": "deny",
            "reason": "infrastructure is deleted by people",
        },
        {
            "name": "noisy-neighbour",
            "match": {"tenant": "noisy"},
            "action": "throttle",
            "throttle": {"rate": "5/m", "burst": 5},
        },
    ],
    "default": {"action": "allow"},
}

WORKFLOW = """
name: goodwill
steps:
  - id: look
    kind: job
    topic: report.write
    payload: {read_s: 0.1}
  - id: ask
    kind: approval
    depends_on: [look]
    message: "Refund ${input.customer}?"
    approvers: [finn, gina]
  - id: refund
    kind: job
    depends_on: [ask]
    topic: refund.pay
    payload: {}
  - id: tell
    kind: job
    depends_on: [refund]
    topic: mail.send
    payload: {to: "${input.customer}"}
"""


@dataclass(frozen=True)
class Governed:
    denied: int
    throttled: int
    decided: int
    runs: int

    @property
    def complete(self) -> bool:
        return (self.denied, self.decided, self.runs) == (1, 1, 1) and self.throttled == 3


def tell(stage: Stage) -> Governed:
    published = stage.client.publish_policy(POLICY, reason="the quarter's rules", by="olga")
    stage.narrate("olga", f"publishes a policy of {len(POLICY['rules'])} rules: version {published.version}")
    denied = stage.client.submit("infra.delete", {"cluster": "prod"})
    stage.narrate("story", f"an agent wants to delete a cluster: {denied.state}, {(denied.error or {})['message']}")
    throttled = flood(stage)
    decided = run_with_a_yes(stage)
    return Governed(denied=int(denied.state == "DENIED"), throttled=throttled, decided=decided, runs=decided)


def flood(stage: Stage) -> int:
    """How many of a noisy tenant's jobs were sent away; all others were stored."""
    refused: list[TooMany] = []
    with Client(stage.url, tenant="noisy") as noisy:
        for n in range(8):
            try:
                noisy.submit("mail.send", {"to": f"everybody-{n}"})
            except TooMany as error:
                refused.append(error)
    told = f"come back in {refused[0].retry_after_s:.0f} s" if refused else "nobody was"
    stage.narrate("noisy", f"submits 8 jobs at once: {8 - len(refused)} stored, {len(refused)} sent away: {told}")
    return len(refused)


def run_with_a_yes(stage: Stage) -> int:
    """1 if the run waited for a person, two of them decided at odds, and it went on by the first word."""
    client = stage.client
    client.apply_workflow(WORKFLOW)
    run = client.start_run("goodwill", {"customer": "customer-7"}, idempotency_key="goodwill-7")
    stage.until("the run asks for a yes", lambda: client.approvals(state="pending").items)
    [asked] = client.approvals(state="pending").items
    stage.narrate("run", f"goodwill has looked into the case, and waits: {asked.message!r}")
    client.approve(asked.id, by="finn", comment="a good customer")
    try:
        client.reject(asked.id, by="gina", comment="too much")
    except HoldfastError as late:
        stage.narrate("gina", f"rejects it a moment after finn has approved: {late}")
    else:
        raise OffScript("an approval was decided twice")
    stage.until("the run has ended", lambda: client.get_run(run.id).state in ("succeeded", "failed"))
    ended = client.get_run(run.id)
    stage.narrate("run", f"goodwill has {ended.state}: refunded and told, each once")
    return int(ended.state == "succeeded")
