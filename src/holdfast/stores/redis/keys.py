"""Where things lie in Redis: the names of keys, and of members that sort as they are read. Pure.

All keys of a plane begin with one hash tag, `{holdfast}:` unless the URL names another, so they are in one slot of a
cluster and a script may change any of them together. P stands for it. Parts of a name are separated by NUL.

    P head            string        who wrote last: a word that is never used twice. Every write of what follows names the one
                                    it was decided on, and leaves its own; if it is another one, nothing happens
    P done:<plane>    string, expires   the last write of a plane that was applied
    P turn            string, expires   the plane that has been overtaken, and now goes first
    P numbers         hash          event, letter, job, record: the last that was given out; at: when the last event was
    P settings        hash          version and oldest (schema.py), topics, server; arriving, while an import is not in its place
    P jobs            hash          id -> all of a job but its payload and its result (rows.py)
    P payloads        hash          id -> payload
    P results         hash          id -> result, if it has one
    P came            zset          ids, in the order in which they came
    P live            zset          ids of live jobs, by when recovery is to look at them
    P ready           zset, lexical who may be dispatched: see `ready_member`
    P tenant:<t>      zset, lexical ids
    P state:<t,s>     zset, lexical ids of a tenant's jobs in a state; those that have succeeded are too many to be worth it
    P hand:<worker>   zset, lexical ids that are DISPATCHED or RUNNING there
    P session:<t,s>   zset, lexical ids of live jobs
    P working:<t,s>   zset, lexical those of them that are DISPATCHED or RUNNING
    P queue:<t,s>     zset, lexical those that are SCHEDULED, the next one first: see `queue_member`
    P fronts          hash          session -> the member of P ready that stands for it
    P run:<r>         zset, lexical ids of a run's jobs
    P replays:<id>    zset, lexical ids of a job's replays
    P keys            hash          tenant and idempotency key -> digest and id
    P key-of          hash          id -> tenant and idempotency key
    P counts, topics, active        hashes   tenant and state, or topic, or topic and limit -> how many jobs
    P events          stream        the number is the first half of an entry's id
    P history:<id>    zset          numbers of a job's events
    P run-history:<r> zset          numbers of a run's events, and of its jobs'
    P pruned          hash          tenant -> highest number that retention has removed
    P inbox:<worker>  zset          deliveries, by fence
    P effected        set           ids of jobs that have effects
    P effects:<id>    hash          key -> effect
    P effects-of:<t>  zset          job and key, by when it was prepared
    P open:<t,s>      zset          likewise, of those in a state that is not settled
    P letters         hash          number -> dead letter
    P letters-of:<t>  zset          numbers
    P job-letters:<id> zset         numbers
    P records         hash          kind, tenant and id -> all of a record but its body
    P bodies          hash          likewise -> its body
    P kind:<k,t>      zset, lexical ids of records
    P stood:<k,t,s>   zset, lexical ids of records in a state
    P child:<k,t,p>   zset, lexical ids of records of a parent
    P due:<k>         zset          tenant and id, by when it is due
    P filed           zset          kind, tenant and id of records, in the order in which they came
    P snapshot        hash          fence, seq, at, workers
    P news            channel       what other planes are told of a write (news.py); of a database that is not 0 with its number behind
                                    it, for channels are the whole server's
    P never           -             a key that there never is. Scripts that change what they do not name have it among their keys:
                                    while a cluster moves the slot, no server begins a script that names something it has not got
"""

from __future__ import annotations

import struct

from holdfast.core.job import PARKED_UNTIL, Job
from holdfast.core.placement import Labels, demand_of
from holdfast.core.states import EffectState, State
from holdfast.stores.rows import limit_key

_pack_float = struct.Struct(">d").pack
_ALL_BITS = 2**64 - 1


def joined(*parts: str) -> str:
    """Raises `ValueError` for a part that contains what separates them."""
    name = "\0".join(parts)
    if name.count("\0") >= len(parts):
        raise ValueError("a name contains NUL")
    return name


def sortable(number: float) -> bytes:
    """Eight bytes that compare as the numbers do."""
    bits = int.from_bytes(_pack_float(number))
    return (bits ^ (_ALL_BITS if bits >> 63 else 1 << 63)).to_bytes(8)


def urgency_of(priority: int) -> bytes:
    """One byte: the most urgent first. Raises `ValueError` for a priority that is none."""
    return bytes([100 - priority])


