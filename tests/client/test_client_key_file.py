"""Credentials from the key file of Java clients."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saturnmq import Client, ConfigError
from saturnmq.protocol.signatures import WINDOW_MS, is_v2, verify

Run = Callable[[Callable[[], Any]], Any]
CONTENT = "# a comment\nAccessKey = file-key \nSecretKey:s3cret\\\n  continued\nSecurityToken=t0ken\nOther=1\n"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(CONTENT)
    return path


@pytest.mark.spec("ACL-18")
@pytest.mark.parametrize("how", ["argument", "URL", "environment", "home"])
async def test_client_signs_with_the_credentials_of_its_key_file(
    cluster: Any, key_file: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(key_file.parent))

    def make(address: str) -> Client:
        if how == "URL":
            return Client.from_url(f"rmq://{address}?key_file={key_file}")
        if how == "environment":
            return Client.from_env({"NAMESRV_ADDR": address, "SATURNMQ_KEY_FILE": str(key_file)})
        return Client(name_servers=address, key_file="~/key" if how == "home" else str(key_file))

    async with cluster() as c, make(c.name_servers) as client, client.producer("g") as out:
        await out.send("T", b"x")
        (command,) = c.broker.of(310)
        ext = dict(command.ext)
        signature = ext.pop("Signature")
        assert (ext["AccessKey"], ext["SecurityToken"]) == ("file-key", "t0ken")
        data = "".join(ext[name] for name in sorted(ext)).encode() + b"x"
        expected = hmac.new(b"s3cretcontinued", data, hashlib.sha1).digest()
        assert base64.b64decode(signature) == expected
        assert "s3cret" not in repr(client.settings) and "s3cret" not in repr(client._core.settings)


@pytest.mark.spec("ACL-18")
async def test_constructor_credentials_override_the_key_file(cluster: Any, tmp_path: Path) -> None:
    settings: Any = {"access_key": "mine", "secret_key": "s", "key_file": str(tmp_path / "missing")}
    async with cluster() as c, Client(name_servers=c.name_servers, **settings) as client:
        async with client.producer("g") as out:
            await out.send("T", b"x")
        assert c.broker.of(310)[0].ext["AccessKey"] == "mine" and "SecurityToken" not in c.broker.of(310)[0].ext


@pytest.mark.spec("ACL-18")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "cannot be read: UnicodeDecodeError"),
        (b"AccessKey=a\nSecretKey= \n", "missing: SecretKey"),
        (b"secretkey=s3cret\n", "missing: AccessKey, SecretKey"),
    ],
)
async def test_key_file_without_credentials_fails_the_start(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    client = Client(name_servers="127.0.0.1:1", key_file=str(path))
    with pytest.raises(ConfigError, match=words) as caught:
        await client.start()
    assert str(path) in str(caught.value) and "s3cret" not in str(caught.value)
    path.write_text(CONTENT)
    await client.start()
    await client.stop()


@pytest.mark.spec("SEC-10")
async def test_client_signs_every_attempt_with_version_2(cluster: Any) -> None:
    """Every request is signed: routes, heartbeats, sends; an attempt that is repeated has another nonce and time."""
    async with cluster() as c:
        url = f"rmq://mine:s3cret-key@{c.name_servers}?signature=v2"
        async with Client.from_url(url) as client, client.producer("g") as out:
            c.broker.script[310] = [lambda command: command.reply(1, "busy")]
            await out.send("T", b"x")
        requests = [*c.ns[0].requests, *c.broker.requests]
        assert {105, 310, 34} <= {command.code for command in requests}
        for command in requests:
            assert is_v2(command) and verify(command, b"s3cret-key"), command.code
            assert not verify(command, b"s3cret-kez")
            assert abs(int(command.ext["SignatureTime"]) - time.time() * 1000) < WINDOW_MS
        first, second = c.broker.of(310)
        assert first.ext["SignatureNonce"] != second.ext["SignatureNonce"]
