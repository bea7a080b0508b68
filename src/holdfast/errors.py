"""Every error of the control plane. The lock library has its own tree, `holdfast.locks.errors`.

    HoldfastError
    ├── Invalid            (ValueError)       the request cannot be understood or obeyed as it is
    │   ├── Malformed                         it cannot even be read
    │   ├── TooLarge                          it has more bytes than are taken
    │   └── WrongMedia                        its body is not JSON
    ├── NotFound           (LookupError)      no such thing, for this tenant
    ├── NotAllowed                            the address does not know that method
    ├── Unauthorized       (PermissionError)  the API key is missing or wrong
    ├── Forbidden          (PermissionError)  it comes from a web page of another site
    ├── NotApprover        (PermissionError)  the caller is not among those who may decide this
    ├── Conflict                              the thing is not in a state that allows this
    │   ├── VersionMismatch                   it has changed since the caller read it
    │   ├── KeyInFlight                       the first request with this idempotency key is not finished
    │   ├── SessionBusy                       the session has a live job, and this one was not to wait for it
    │   ├── AlreadyDecided                    somebody else was first to decide the approval
    │   └── StaleAttempt                      the job has moved on to a higher fence, or ended
    ├── KeyReused                             the idempotency key belongs to another request
    ├── TooMany                               a limit of the tenant's is reached; come back later
    ├── Draining                              the plane is shutting down; ask another one, or later
    ├── StoreUnavailable   (ConnectionError)  the store did not answer; `.applied` says what is known
    ├── BusUnavailable     (ConnectionError)  the bus did not take a message; likewise
    └── PlaneUnavailable   (ConnectionError)  the plane was not reached; likewise

`code` is stable and meant for programs, `status` is the HTTP status. No message contains a payload.
"""

from __future__ import annotations


class HoldfastError(Exception):
    code = "error"
    status = 500
    retryable = False


class Invalid(HoldfastError, ValueError):
    code = "invalid"
    status = 422


class Malformed(Invalid):
    code = "malformed"
    status = 400


class TooLarge(Invalid):
    code = "too-large"
    status = 413


class WrongMedia(Invalid):
    code = "unsupported-media-type"
    status = 415


class NotFound(HoldfastError, LookupError):
    code = "not-found"
    status = 404


class NotAllowed(HoldfastError):
    code = "method-not-allowed"
    status = 405


class Unauthorized(HoldfastError, PermissionError):
    code = "unauthorized"
    status = 401


class Forbidden(HoldfastError, PermissionError):
    code = "forbidden"
    status = 403


class NotApprover(HoldfastError, PermissionError):
    code = "not-an-approver"
    status = 403


class Conflict(HoldfastError):
    code = "conflict"
    status = 409


class VersionMismatch(Conflict):
    code = "version-mismatch"
    status = 412


class KeyInFlight(Conflict):
    code = "idempotency-key-in-flight"
    retryable = True


class AlreadyDecided(Conflict):
    code = "already-decided"

    def __init__(self, approval_id: str, *, by: str, decision: str, at: float) -> None:
        super().__init__(f"approval {approval_id} was decided before: {decision}{' by ' + by if by else ''}")
        self.decided_by = by
        self.decision = decision
        self.decided_at = at


class SessionBusy(Conflict):
    code = "session-busy"

    def __init__(self, session: str, *, job_id: str | None = None, run_id: str = "") -> None:
        busy_with = f"run {run_id}" if job_id is None else f"job {job_id}"
        super().__init__(f"session {session!r} is busy with {busy_with}; wait for it, or say interrupt")
        self.job_id = job_id


class StaleAttempt(Conflict):
    code = "stale-fence"

    def __init__(self, job_id: str, *, current_fence: int, offered_fence: int, state: str) -> None:
        super().__init__(
            f"job {job_id} is {state} under fence {current_fence}; fence {offered_fence} may do nothing any more"
        )
        self.job_id = job_id
        self.current_fence = current_fence


class KeyReused(HoldfastError):
    code = "idempotency-key-reused"
    status = 422


class TooMany(HoldfastError):
    code = "too-many"
    status = 429
    retryable = True

    def __init__(self, detail: str, *, retry_after_s: float) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class Draining(HoldfastError):
    code = "draining"
    status = 503
    retryable = True


class _Away(HoldfastError, ConnectionError):
    status = 503
    retryable = True

    def __init__(self, subject: str, detail: str, *, applied: bool | None) -> None:
        super().__init__(f"{subject}: {detail}")
        self.applied = applied


class StoreUnavailable(_Away):
    code = "store-unavailable"


class BusUnavailable(_Away):
    code = "bus-unavailable"


class PlaneUnavailable(_Away):
    code = "plane-unavailable"
