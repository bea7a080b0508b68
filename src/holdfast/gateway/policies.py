"""`/v1/policy`: what may run. Read, publish, roll back, and try a draft on what was decided before."""

from __future__ import annotations

from collections import Counter

import msgspec

from holdfast.api.policies import (
    ChangedDecision,
    PolicyInUse,
    PolicyVersionPage,
    PolicyVersionView,
    PolicyView,
    PublishPolicy,
    RollBackPolicy,
    SimulatePolicy,
    Simulation,
)
from holdfast.core.policy_version import PLANE, PolicyVersion
from holdfast.flow.policies import (
    Standing,
    Verdict,
    find_active,
    get_version,
    list_versions,
    publish,
    roll_back,
    simulate,
)
from holdfast.gateway.actors import find_actor
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.jobs import version_of_tag
from holdfast.gateway.limits import get_number
from holdfast.gateway.pages import PageQuery, number_from_cursor, read_page, to_cursor

EXAMPLES_MAX = 100


async def get_policy(desk: Desk, _: Call) -> Answer:
    return await _answer(desk, await find_active(desk.plane.store))


async def publish_policy(desk: Desk, call: Call) -> Answer:
    wanted: PublishPolicy = call.body
    await publish(
        wanted.document,
        store=desk.plane.store,
        expected=version_of_tag(call.header(b"if-match")),
        by=find_actor(call),
        reason=wanted.reason,
        entry=entry_of(desk, call, "policy.published", "policy", reason=wanted.reason, tenant=PLANE),
    )
    return await _answer(desk, await find_active(desk.plane.store))


async def roll_back_policy(desk: Desk, call: Call) -> Answer:
    wanted: RollBackPolicy = call.body
    await roll_back(
        wanted.version,
        store=desk.plane.store,
        expected=version_of_tag(call.header(b"if-match")),
        by=find_actor(call),
        reason=wanted.reason,
        entry=entry_of(desk, call, "policy.rolled_back", "policy", reason=wanted.reason, tenant=PLANE),
    )
    return await _answer(desk, await find_active(desk.plane.store))


async def list_policy_versions(desk: Desk, call: Call) -> Answer:
    query: PageQuery = call.query
    store = desk.plane.store
    active = (await find_active(store)).number
    page, last = await read_page(
        lambda before, limit: list_versions(store, before=before, limit=limit),
        start=number_from_cursor(query.cursor),
        limit=query.limit,
        place=lambda version: version.number,
        weigh=lambda version: len(msgspec.json.encode(version.document)),
    )
    more = None if last is None else to_cursor(last)
    return Answer(PolicyVersionPage(items=[_version_view(one, active) for one in page], next_cursor=more))


async def get_policy_version(desk: Desk, call: Call) -> Answer:
    number = get_number(call.path["version"], of="versions of the policy")
    version = await get_version(desk.plane.store, number)
    view = _version_view(version, (await find_active(desk.plane.store)).number)
    view.document = version.document
    return Answer(view)


async def simulate_policy(desk: Desk, call: Call) -> Answer:
    wanted: SimulatePolicy = call.body
    verdicts = await simulate(wanted.document, call.tenant, store=desk.plane.store, limit=wanted.jobs)
    changed = [verdict for verdict in verdicts if verdict.changed]
    return Answer(
        Simulation(
            jobs=len(verdicts),
            before=dict(Counter(verdict.before for verdict in verdicts)),
            after=dict(Counter(verdict.after for verdict in verdicts)),
            by_rule=dict(Counter(verdict.decision.rule for verdict in verdicts)),
            failed=sum(bool(verdict.decision.failed) for verdict in verdicts),
            changed=len(changed),
            examples=[_changed_view(verdict) for verdict in changed[:EXAMPLES_MAX]],
        )
    )


async def _answer(desk: Desk, standing: Standing) -> Answer:
    policy, active = desk.plane.policy, standing.active
    view = PolicyView(
        version=standing.number,
        hash="" if active is None else active.hash,
        newest=0 if active is None else active.newest,
        since=None if active is None else active.since,
        by="" if active is None else active.by,
        reason="" if active is None else active.reason,
        document=None if active is None else (await get_version(desk.plane.store, active.number)).document,
        here=PolicyInUse(version=policy.version, hash=policy.hash, since=policy.since),
    )
    return Answer(view, headers=((b"etag", b'"%d"' % standing.number),))


def _version_view(version: PolicyVersion, active: int) -> PolicyVersionView:
    return PolicyVersionView(
        version=version.number,
        hash=version.hash,
        published_at=version.published_at,
        by=version.by,
        reason=version.reason,
        file=version.file,
        rules=len(version.document.get("rules", [])),
        active=version.number == active,
    )


def _changed_view(verdict: Verdict) -> ChangedDecision:
    return ChangedDecision(
        job_id=verdict.job.id,
        topic=verdict.job.topic,
        before=verdict.before,
        rule_before=verdict.rule_before,
        after=verdict.after,
        rule_after=verdict.decision.rule,
        reason=verdict.decision.reason,
    )