def ready_member(job: Job) -> bytes:
    """Sorts by urgency, tenant, when it may begin, id. Topic, limit and demand follow, for whoever leaves some of them out."""
    labels = demanded(demand_of(job).labels)
    names = joined(job.id, job.topic, limit_key(job), *labels, *([""] if labels else [])).encode()
    return b"".join((urgency_of(job.priority), job.tenant.encode(), b"\0", sortable(job.not_before), names))


def demanded(labels: Labels) -> list[str]:
    return [f"{name}={value}" for name, value in labels]


def queue_member(job: Job) -> bytes:
    """Sorts by whose turn it is in the session: one that was begun and is not parked, then the oldest. Its member of
    P ready follows the id."""
    is_fresh = job.attempts == 0 or job.not_before >= PARKED_UNTIL
    order = b"1" if is_fresh else b"0"
    return b"".join((order, sortable(job.not_before), job.id.encode(), b"\0", ready_member(job)))


def inbox_member(job_id: str, fence: int) -> str:
    return f"{fence}:{job_id}"


class Keys:
    """The names of one plane's keys."""

    def __init__(self, namespace: str, part: str = "", *, database: int = 0) -> None:
        """`part`: the same once more, beside them."""
        self.prefix = prefix = f"{{{namespace}}}:{part}"
        self.head = f"{prefix}head"
        self.turn = f"{prefix}turn"
        self.never = f"{prefix}never"
        self.numbers = f"{prefix}numbers"
        self.settings = f"{prefix}settings"
        self.jobs = f"{prefix}jobs"
        self.payloads = f"{prefix}payloads"
        self.results = f"{prefix}results"
        self.came = f"{prefix}came"
        self.live = f"{prefix}live"
        self.ready = f"{prefix}ready"
        self.fronts = f"{prefix}fronts"
        self.keys = f"{prefix}keys"
        self.key_of = f"{prefix}key-of"
        self.counts = f"{prefix}counts"
        self.topics = f"{prefix}topics"
        self.active = f"{prefix}active"
        self.events = f"{prefix}events"
        self.pruned = f"{prefix}pruned"
        self.effected = f"{prefix}effected"
        self.letters = f"{prefix}letters"
        self.records = f"{prefix}records"
        self.bodies = f"{prefix}bodies"
        self.filed = f"{prefix}filed"
        self.snapshot = f"{prefix}snapshot"
        self.news = f"{prefix}news:{database}" if database else f"{prefix}news"

    def done(self, plane: str) -> str:
        return f"{self.prefix}done:{plane}"

    def tenant(self, tenant: str) -> str:
        return f"{self.prefix}tenant:{tenant}"

    def state(self, tenant: str, state: State) -> str:
        return f"{self.prefix}state:{joined(tenant, state)}"

    def hand(self, worker: str) -> str:
        return f"{self.prefix}hand:{worker}"

    def session(self, tenant: str, session: str) -> str:
        return f"{self.prefix}session:{joined(tenant, session)}"

    def working(self, tenant: str, session: str) -> str:
        return f"{self.prefix}working:{joined(tenant, session)}"

    def queue(self, tenant: str, session: str) -> str:
        return f"{self.prefix}queue:{joined(tenant, session)}"

    def run(self, run: str) -> str:
        return f"{self.prefix}run:{run}"

    def replays(self, job_id: str) -> str:
        return f"{self.prefix}replays:{job_id}"

    def history(self, job_id: str) -> str:
        return f"{self.prefix}history:{job_id}"

    def run_history(self, run: str) -> str:
        return f"{self.prefix}run-history:{run}"

    def inbox(self, worker: str) -> str:
        return f"{self.prefix}inbox:{worker}"

    def effects(self, job_id: str) -> str:
        return f"{self.prefix}effects:{job_id}"

    def effects_of(self, tenant: str) -> str:
        return f"{self.prefix}effects-of:{tenant}"

    def open(self, tenant: str, state: EffectState) -> str:
        return f"{self.prefix}open:{joined(tenant, state)}"

    def letters_of(self, tenant: str) -> str:
        return f"{self.prefix}letters-of:{tenant}"

    def job_letters(self, job_id: str) -> str:
        return f"{self.prefix}job-letters:{job_id}"

    def kind(self, kind: str, tenant: str) -> str:
        return f"{self.prefix}kind:{joined(kind, tenant)}"

    def stood(self, kind: str, tenant: str, state: str) -> str:
        return f"{self.prefix}stood:{joined(kind, tenant, state)}"

    def child(self, kind: str, tenant: str, parent: str) -> str:
        return f"{self.prefix}child:{joined(kind, tenant, parent)}"

    def due(self, kind: str) -> str:
        return f"{self.prefix}due:{kind}"
