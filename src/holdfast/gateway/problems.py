"""Errors as RFC 9457 problems: every error of Holdfast has one stable `code`, and a page under its `type`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast import api
from holdfast.errors import HoldfastError, NotFound
from holdfast.gateway.calls import Answer, Call
from holdfast.locks.errors import LockError

MEDIA = b"application/problem+json"

TITLES = {
    "already-decided": "Somebody else was first. `decided_by`, `decision` and `decided_at` say who, what and when.",
    "bus-unavailable": "The bus did not take a message. Repeat the request.",
    "conflict": "The thing is not in a state that allows this. Look at it again.",
    "draining": "The plane is shutting down. Ask again in a moment.",
    "error": "Something failed that should not. The log of the plane says what.",
    "forbidden": "This request is not served from where it comes.",
    "idempotency-key-in-flight": "The first request with this idempotency key is not finished. Repeat this one.",
    "idempotency-key-reused": "The idempotency key belongs to another request. Take a new one.",
    "invalid": "The request cannot be obeyed as it is.",
    "lease-lost": "The lease ended. Stop, and discard this work.",
    "lock-busy": "Somebody else holds the lock. Come back later.",
    "lock-error": "A lock could not be used.",
    "malformed": "The request cannot be read.",
    "method-not-allowed": "This address does not know that method. `Allow` says which it knows.",
    "not-an-approver": "You are not among those who may decide this.",
    "not-found": "There is no such thing, for this tenant.",
    "not-owned": "The lock is not owned with this token. Nothing was changed.",
    "plane-unavailable": "The plane was not reached.",
    "session-busy": "The session has a live job. Wait for it, or submit with `interrupt`.",
    "stale-fence": "A newer attempt has taken over, or the job has ended. Stop, and discard this work.",
    "store-refused": "The store cannot serve as it is. The detail says what to do.",
    "store-unavailable": "The store did not answer. Repeat the request.",
    "too-large": "The request is larger than is taken.",
    "too-many": "A limit is reached. Come back after the time in `Retry-After`.",
    "unauthorized": "The API key is missing or wrong.",
    "undeclared-class": "No lock class of that name is declared.",
    "unsupported-media-type": "Bodies are application/json.",
    "version-mismatch": "It has another version than `If-Match` names, or changed unseen. Read it again.",
}


def problem(error: HoldfastError | LockError, *, instance: str = "") -> api.Problem:
    return api.Problem(
        type=f"/problems/{error.code}",
        title=TITLES[error.code],
        status=error.status,
        code=error.code,
        detail=str(error),
        instance=instance,
        retryable=getattr(error, "retryable", error.status in {423, 503}),
        job_id=getattr(error, "job_id", None),
        current_fence=getattr(error, "current_fence", None) or getattr(error, "current", (None,))[0],
        decided_by=getattr(error, "decided_by", None),
        decision=getattr(error, "decision", None),
        decided_at=getattr(error, "decided_at", None),
    )


def answer(error: HoldfastError | LockError, *, instance: str = "") -> Answer:
    return Answer(problem(error, instance=instance), status=error.status, headers=tuple(_headers(error)), media=MEDIA)


def _headers(error: HoldfastError | LockError) -> Iterator[tuple[bytes, bytes]]:
    wait_s = getattr(error, "retry_after_s", None) or getattr(error, "retry_in_s", None)
    if wait_s is None and error.status == 503:
        wait_s = 1.0
    if wait_s is not None:
        yield b"retry-after", str(max(1, math.ceil(wait_s))).encode()
    if error.status == 401:
        yield b"www-authenticate", b"Bearer"


async def explain(_: object, call: Call) -> Answer:
    """The page of a problem type, for the person who follows it."""
    code = call.path["code"]
    if code not in TITLES:
        raise NotFound("no such problem is known to this version")
    return Answer(f"{code}\n\n{TITLES[code]}\n".encode(), media=b"text/plain; charset=utf-8")
