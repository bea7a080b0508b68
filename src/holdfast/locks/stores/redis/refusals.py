"""What it means to a caller that Redis says no, or cannot be reached: an error, and the next step."""

from __future__ import annotations

import ssl

from holdfast.locks.errors import LockError, StoreRefused, Unavailable
from holdfast.locks.stores.certificate import distrusted


class SentinelsRefuse(OSError):
    """None of the sentinels lets us ask it; in the words of one."""


_NEXT_STEPS = {
    "NOAUTH": "Put user and password into the URL",
    "WRONGPASS": "Check user and password in the URL",
    "NOPERM": "Allow this user the channels of its prefix, the keys (~PREFIX* and ~{PREFIX*), and +@connection +@read +@write +@scripting +@pubsub "
    "+info +time",
    "OOM": "Raise maxmemory or free memory; locks need the policy noeviction",
    "MISCONF": "The server cannot write its snapshot: see its log, free disk space",
    "NOPROTO": "Use Redis 7 or Valkey",
}
#: The server turned the request away before the script did anything.
_NOT_NOW = {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK", "MOVED", "NOREPLICAS", "READONLY"}


#: What OpenSSL, by its version, makes of an answer in the clear.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


def refusal(subject: str, text: str) -> StoreRefused | Unavailable:
    """What an error reply means to the caller."""
    code = text.partition(" ")[0]
    if code in _NEXT_STEPS:
        return StoreRefused(subject, _brief(text), next_step=_NEXT_STEPS[code])
    if code == "READONLY":
        detail = "this is a read-only replica: name the primary, or use redis+sentinel://"
        return Unavailable(subject, detail, applied=False)
    if "ACL failure in script" in text:
        # Found out in the middle of the run: what came before it has been done.
        return Unavailable(subject, f"{_brief(text)}. {_NEXT_STEPS['NOPERM']}", applied=None)
    if "cluster support disabled" in text:
        return StoreRefused(subject, "this server is not part of a cluster", next_step="Use a redis:// URL")
    return Unavailable(subject, _brief(text), applied=False if code in _NOT_NOW else None)


def greeting_refusal(subject: str, text: str, password: str) -> LockError:
    """What an error reply to the first commands of a connection means."""
    if password:
        text = text.replace(password, "***")  # an old server quotes the command it does not know
    error = refusal(subject, text)
    if isinstance(error, StoreRefused) or error.applied is False:
        return error
    return StoreRefused(subject, _brief(text), next_step="Check database number, user and password in the URL")


def unreachable(subject: str, failed: Exception) -> LockError:
    """What it means that no connection came about."""
    if isinstance(failed, ssl.SSLCertVerificationError):
        why, step = distrusted(failed, authority="ssl_ca_certs")
        return StoreRefused(subject, why, next_step=step)
    if isinstance(failed, SentinelsRefuse):
        step = "Check that these are sentinels, and their password: sentinel_password=… in the URL"
        return StoreRefused(subject, f"its sentinels refuse: {_brief(str(failed))}", next_step=step)
    detail = str(failed).removeprefix(f"{subject}: ")
    return Unavailable(
        subject, f"cannot connect: {detail}{_about_tls(subject, failed.__cause__ or failed)}", applied=False
    )


def no_connection(subject: str, timeout_s: float) -> Unavailable:
    """What it means that none came about in time."""
    late = TimeoutError(f"no connection within {timeout_s} s")
    return Unavailable(subject, f"{late}{_about_tls(subject, late)}", applied=False)


def _about_tls(subject: str, failed: BaseException) -> str:
    """What a server that does not get past the first word most often wants: TLS, where the URL says nothing of it, or the
    other way round. To what a plain one takes for the beginning of a command, it says nothing at all."""
    family, *kind = subject.partition(":")[0].partition("+")
    if family in ("rediss", "valkeys"):
        unlike = isinstance(failed, TimeoutError) or getattr(failed, "reason", "") in _NO_TLS
        return f". If it does not speak TLS, write {family[:-1]}{''.join(kind)}:// in the URL" if unlike else ""
    if family not in ("redis", "valkey") or isinstance(failed, ConnectionRefusedError):
        return ""
    # `applied` of a connection that was lost is unknown; of one that was answered it is not.
    hung_up = (
        failed.applied is None if isinstance(failed, Unavailable) else isinstance(failed, ConnectionError | ValueError)
    )
    return f". If it speaks TLS, write {family}s{''.join(kind)}:// in the URL" if hung_up else ""


def _brief(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "…"
