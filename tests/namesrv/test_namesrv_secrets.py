"""Secrets of a NameServer's configuration appear in no answer, log line, error or repr."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from served import Served

from saturnmq.config.settings import MASK, masked
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, TlsSettings
from saturnmq.protocol.codes import RequestCode

SECRET = "PLANTED-SECRET"
UNKNOWN = {"mySecretKey": SECRET, "db.password": SECRET, "other": f"rmq://key:{SECRET}@host:9876", "plain": "shown"}


@pytest.mark.spec("SEC-13")
async def test_no_answer_log_line_or_repr_shows_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tls = TlsSettings(server_key_password=SECRET, client_key_password=SECRET)
    (tmp_path / "ns.properties").write_text(f"tls.server.keyPassword={SECRET}\n")

    settings = NameServerSettings(
        kv_config_path=str(tmp_path / "kv.json"), config_store_path=str(tmp_path / "ns.properties")
    )
    server = NameServer(settings, NetSettings(), tls=tls, unknown_keys=UNKNOWN)
    host, port = await server.start("127.0.0.1", 0)
    s = Served(server, f"{host}:{port}")
    try:
        answers = []
        for body in (
            b"{}",
            f"tls.server.keyPassword={SECRET}".encode(),
            f"mySecretKey={SECRET}x".encode(),
            b"brokersMax=7",
        ):
            answers += [await s.call(code, body, topic="T", secretKey=SECRET, namespace="n") for code in RequestCode]
        for answer in answers:
            assert SECRET not in f"{answer.ext} {answer.remark}" and SECRET.encode() not in (answer.body or b"")
        shown = ((await s.call(RequestCode.GET_NAMESRV_CONFIG)).body or b"").decode()
        assert f"mySecretKey={MASK}\n" in shown and "plain=shown\n" in shown and f"rmq://key:{MASK}@host:9876" in shown
        assert "brokersMax=7\n" in shown
    finally:
        await s.client.close()
        await server.stop()
    assert SECRET not in caplog.text and SECRET not in repr(tls)
    assert SECRET in (tmp_path / "ns.properties").read_text(), "a change of another key keeps the secret in the file"


@pytest.mark.parametrize(
    "name", ["smtpPass", "KEYPASS", "storePassword", "apiKey", "signing.KEY", "authTOKEN", "s3secret"]
)
def test_unknown_keys_named_like_secrets_are_masked_in_any_case(name: str) -> None:
    for spelled in (name, name.lower(), name.upper()):
        assert masked(spelled, "x") == MASK


def test_values_are_masked_by_name_and_in_urls() -> None:
    assert masked("aSecretKey", "x") == masked("PASSWORD", "x") == MASK and masked("secret", "") == ""
    assert masked("namesrvAddr", "rmq://k:s@a:1;b:2") == f"rmq://k:{MASK}@a:1;b:2"
    assert masked("namesrvAddr", "a:1;b:2") == "a:1;b:2"
