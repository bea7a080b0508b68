"""Webhooks: what a post is, how its tries go on and end, and how it is signed."""

from __future__ import annotations

import base64
import hashlib
import hmac

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.record import Kind
from holdfast.core.webhook import (
    ATTEMPTS_MAX,
    BACKOFF,
    SENDING_S,
    Post,
    PostState,
    Try,
    Verdict,
    Webhook,
    begin_try,
    end_try,
    judge,
    new_secret,
    post_from,
    post_record,
    post_to,
    rotated,
    signed_headers,
    try_again,
    webhook_from,
    webhook_record,
)

SECRET = new_secret(bytes(range(32)))
HOOK = Webhook(
    tenant=Tenant("acme"),
    name="ops",
    url="https://example.com/hook",
    events=("run.*", "job.failed"),
    secrets=(SECRET,),
    created_at=5.0,
    looked_at=5.0,
)


def a_post(**values: object) -> Post:
    return replace(post_from(post_to(HOOK, "run.failed", {"run": "r1"}, key="7", now=100.0)), **values)


def test_records_keep_everything() -> None:
    disabled = replace(HOOK, enabled=False, why_disabled="gone", cursor=7, old_secret_until=9.0)

    assert webhook_from(webhook_record(HOOK)) == replace(HOOK, version=1)
    assert webhook_from(webhook_record(disabled)) == replace(disabled, version=1, looked_at=0.0)
    assert post_from(post_record(a_post())) == a_post(version=2)


@pytest.mark.parametrize(("change", "is_due"), [({}, True), ({"enabled": False}, False), ({"events": ()}, False)])
def test_only_a_webhook_that_wants_events_is_looked_at(change: dict[str, object], is_due: bool) -> None:
    assert (webhook_record(replace(HOOK, **change)).due is not None) == is_due


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("run.started", True), ("job.failed", True), ("job.failed_twice", False), ("runner.up", False), ("job", False)],
)
def test_events_are_wanted_by_kind_or_family(kind: str, wanted: bool) -> None:
    assert HOOK.wants(kind) == wanted


def test_post_says_what_when_and_to_whom() -> None:
    record = post_to(HOOK, "run.failed", {"run": "r1"}, key="7", now=0.5)

    assert (record.kind, record.id, record.parent, record.due, record.version) == (Kind.POST, "ops.7", "ops", 0.5, 1)
    assert msgspec.json.decode(post_from(record).content) == {
        "type": "run.failed",
        "timestamp": "1970-01-01T00:00:00.500Z",
        "data": {"run": "r1"},
    }


def test_signature_is_what_the_specification_says() -> None:
    headers = signed_headers(a_post(), [SECRET], now=1234.9)
    signed = b"ops.7.1234." + a_post().content.encode()
    expected = base64.b64encode(hmac.new(bytes(range(32)), signed, hashlib.sha256).digest()).decode()

    assert headers == {"webhook-id": "ops.7", "webhook-timestamp": "1234", "webhook-signature": f"v1,{expected}"}


def test_signature_is_that_of_the_published_example() -> None:
    post = a_post(id="msg_p5jXN8AQM9LWM0D4loKWxJek", content='{"test": 2432232314}')
    headers = signed_headers(post, ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], now=1614265330.0)

    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_posts_carry_both_signatures_while_a_secret_is_rotated() -> None:
    newer = new_secret(bytes(32))
    webhook = rotated(HOOK, newer, until=50.0)
    during = signed_headers(a_post(), webhook.secrets_at(49.9), now=49.9)["webhook-signature"].split(" ")
    after = signed_headers(a_post(), webhook.secrets_at(50.0), now=50.0)["webhook-signature"].split(" ")

    assert (len(during), len(after)) == (2, 1)
    assert signed_headers(a_post(), [newer], now=49.9)["webhook-signature"] == during[0]


def test_secret_is_in_no_text_of_the_webhook() -> None:
    assert SECRET not in repr(HOOK)
    assert SECRET not in str(HOOK)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(200, Verdict.ARRIVED), (204, Verdict.ARRIVED), (301, Verdict.AGAIN), (404, Verdict.AGAIN),
     (410, Verdict.DISABLE), (500, Verdict.AGAIN), (None, Verdict.AGAIN)],
)  # fmt: skip
def test_answers_are_judged(status: int | None, verdict: Verdict) -> None:
    assert judge(begin_try(a_post(), now=100.0), a_try(status)) is verdict


def test_post_that_is_being_sent_is_left_alone_for_longer_than_a_try_takes() -> None:
    begun = begin_try(a_post(), now=100.0)

    assert (begun.begun, begun.due) == (1, 100.0 + SENDING_S)


def test_tries_wait_longer_each_time_and_end() -> None:
    post, waits = a_post(), []
    while post.state is PostState.PENDING:
        begun = begin_try(post, now=post.due or 0.0)
        tried = a_try(500, at=post.due or 0.0)
        post = end_try(begun, tried, chance=1.0)
        waits.append((post.due or 0.0) - tried.at)

    assert (post.state, len(post.tries), post.begun) == (PostState.FAILED, ATTEMPTS_MAX, ATTEMPTS_MAX)
    assert waits[:4] == [5.0, 20.0, 80.0, 320.0]
    assert max(waits[:-1]) == BACKOFF.cap_s
    assert sum(waits[:-1]) > 24 * 3600


def test_receiver_may_ask_for_more_patience_but_not_for_any() -> None:
    begun = begin_try(a_post(), now=100.0)

    assert end_try(begun, a_try(503), chance=1.0, wait_s=60.0).due == 160.0
    assert end_try(begun, a_try(503), chance=1.0, wait_s=1e9).due == 100.0 + BACKOFF.cap_s


def test_person_gives_a_failed_post_as_many_tries_as_a_new_one() -> None:
    failed = a_post(state=PostState.FAILED, begun=ATTEMPTS_MAX)
    again = try_again(failed, now=900.0)

    assert (again.state, again.due, again.id) == (PostState.PENDING, 900.0, failed.id)
    assert judge(begin_try(again, now=900.0), a_try(500)) is Verdict.AGAIN


def a_try(status: int | None, *, at: float = 100.0) -> Try:
    return Try(at=at, status=status, error="" if status == 200 else "failed", took_s=0.0)
