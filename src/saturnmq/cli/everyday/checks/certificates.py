"""When a certificate ends, read from its DER bytes: the field `notAfter` of the validity. Pure.

Requirements: CLI-06.
"""

# Certificate ::= SEQUENCE { TBSCertificate SEQUENCE {
#     [0] version OPTIONAL, serialNumber INTEGER, signature SEQUENCE, issuer SEQUENCE,
#     validity SEQUENCE { notBefore Time, notAfter Time }, ... }, ... }
# Time: UTCTime (tag 23, YYMMDDHHMMSSZ) or GeneralizedTime (tag 24, YYYYMMDDHHMMSSZ).

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from saturnmq.cli.everyday.checks.finding import Finding, note, ok, problem

SEQUENCE: Final = 0x30
VERSION: Final = 0xA0
UTC_TIME: Final = 23
SOON: Final = timedelta(days=30)
_BEFORE_VALIDITY: Final = 3  # serialNumber, signature, issuer


def not_after(der: bytes) -> datetime:
    """When the certificate ends. Raises ValueError for bytes that are none."""
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    tag, _, following = _element(fields)
    fields = following if tag == VERSION else fields
    for _ in range(_BEFORE_VALIDITY):
        _, _, fields = _element(fields)
    _, validity, _ = _element(fields)
    _, _, last = _element(validity)
    tag, text, _ = _element(last)
    form = "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag, content and what follows of the first element. Raises ValueError."""
    if len(data) < 2:
        raise ValueError("the certificate ends too early")
    tag, length, at = data[0], data[1], 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if at + length > len(data):
        raise ValueError("the certificate ends too early")
    return tag, data[at : at + length], data[at + length :]


def certificate_end(subject: str, der: bytes, now: datetime) -> Finding:
    """The finding for a certificate."""
    try:
        end = not_after(der)
    except ValueError as error:
        return problem("certificate", subject, f"is none: {error}", "name a file with a certificate in PEM form")
    advice = "renew it; servers read changed certificate files without a restart"
    text = f"ends {end:%Y-%m-%d %H:%M} UTC"
    if end <= now:
        return problem("certificate", subject, f"ended {end:%Y-%m-%d %H:%M} UTC", advice)
    if end - now < SOON:
        return note("certificate", subject, f"{text}, in {(end - now).days} days", advice)
    return ok("certificate", subject, text)
