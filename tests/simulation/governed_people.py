"""Who lives in a governed story: customers of two tenants, those who decide, and workers who look at what they do."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.approval import Approval, from_record
from holdfast.core.job import JobId, Tenant
from holdfast.core.record import Kind
from holdfast.core.run import RunState
from holdfast.core.states import EffectState
from holdfast.errors import StoreUnavailable
from holdfast.http1.answer import BrokenExchange, Reply
from holdfast.worker import Fatal, Job
from simulation import governed_rules as rules
from simulation.governed_rules import ACME, GLOBEX, TENANTS, WORDS
from simulation.plane_link import PlaneAddress
from simulation.plane_nodes import Node, WorkerNode

if TYPE_CHECKING:
    from simulation.governed_story import GovernedStory

FEW, MANY = 2, 20
INITECH = Tenant("initech")
"""Comes with many urgent jobs at once."""


class Order(NamedTuple):
    """What a customer wants, and asks for until it is answered."""

    tenant: Tenant
    path: str
    body: dict[str, Any]
    key: str
    actor: str = ""


@dataclass(frozen=True)
class Word:
    """What somebody said on an approval, and what was answered."""

    approval: str
    by: str
    choice: str
    read: str
    """The digest of what they had read."""
    status: int
    answer: dict[str, Any]


class GovernedWorker(WorkerNode):
    story: GovernedStory

    async def live(self) -> None:
        if self.story.calm:
            await asyncio.sleep(0.5)  # when they come, much is waiting for them
        await super().live()

    async def handle(self, job: Job) -> Any:
        story, chance = self.story, self.story.world.chance
        story.entered.append((JobId(job.id), job.fence))
        story.check_allowed(job)
        if job.topic == "pay" and chance.random() < 0.15 and not story.calm:
            raise ConnectionError("the bank is closed")
        await asyncio.sleep(chance.choice((0.0, 0.2, 1.0)) * chance.random())
        if job.topic == "ship" and job.payload["fails"]:
            raise Fatal("nobody lives there")
        if job.topic in ("pay", "refund"):
            await job.once("pay", story.pay, job.id, job.fence)
        return {"by": self.name}


@dataclass
class Customers(Node):
    """They order jobs and runs, stop some of them, and change the policy while approvals wait."""

    story: GovernedStory
    answered: int = 0
    wanted: int = 1
    jobs_wanted: int = 0

    async def live(self) -> None:
        story, chance = self.story, self.story.world.chance
        orders = self._orders()
        self.wanted = len(orders) + story.calm
        self.jobs_wanted = sum(order.path == "/v1/jobs" for order in orders) + (FEW + MANY if story.calm else 0)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resolve())
            if story.calm:
                group.create_task(self._rush())
            else:
                group.create_task(self._govern())
            for order in orders:
                late_s = chance.uniform(0.0, 0.5 if order.body.get("topic") == "bulk" else story.rage_s - 2.0)
                group.create_task(self._order(order, late_s))

    def _orders(self) -> list[Order]:
        chance = self.story.world.chance
        orders = []
        for n in range(2):
            about = {"amount": chance.choice((50, 150)), "fails": chance.random() < 0.4, "word": WORDS[ACME]}
            run = {"workflow": "payout", "input": about}
            orders.append(Order(ACME, "/v1/runs", run, f"payout-{n}", rules.REQUESTER))
        tour = {"workflow": "tour", "input": {"word": WORDS[GLOBEX]}}
        orders.append(Order(GLOBEX, "/v1/runs", tour, "tour"))
        for n in range(3):
            pay: dict[str, Any] = {"topic": "pay", "payload": {"amount": 150, "word": WORDS[ACME]}, "session": "till"}
            pay["delay_s"] = chance.choice((0.0, 3.0))  # approved, and then not at once begun
            orders.append(Order(ACME, "/v1/jobs", pay, f"pay-{n}", chance.choice((rules.REQUESTER, "zoe"))))
            bulk = {"topic": "bulk", "payload": {"word": WORDS[GLOBEX]}}
            orders.append(Order(GLOBEX, "/v1/jobs", bulk, f"bulk-{n}"))
            turn = {"topic": "turn", "payload": {"word": WORDS[ACME]}, "session": "chat"}
            how = chance.choice(("enqueue", "enqueue", "reject", "interrupt", "rollback"))
            orders.append(Order(ACME, "/v1/jobs", {**turn, "session_policy": how}, f"turn-{n}"))
        orders.append(Order(ACME, "/v1/jobs", {"topic": "danger", "payload": {"word": WORDS[ACME]}}, "danger"))
        return orders

    async def _order(self, order: Order, late_s: float) -> None:
        story = self.story
        await asyncio.sleep(late_s)
        speaker = Speaker(story)
        while True:
            reply = await speaker.say(order.tenant, order.path, order.body, key=order.key, actor=order.actor)
            if reply is not None and reply.status in (200, 202):
                story.acknowledge(order, json.loads(reply.body)["id"])
                break
            if reply is not None and reply.status == 409:
                code = json.loads(reply.body)["code"]
                story.reached[code] += 1
                if code == "session-busy":
                    break
            if reply is not None and reply.status == 429:
                story.reached["throttled"] += 1
            await asyncio.sleep(0.5)
        self.answered += 1
        if order.path == "/v1/runs" and reply.status == 202 and not story.calm:
            await self._meddle(speaker, order.tenant, json.loads(reply.body)["id"])

    async def _meddle(self, speaker: Speaker, tenant: Tenant, run: str) -> None:
        """Stop some runs, and hold some up for a while."""
        chance = self.story.world.chance
        fate = chance.random()
        await asyncio.sleep(chance.uniform(0.0, 4.0))
        if fate < 0.15:
            await speaker.insist(tenant, f"/v1/runs/{run}:cancel", {})
        elif fate < 0.3:
            await speaker.insist(tenant, f"/v1/runs/{run}:pause", {})
            while (
                self.story.state_of(tenant, run) == RunState.PAUSED
            ):  # again, where a late request has paused it again
                await asyncio.sleep(chance.uniform(0.0, 3.0))
                await speaker.insist(tenant, f"/v1/runs/{run}:resume", {})
                await asyncio.sleep(6.0)

    async def _rush(self) -> None:
        """Before the workers come: a few jobs of one tenant, and many urgent ones of another."""
        few = [{"topic": "read", "payload": {"word": WORDS[ACME]}}] * FEW
        many = [{"topic": "rush", "priority": 50}] * MANY
        for tenant, jobs in ((ACME, few), (INITECH, many)):
            speaker = Speaker(self.story)
            while (reply := await speaker.say(tenant, "/v1/jobs:batch", {"jobs": jobs})) is None:
                await asyncio.sleep(0.01)  # nobody listens yet; nothing else can go wrong here
            for made in json.loads(reply.body)["jobs"]:
                self.story.acknowledge(None, made["job"]["id"])
        self.answered += 1

    async def _govern(self) -> None:
        """More people must agree from now on, and then fewer again."""
        story, chance = self.story, self.story.world.chance
        speaker = Speaker(story)
        for quorum in (2, 1):
            await asyncio.sleep(chance.uniform(0.5, 4.0))
            while not self.answered_all and not self._approved():
                await asyncio.sleep(0.2)
            wanted = {"document": rules.policy(quorum=quorum), "reason": "we thought again"}
            await speaker.say(ACME, "/v1/policy:publish", wanted, actor="root")

    def _approved(self) -> bool:
        """Whether there is an approval that was given and is not used yet."""
        story = self.story
        return bool(story.ask(story.jobs.list_records, Kind.APPROVAL, ACME, state="approved", limit=1))

    @property
    def answered_all(self) -> bool:
        return self.answered == self.wanted

    async def _resolve(self) -> None:
        """Somebody goes through the worklists and says what the bank's book says."""
        story = self.story
        while True:
            await asyncio.sleep(2.0)
            for tenant in TENANTS:
                for effect in story.ask(story.jobs.list_effects, tenant, state=EffectState.UNKNOWN):
                    state = EffectState.COMMITTED if story.paid[effect.job_id] else EffectState.ABSENT
                    with contextlib.suppress(StoreUnavailable):  # the disk is full: they look again
                        story.ask(
                            story.jobs.resolve_effect,
                            tenant,
                            effect.job_id,
                            effect.key,
                            state=state,
                            result=b"null",
                            note="seen in the book",
                        )


