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
    return Unavailable(subject, f"cannot connect: {failed}", applied=False)


def _brief(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "…"
