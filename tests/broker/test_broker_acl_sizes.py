"""A body that is too long for its request is refused before its signature is computed."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest
from protected import USER, protected, topics, v1, v2
from wire import Wire

from saturnmq.protocol import signatures
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.frames.command import Command

MESSAGE_MAX = 100_000
SENDS = (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
OTHERS = {
    Code.SEND_REPLY_MESSAGE_V2: 4 * 1024 * 1024,
    Code.PULL_MESSAGE: 65_536,
    Code.HEART_BEAT: 1024 * 1024,
    Code.UPDATE_BROKER_CONFIG: 65_536,
    Code.GET_BROKER_CONFIG: 65_536,
    9999: 65_536,
}


class Hashed:
    """Bytes that signatures cover, for the hash functions that `signatures` calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        digest, sha256 = hmac.digest, hashlib.sha256

        def counted_digest(key: bytes, data: bytes, name: str) -> bytes:
            self.sizes.append(len(data))
            return digest(key, data, name)

        def counted_sha256(data: bytes) -> Any:
            self.sizes.append(len(data))
            return sha256(data)

        monkeypatch.setattr(signatures.hmac, "digest", counted_digest)
        monkeypatch.setattr(signatures.hashlib, "sha256", counted_sha256)


@pytest.mark.parametrize("version", [1, 2])
async def test_oversized_body_is_refused_without_hashing(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with protected(tmp_path, store={"message_bytes_max": MESSAGE_MAX}) as w:
        await topics(w, "Both")
        hostile = Wire(w.server)
        account = v2(USER, w.broker._clock_ms) if version == 2 else v1(USER)
        limits = dict.fromkeys(SENDS, MESSAGE_MAX) | OTHERS
        for code, most in limits.items():
            body = bytes(most + 1)
            signed = Command(code, ext={"topic": "Both", "b": "Both"}, body=body)
            account(signed)
            hashed = Hashed(monkeypatch)
            for ext in (signed.ext, signed.ext | {"Signature": "forged"}):
                hostile.sign = lambda command, ext=ext: setattr(command, "ext", dict(ext))  # type: ignore[misc]
                answer = await hostile.call(code, body)
                assert answer.code == (13 if code in SENDS or code == Code.SEND_REPLY_MESSAGE_V2 else 1)
                assert f"at most {most}" in (answer.remark or "")
            assert hashed.sizes == []
            monkeypatch.undo()
        assert w.broker.rejections.counts["acl"] == 2 * len(limits)
        w.sign = account
        assert (await w.send("Both", bytes(MESSAGE_MAX - 500))).code == 0  # an honest one, of nearly the limit
        await hostile.client.close()