@dataclass
class Deciders(Node):
    """Several people to each approval, most of them at once, some of them late, and some who may not."""

    story: GovernedStory
    asked_at: dict[str, float] = field(default_factory=dict)

    async def live(self) -> None:
        story = self.story
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(0.3)
                for tenant in TENANTS:
                    pending = story.ask(story.jobs.list_records, Kind.APPROVAL, tenant, state="pending", limit=100)
                    for approval in map(from_record, pending):
                        if story.world.clock_s >= self.asked_at.get(approval.id, 0.0) + 3.0:
                            self.asked_at[approval.id] = story.world.clock_s
                            self._ring(group, approval)

    def _ring(self, group: asyncio.TaskGroup, approval: Approval) -> None:
        """Who says what on it, and when."""
        story, chance = self.story, self.story.world.chance
        left_s = approval.expires_at - story.jobs.now()
        when = left_s + chance.uniform(-0.05, 0.3) if chance.random() < 0.2 else chance.uniform(0.0, 1.0)
        some = chance.sample(rules.APPROVERS, 2)
        for by in some:
            choice = chance.choice(("approve", "approve", "approve", "reject", "edit"))
            group.create_task(self._say(approval, by, choice, max(0.0, when)))
        if chance.random() < 0.3:
            group.create_task(self._say(approval, approval.requested_by, "approve", 0.0))
        if chance.random() < 0.3:
            group.create_task(self._say(approval, some[0], "approve", 0.0, tenant=GLOBEX))

    async def _say(
        self, approval: Approval, by: str, choice: str, when: float, *, tenant: Tenant | None = None
    ) -> None:
        story = self.story
        await asyncio.sleep(when)
        body: dict[str, Any] = {"decision": choice, "comment": "so be it"}
        if choice == "edit":
            if not approval.job_id:
                return
            body["arguments"] = {**approval.arguments, "amount": 120}
        path = f"/v1/approvals/{approval.id}:decide"
        version = approval.version if story.world.chance.random() < 0.5 else 0
        reply = await Speaker(story).say(tenant or approval.tenant, path, body, actor=by, version=version)
        if reply is not None:
            story.words.append(Word(approval.id, by, choice, approval.digest, reply.status, json.loads(reply.body)))
            story.reached[f"decide {reply.status}"] += 1
            if tenant is not None and reply.status < 500 and reply.status != 404:
                story.broke(f"T1: {tenant} was answered {reply.status} about an approval of {approval.tenant}")


class Speaker:
    """Somebody at one of the gateways."""

    def __init__(self, story: GovernedStory) -> None:
        self._story = story
        self._address = PlaneAddress(story)

    async def say(
        self, tenant: Tenant, path: str, body: dict[str, Any], *, key: str = "", actor: str = "", version: int = 0
    ) -> Reply | None:
        """None: no answer."""
        headers = {"holdfast-tenant": tenant} | ({"holdfast-actor": actor} if actor else {})
        headers |= {"if-match": f'"{version}"'} if version else {}
        said = json.dumps(body).encode()
        try:
            reply = await self._address.post(path, said, within_s=5.0, key=key, headers=headers)
        except BrokenExchange:
            return None
        for other, word in WORDS.items():
            if other != tenant and word.encode() in reply.body:
                self._story.broke(f"T1: {tenant} reads what is {word}, from {path}")
        return reply

    async def insist(self, tenant: Tenant, path: str, body: dict[str, Any]) -> None:
        """Until it is answered, in whatever way; a busy lock is no answer."""
        while True:
            reply = await self.say(tenant, path, body)
            if reply is not None and reply.status not in (423, 503):
                return
            await asyncio.sleep(0.5)
