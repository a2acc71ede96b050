"""Signatures of requests: version 1 of Apache RocketMQ 4.9.7 and version 2 of SaturnMQ. Pure; time and nonce are arguments.

Version 1 is Base64(HMAC-SHA1) of the concatenated extFields values in the order of their names, then the body. It covers neither
the request code nor the bounds of the values and has no time, so that a captured request can be re-cut, re-coded and replayed.
Version 2 is Base64(HMAC-SHA256) of the bytes below. Both use the secret key as UTF-8 and travel in extFields, which other
implementations ignore.

    "saturnmq-signature-2" 0x00
    code       i32, big-endian
    count      u32, number of pairs: every extField except Signature, in ascending order of the UTF-8 names
    pairs      u32 length, name, u32 length, value
    body       SHA-256 of the body, of no bytes without one

The fields SignatureVersion ("2"), SignatureTime (Unix ms) and SignatureNonce are pairs like the others. Who verifies version 2
also bounds the time and rejects repeated signatures.

Requirements: ACL-18, ACL-19, SEC-08, SEC-10.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Mapping
from typing import Final

from saturnmq.protocol.codes import SIGNATURES as SIGNATURES
from saturnmq.protocol.frames.command import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the name of a header field
SIGNATURE: Final = "Signature"
SIGNATURE_VERSION: Final = "SignatureVersion"
SIGNATURE_TIME: Final = "SignatureTime"
SIGNATURE_NONCE: Final = "SignatureNonce"
VERSION_2: Final = "2"
WINDOW_MS: Final = 300_000  # largest difference between SignatureTime and the clock of the server

# Java's client adds this field to a signed request; 4.9.7 leaves it out of the data of version 1.
_UNSIGNED_V1: Final = (SIGNATURE, "_UNIQUE_KEY_QUERY")
_CREDENTIALS: Final = frozenset(
    {ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, SIGNATURE_VERSION, SIGNATURE_TIME, SIGNATURE_NONCE}
)
_DOMAIN_V2: Final = b"saturnmq-signature-2\0"
_SHA1_BLOCK: Final = 64  # bytes
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))  # of HMAC
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))
_HEAD_V2: Final = struct.Struct(">iI")
_U32: Final = struct.Struct(">I")


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def v1_data(ext: Mapping[str, str], body: bytes | None) -> bytes:
    """The bytes that a signature of version 1 covers; names are ordered by UTF-16 code units, as Java orders them."""
    names = [name for name in ext if name not in _UNSIGNED_V1]
    names.sort(key=None if "".join(names).isascii() else _utf16)
    data = "".join([ext[name] for name in names]).encode("utf-8", "replace")  # as Java: "?" for a lone surrogate
    return data + body if body else data


def v1_signature(secret: bytes, ext: Mapping[str, str], body: bytes | None) -> str:
    """The Signature field of version 1 for these fields and this body."""
    return base64.b64encode(hmac.digest(secret, v1_data(ext, body), "sha1")).decode()


class V1Key:
    """A secret key, prepared to verify many signatures of version 1: half as long as one at a time."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        key = hashlib.sha1(secret).digest() if len(secret) > _SHA1_BLOCK else secret  # noqa: S324 - as Apache RocketMQ signs
        key = key.ljust(_SHA1_BLOCK, b"\0")
        self._inner = hashlib.sha1(key.translate(_INNER_PAD))  # noqa: S324
        self._outer = hashlib.sha1(key.translate(_OUTER_PAD))  # noqa: S324

    def fits(self, data: bytes, signature: bytes) -> bool:
        """Whether it is the Signature field for these bytes (see `v1_data`)."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(data)
        outer.update(inner.digest())
        return hmac.compare_digest(base64.b64encode(outer.digest()), signature)


def v2_data(code: int, ext: Mapping[str, str], body: bytes | None) -> bytes:
    """The bytes that a signature of version 2 covers; the layout is in the module's docstring."""
    pairs = sorted(
        (name.encode("utf-8", "surrogatepass"), value.encode("utf-8", "surrogatepass"))
        for name, value in ext.items()
        if name != SIGNATURE
    )
    parts = [_DOMAIN_V2, _HEAD_V2.pack(code, len(pairs))]
    for name, value in pairs:
        parts += (_U32.pack(len(name)), name, _U32.pack(len(value)), value)
    parts.append(hashlib.sha256(body or b"").digest())
    return b"".join(parts)


def v2_signature(secret: bytes, code: int, ext: Mapping[str, str], body: bytes | None) -> str:
    """The Signature field of version 2; ext holds SignatureVersion, SignatureTime and SignatureNonce already."""
    return base64.b64encode(hmac.digest(secret, v2_data(code, ext, body), "sha256")).decode()


def _named(command: Command, access_key: str, token: str) -> dict[str, str]:
    ext = command.ext
    for name in (SIGNATURE, SIGNATURE_VERSION, SIGNATURE_TIME, SIGNATURE_NONCE):
        ext.pop(name, None)
    ext[ACCESS_KEY] = access_key
    if token:
        ext[SECURITY_TOKEN] = token
    return ext


def sign_v1(command: Command, access_key: str, secret: bytes, token: str = "") -> None:
    """Sign a request in place with version 1 (ACL-19); an earlier signature is replaced."""
    ext = _named(command, access_key, token)
    ext[SIGNATURE] = v1_signature(secret, ext, command.body)


def sign_v2(command: Command, access_key: str, secret: bytes, *, time_ms: int, nonce: str, token: str = "") -> None:
    """Sign a request in place with version 2 (SEC-10); an earlier signature is replaced.

    time_ms: Unix ms. nonce: random text; the server rejects a second request with the same fields, time and nonce.
    """
    ext = _named(command, access_key, token)
    ext[SIGNATURE_VERSION] = VERSION_2
    ext[SIGNATURE_TIME] = str(time_ms)
    ext[SIGNATURE_NONCE] = nonce
    ext[SIGNATURE] = v2_signature(secret, command.code, ext, command.body)


def without_credentials(ext: Mapping[str, str]) -> dict[str, str]:
    """The extFields of a request without its credentials, for another peer: who has a signature can use it again."""
    return {name: value for name, value in ext.items() if name not in _CREDENTIALS}


def is_v2(command: Command) -> bool:
    """Whether a request says that its signature has version 2."""
    return command.ext.get(SIGNATURE_VERSION) == VERSION_2


def verify(command: Command, secret: bytes) -> bool:
    """Whether the signature of a request fits the secret, in the version that the request names (SEC-08).

    The comparison takes the same time wherever the texts differ. Time and repetition of version 2 are left to the caller.
    """
    ext, body = command.ext, command.body
    expected_signature = (
        v2_signature(secret, command.code, ext, body) if is_v2(command) else v1_signature(secret, ext, body)
    )
    received_signature = ext.get(SIGNATURE, "")
    return hmac.compare_digest(expected_signature.encode(), received_signature.encode("utf-8", "replace"))
