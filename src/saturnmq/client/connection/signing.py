"""Request signatures for brokers with access control. Pure.

Requirements: ACL-18, ACL-19.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from saturnmq.protocol.frames.command import Command


class Signer:
    """Adds AccessKey and Signature to requests, and SecurityToken if there is one."""

    __slots__ = ("_access_key", "_secret", "_token")

    def __init__(self, access_key: str, secret_key: str, token: str = "") -> None:
        self._access_key = access_key
        self._secret = secret_key.encode()
        self._token = token

    def __repr__(self) -> str:
        return "<Signer>"

    def sign(self, command: Command) -> None:
        """Sign a request in place: HMAC-SHA1 over the extFields values in the order of their names, then the body (ACL-19)."""
        ext = command.ext
        ext.pop("Signature", None)
        ext["AccessKey"] = self._access_key
        if self._token:
            ext["SecurityToken"] = self._token
        data = "".join(ext[name] for name in sorted(ext)).encode() + (command.body or b"")
        ext["Signature"] = base64.b64encode(hmac.new(self._secret, data, hashlib.sha1).digest()).decode()
