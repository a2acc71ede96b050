"""Signs requests with the credentials of one account, for every client of a server with access control.

Requirements: ACL-18, ACL-19, SEC-10.
"""

from __future__ import annotations

import secrets
import time

from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.signatures import sign_v1, sign_v2


class Signer:
    """Signs requests with the credentials of one account.

    version: "v1" is the signature of Apache RocketMQ; "v2" of SaturnMQ also covers the request code and the time, and cannot be
    replayed. Other servers reject it.
    """

    __slots__ = ("_access_key", "_secret", "_token", "_version")

    def __init__(self, access_key: str, secret_key: str, token: str = "", version: str = "v1") -> None:
        self._access_key = access_key
        self._secret = secret_key.encode()
        self._token = token
        self._version = version

    def __repr__(self) -> str:
        return "<Signer>"

    def sign(self, command: Command) -> None:
        """Sign a request in place; a request that is sent again is signed again (ACL-19, SEC-10)."""
        if self._version == "v1":
            sign_v1(command, self._access_key, self._secret, self._token)
            return
        # Fresh for every send: a server refuses a nonce that it has seen.
        time_ms, nonce = time.time_ns() // 1_000_000, secrets.token_hex(12)
        sign_v2(command, self._access_key, self._secret, time_ms=time_ms, nonce=nonce, token=self._token)
