"""What a store may be told and asked, as Hypothesis draws it: mostly the usual, and written as short as it is unusual."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from holdfast.core.job import JobId, Tenant
from holdfast.core.record import Kind
from holdfast.core.states import EffectState, Event, State
from holdfast.ports import Delivery, JobFilter
from holdfast.stores import StoreWithBus
from plane.agreeing import KINDS, SESSIONS, TENANTS, WORKERS
from plane.jobs import ACME, recoverable

RUN = "r1"
LABELS = {"a": "b"}


def one(*options: Any) -> st.SearchStrategy[Any]:
    """The first is the simplest; what is named twice is twice as likely."""
    return st.sampled_from(options)


class Asked(NamedTuple):
    """A submission, as it differs from the usual."""

    tenant: Tenant = ACME
    topic: str = "mail.send"
    state: State = State.SCHEDULED
    session: str = ""
    run: str = ""
    priority: int = 0
    delay_s: int = 0
    payload: int = 2
    limited: bool = False
    key: str | None = None
    digest: str = "d"
    card: bool = False
    alone: bool = False

    @classmethod
    def of(cls, said: dict[str, Any]) -> Asked:
        return cls(**said)

    def __repr__(self) -> str:
        usual = Asked()._asdict()
        return f"Asked({', '.join(f'{k}={v!r}' for k, v in self._asdict().items() if v != usual[k])})"


class Doing(NamedTuple):
    """What an attempt does with an effect; `late` by so many fences."""

    verb: str
    key: str
    late: int

    async def put(self, store: StoreWithBus, job_id: JobId, fence: int) -> Any:
        fence -= self.late
        if self.verb == "prepare":
            return await store.prepare_effect(job_id, fence, self.key, idempotent=False)
        if self.verb == "commit":
            return await store.commit_effect(job_id, fence, self.key, b"1")
        return await store.withdraw_effect(job_id, fence, self.key)


class Look(NamedTuple):
    """A question that changes nothing. Where `of` names an argument, that is a job's id."""

    verb: str
    of: str
    arguments: dict[str, Any]

    async def put(self, store: StoreWithBus, job_id: JobId | None) -> Any:
        arguments = self.arguments | ({self.of: job_id} if self.of else {})
        return await (
            _WORDED[self.verb](store, **arguments) if self.verb in _WORDED else getattr(store, self.verb)(**arguments)
        )


_WORDED: dict[str, Any] = {
    "list_in_hand": lambda store, workers, bare: store.list_in_hand(*workers, bare=bare),
    "list_recoverable": lambda store, states, limit: recoverable(store, *states, limit=limit),
    "find_jobs": lambda store, job_id: store.find_jobs([JobId("nobody's"), *([job_id] if job_id else [])]),
    "list_records": lambda store, bound, **wanted: store.list_records(**wanted, **bound),
}
"""Asked in other words than the port's."""


async def take_and_settle(store: StoreWithBus, worker: str, limit: int) -> list[Delivery]:
    taken = await store.list_deliveries(worker, limit=limit)
    await store.settle_deliveries(taken)
    return taken


TENANT = one(*TENANTS)
FEW = one(100, 3, 2, 1)
ASKED = st.fixed_dictionaries(
    {
        "tenant": one(ACME, *TENANTS),
        "topic": one("mail.send", "quick"),
        "state": one(*[State.SCHEDULED] * 6, State.APPROVAL_REQUIRED, State.PENDING, State.DENIED),
        "session": one("", "s", "s", "t"),
        "run": one("", "", RUN),
        "priority": one(0, 0, 5),
        "delay_s": one(0, 0, 0, 30),
        "payload": one(2, 5000),
        "limited": st.booleans(),
        "key": one(None, None, "a", "b"),
        "digest": one("d", "d", "e"),
        "card": one(False, False, False, True),
        "alone": one(False, False, True),
    }
).map(Asked.of)
DOING = st.lists(
    st.builds(
        Doing, verb=one("prepare", "prepare", "commit", "withdraw"), key=one("charge", "mail"), late=one(0, 0, 0, 1)
    ),
    max_size=3,
)
ENDS = one(None, None, Event.SUCCEED, Event.FAIL, Event.FAIL, Event.RETRY, Event.LOSE, Event.CANCEL)


def _look(verb: str, of: str = "", **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Look]:
    return st.builds(Look, st.just(verb), st.just(of), st.fixed_dictionaries(arguments))


_FILTER = st.builds(
    JobFilter,
    state=st.none() | st.sampled_from(State),
    topic=one("", "quick", "mail.*"),
    labels=one({}, LABELS),
    worker=one("", *WORKERS),
)
LOOKS = st.one_of(
    _look("list_jobs", "before", tenant=TENANT, wanted=_FILTER, limit=FEW),
    _look(
        "list_events", "job_id", after=one(0, 1, 5), limit=FEW, tenant=st.none() | TENANT, run=one(None, RUN)
    ),
    _look(
        "list_dispatchable", limit=FEW, except_topics=one((), ("quick",)), except_tenants=one((), (ACME,)),
        except_keys=one((), ("k",)), met_by=one(None, {"quick": ()}, {"quick": [(("require.gpu", "a100"),)]}),
    ),
    _look(
        "list_records", kind=st.sampled_from(KINDS), tenant=TENANT, state=one(None, "running", "succeeded"),
        parent=one(None, RUN), bound=one({}, {"before": ""}, {"before": RUN}, {"after": "post-x"}), limit=FEW,
    ),
    _look("count_records", kind=st.sampled_from(KINDS), tenant=TENANT, states=st.just(("running", "succeeded"))),
    _look("list_due", kind=st.sampled_from(KINDS), limit=FEW),
    _look("list_effects", "job_id", tenant=TENANT, state=st.none() | st.sampled_from(EffectState), limit=FEW),
    _look("list_dead_letters", tenant=TENANT, before=one(None, 2, 1), limit=FEW),
    _look("get_dead_letter", tenant=TENANT, number=one(1, 2)),
    _look("list_in_hand", workers=one(WORKERS, ("w1",)), bare=st.booleans()),
    _look("list_recoverable", states=one((State.RUNNING,), (State.SCHEDULED, State.DISPATCHED)), limit=FEW),
    _look("find_jobs", "job_id"),
    _look("get_job", "job_id", tenant=TENANT),
    _look("get_record", kind=one(Kind.RUN, Kind.STEP), tenant=TENANT, record_id=one(RUN, "step-x")),
    _look("list_session", tenant=TENANT, session=one(*SESSIONS)),
)  # fmt: skip
