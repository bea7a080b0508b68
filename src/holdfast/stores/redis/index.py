"""In which lists a job or a record stands, as a function of what it is: what changes is the difference of two. Pure."""

from __future__ import annotations

from holdfast.core.job import Job, JobId
from holdfast.core.states import TERMINAL, State
from holdfast.stores.batch import AT_WORK, RecordPlace
from holdfast.stores.redis.commands import Commands, Word
from holdfast.stores.redis.keys import Keys, joined, queue_member, ready_member
from holdfast.stores.redis.rows import Standing, job_row
from holdfast.stores.rows import limit_key


def add_job(commands: Commands, keys: Keys, job: Job, look_at: float | None, number: int) -> None:
    """`number` is its place in the order in which jobs came."""
    commands.put(keys.jobs, job.id, job_row(job))
    commands.put(keys.payloads, job.id, job.payload)
    if job.result is not None:
        commands.put(keys.results, job.id, job.result)
    commands.list(keys.came, job.id, number)
    for key in _for_good(job, keys):
        commands.list(key, job.id)
    for key, member in _for_now(job, keys).items():
        commands.list(key, member)
    if look_at is not None:
        commands.list(keys.live, job.id, look_at)
    _count(commands, keys, job, +1)


def replace_job(commands: Commands, keys: Keys, before: Job, after: Job, look_at: float | None) -> None:
    """`before` may be bare: without payload and result."""
    commands.put(keys.jobs, after.id, job_row(after))
    if after.result is not None:
        commands.put(keys.results, after.id, after.result)
    elif before.result is not None:
        commands.take(keys.results, after.id)
    stood, stands = _for_now(before, keys), _for_now(after, keys)
    for key, member in stood.items():
        if stands.get(key) != member:
            commands.drop(key, member)
    for key, member in stands.items():
        if stood.get(key) != member:
            commands.list(key, member)
    if look_at is not None:
        commands.list(keys.live, after.id, look_at)
    elif before.state not in TERMINAL:
        commands.drop(keys.live, after.id)
    if before.state is not after.state or before.decision != after.decision:
        _count(commands, keys, before, -1)
        _count(commands, keys, after, +1)


def remove_job(commands: Commands, keys: Keys, job: Job) -> None:
    """One that has ended."""
    for key in (keys.jobs, keys.payloads, keys.results):
        commands.take(key, job.id)
    commands.drop(keys.came, job.id)
    for key in _for_good(job, keys):
        commands.drop(key, job.id)
    for key, member in _for_now(job, keys).items():
        commands.drop(key, member)


def _for_good(job: Job, keys: Keys) -> list[str]:
    """The lists that it stands in for as long as it is there."""
    listed = [keys.tenant(job.tenant)]
    if job.run:
        listed.append(keys.run(job.run))
    if job.replay_of:
        listed.append(keys.replays(job.replay_of))
    return listed


def _for_now(job: Job, keys: Keys) -> dict[str, Word]:
    """The lists that it stands in for as long as its state is what it is, each with its member there."""
    state, tenant = job.state, job.tenant
    if state is State.SUCCEEDED:
        return {}
    listed: dict[str, Word] = {keys.state(tenant, state): job.id}
    if state in TERMINAL:
        return listed
    if job.session:
        listed[keys.session(tenant, job.session)] = job.id
    if state is State.SCHEDULED:
        if job.session:
            listed[keys.queue(tenant, job.session)] = queue_member(job)
        else:
            listed[keys.ready] = ready_member(job)
    elif state in AT_WORK:
        listed[keys.hand(job.worker)] = job.id
        if job.session:
            listed[keys.working(tenant, job.session)] = job.id
    return listed


def _count(commands: Commands, keys: Keys, job: Job, delta: int) -> None:
    if job.state in TERMINAL:
        return
    commands.count(keys.topics, joined(job.tenant, job.topic), delta)
    if job.state in AT_WORK:
        commands.count(keys.active, joined(job.tenant, job.topic, limit_key(job)), delta)


def list_record(commands: Commands, keys: Keys, place: RecordPlace, before: Standing | None, after: Standing) -> None:
    kind, tenant, record_id = place
    if before is None:
        commands.list(keys.kind(kind, tenant), record_id)
    if before is not None and before.state != after.state:
        commands.drop(keys.stood(kind, tenant, before.state), record_id)
    if before is None or before.state != after.state:
        commands.list(keys.stood(kind, tenant, after.state), record_id)
    if before is not None and before.parent and before.parent != after.parent:
        commands.drop(keys.child(kind, tenant, before.parent), record_id)
    if after.parent and (before is None or before.parent != after.parent):
        commands.list(keys.child(kind, tenant, after.parent), record_id)
    if after.due is not None:
        commands.list(keys.due(kind), joined(tenant, record_id), after.due)
    elif before is not None and before.due is not None:
        commands.drop(keys.due(kind), joined(tenant, record_id))


def remove_record(commands: Commands, keys: Keys, place: RecordPlace, before: Standing) -> None:
    kind, tenant, record_id = place
    name = joined(*place)
    commands.take(keys.records, name)
    commands.take(keys.bodies, name)
    commands.drop(keys.kind(kind, tenant), record_id)
    commands.drop(keys.stood(kind, tenant, before.state), record_id)
    if before.parent:
        commands.drop(keys.child(kind, tenant, before.parent), record_id)
    if before.due is not None:
        commands.drop(keys.due(kind), joined(tenant, record_id))
    commands.drop(keys.filed, name)


def forget_effects(commands: Commands, keys: Keys, tenant: str, job_id: JobId, effect_keys: list[str]) -> None:
    """Of a job that goes; none of them is open."""
    commands.also("DEL", keys.effects(job_id))
    commands.also("SREM", keys.effected, job_id)
    commands.drop(keys.effects_of(tenant), *(joined(job_id, key) for key in effect_keys))
