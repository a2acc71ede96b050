"""Signatures of requests: the vectors of 4.9.7, the layout of version 2, and what each version covers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest

from recorded import VECTORS
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.signatures import sign_v1, sign_v2, v1_data, v2_data, verify

SECRET = b"12345678"


def signed_v2(**fields: str) -> Command:
    command = Command(17, ext={"topic": "ab", "perm": "6", **fields}, body=b"body")
    sign_v2(command, "RocketMQ", SECRET, time_ms=1_700_000_000_000, nonce="0123456789abcdef")
    return command


@pytest.mark.spec("ACL-19", "SEC-08")
def test_signatures_recorded_from_apache_are_verified() -> None:
    codes = set()
    for path in sorted((VECTORS / "frames").glob("acl.*.json")):
        for frame in json.loads(path.read_text())["frames"]:
            if frame["type"] == "request" and frame["header"].get("extFields", {}).get("AccessKey") == "rocketmqadmin":
                (command,) = FrameDecoder().feed(bytes.fromhex(frame["hex"]))
                assert verify(command, SECRET) and not verify(command, SECRET + b"9")
                codes.add(command.code)
    assert codes == {17, 50, 51, 105, 106}


@pytest.mark.spec("ACL-19")
@pytest.mark.parametrize(
    ("ext", "body", "data"),
    [
        ({}, None, b""),
        ({"b": "1", "a": "2", "Signature": "x"}, b"body", b"21body"),
        ({"b": "1", "B": "2"}, b"", b"21"),
        ({"topic": "T", "_UNIQUE_KEY_QUERY": "true"}, None, b"T"),  # added by Java after it has signed
        ({"\U00010000": "1", "\uff61": "2"}, None, b"12"),  # by code units the surrogate comes first
        ({"k": "\u00fc\ud800"}, None, b"\xc3\xbc?"),
    ],
)
def test_version_1_covers_values_in_java_order(ext: dict[str, str], body: bytes | None, data: bytes) -> None:
    assert v1_data(ext, body) == data


@pytest.mark.spec("SEC-08")
def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(wanted: bytes, given: bytes) -> bool:
        compared.append((wanted, given))
        return False

    command = Command(10, ext={"x": "ab"})
    sign_v1(command, "RocketMQ", SECRET)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert not verify(command, SECRET), "the comparison decides"
    assert compared == [(command.ext["Signature"].encode(),) * 2]


@pytest.mark.spec("ACL-19", "SEC-08")
def test_version_1_does_not_cover_what_4_9_7_leaves_out() -> None:
    command = Command(10, ext={"x": "ab", "y": "c"})
    sign_v1(command, "RocketMQ", SECRET)
    assert verify(command, SECRET) and not verify(command, b"other")
    command.code, command.ext["x"], command.ext["y"] = 17, "a", "bc"
    assert verify(command, SECRET)
    command.ext["y"] = "bd"
    assert not verify(command, SECRET)


@pytest.mark.spec("SEC-10")
def test_version_2_has_the_layout_of_its_docstring() -> None:
    ext = {"b": "\u00fc", "a": "", "Signature": "old"}
    data = v2_data(-1, ext, b"body")
    pairs = b"\0\0\0\1a\0\0\0\0" + b"\0\0\0\1b\0\0\0\2\xc3\xbc"
    assert data == b"saturnmq-signature-2\0\xff\xff\xff\xff\0\0\0\2" + pairs + hashlib.sha256(b"body").digest()
    command = signed_v2()
    assert {name: command.ext[name] for name in ("AccessKey", "SignatureVersion", "SignatureTime", "SignatureNonce")} == {
        "AccessKey": "RocketMQ", "SignatureVersion": "2", "SignatureTime": "1700000000000",
        "SignatureNonce": "0123456789abcdef",
    }  # fmt: skip
    digest = hmac.new(SECRET, v2_data(17, command.ext, b"body"), hashlib.sha256).digest()
    assert command.ext["Signature"] == base64.b64encode(digest).decode()


@pytest.mark.spec("SEC-10")
@pytest.mark.parametrize(
    "change",
    [
        {"code": 215}, {"body": b"bodx"}, {"body": None}, {"topic": "a", "perm": "b6"}, {"topic": "abc"}, {"more": ""},
        {"SignatureTime": "1700000000001"}, {"SignatureNonce": "x"}, {"AccessKey": "rocketmq2"},
        {"Signature": ""}, {"Signature": "\u00fc"}, {"SignatureVersion": "1"}, {"_UNIQUE_KEY_QUERY": "true"},
    ],
)  # fmt: skip
def test_version_2_covers_code_bounds_body_time_and_nonce(change: dict[str, object]) -> None:
    command = signed_v2()
    assert verify(command, SECRET)
    for name, value in change.items():
        if name in ("code", "body"):
            setattr(command, name, value)
        else:
            command.ext[name] = str(value)
    assert not verify(command, SECRET)


@pytest.mark.spec("SEC-10")
def test_a_request_signed_again_drops_its_former_signature() -> None:
    command = signed_v2()
    sign_v1(command, "RocketMQ", SECRET)
    assert "SignatureVersion" not in command.ext and "SignatureNonce" not in command.ext and verify(command, SECRET)
