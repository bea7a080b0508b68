"""What is wrong with a server's certificate, and what to do about it: naming an authority mends only one of the reasons."""

from __future__ import annotations

import ssl

_OF_TIME = (9, 10)
_OF_NAME = (62, 64)
"""Codes of OpenSSL: not yet valid, expired; of another host, of another address."""


def distrusted(failure: ssl.SSLCertVerificationError, *, authority: str) -> tuple[str, str]:
    """Why, and the next step. `authority` is what names one in the URL."""
    why = f"its certificate is not trusted: {failure.verify_message}"
    if failure.verify_code in _OF_TIME:
        return why, "Renew it on the server, or set the clock of this machine"
    if failure.verify_code in _OF_NAME:
        return why, "Name the server in the URL as its certificate does"
    return why, f"Name its authority in the URL with {authority}=FILE"
