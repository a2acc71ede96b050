"""TLS detection by the first byte, and reloading of certificate files."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import ssl
from pathlib import Path

import pytest
from netpair import echo, pair

from certificates import write_certificate
from loglines import own_messages
from saturnmq.config.settings import load
from saturnmq.net import ConnectFailed, NetSettings, TlsMode, TlsSettings, fairness
from saturnmq.net import tls as tls_module
from saturnmq.net.tls import ContextHolder, TlsStream, client_context, server_context
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.frames.command import Command, encode_frame

Pair = tuple[Path, Path]


def server_tls(mode: str, certificate: Pair) -> TlsSettings:
    return TlsSettings(mode=mode, server_cert_path=str(certificate[0]), server_key_path=str(certificate[1]))


CLIENT = TlsSettings(enable=True, client_auth_server=False)


@pytest.mark.spec("REM-29")
@pytest.mark.parametrize(
    ("mode", "plain", "encrypted"),
    [("disabled", True, False), ("permissive", True, True), ("enforcing", False, True), ("whatever", True, True)],
)
async def test_tls_mode_decides_which_connections_are_accepted(
    certificate: Pair, mode: str, plain: bool, encrypted: bool
) -> None:
    for client_tls, works in ((None, plain), (CLIENT, encrypted)):
        async with pair(echo, tls=server_tls(mode, certificate), client_tls=client_tls) as p:
            body = b"x" * 300_000
            if works:
                assert (await p.call(Command(10, body=body))).body == body
            else:
                with pytest.raises(ConnectFailed):
                    await p.call(Command(10, body=body))


@pytest.mark.spec("REM-29")
async def test_tls_connection_without_certificate_is_closed() -> None:
    async with pair(echo, client_tls=CLIENT) as p:
        with pytest.raises(ConnectFailed):
            await p.call(Command(10))
    async with pair(echo) as p:
        assert (await p.call(Command(10))).code == 0


@pytest.mark.spec("REM-29", "REM-03")
async def test_tls_handshake_works_byte_by_byte(certificate: Pair) -> None:
    async with pair(echo, tls=server_tls("permissive", certificate)) as p:
        reader, writer = await p.socket()
        stream = TlsStream(client_context(CLIENT), server_side=False)
        stream.start()
        stream.write(encode_frame(Command(10, opaque=3, body=b"secret")))
        answer = b""
        while b"secret" not in answer:
            for byte in stream.outgoing():
                writer.write(bytes([byte]))
                await writer.drain()
            data = await reader.read(1000)
            assert data
            answer += stream.feed(data)
        writer.close()


@pytest.mark.spec("LIM-06")
@pytest.mark.parametrize("sent", [1, 200, None])
async def test_unfinished_handshake_is_closed_as_unfinished_frame(certificate: Pair, sent: int | None) -> None:
    settings = NetSettings(slow_frame_ms=50)
    async with pair(echo, settings, tls=server_tls("permissive", certificate)) as p:
        reader, writer = await p.socket()
        writer.write(client_hello()[:sent])
        while await reader.read(1000):
            pass
        assert p.server.rejections.counts == {"slow_frame": 1}
        writer.close()


def client_hello() -> bytes:
    stream = TlsStream(client_context(CLIENT), server_side=False)
    stream.start()
    return stream.outgoing()


@pytest.mark.spec("LIM-09", "REM-29")
async def test_many_handshakes_at_once_leave_the_loop_to_others(
    certificate: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a handshake takes a millisecond of this clock; an event-loop iteration has two for connections that wait."""
    peers, clock, steps = 40, [100.0], [0]
    feed = TlsStream.feed

    def timed(stream: TlsStream, data: bytes) -> bytes:
        steps[-1] += 1
        clock[0] += 0.001
        return feed(stream, data)

    def iteration() -> None:
        steps.append(0)
        asyncio.get_running_loop().call_soon(iteration)

    async with pair(echo, tls=server_tls("permissive", certificate)) as p:
        hello = client_hello()
        sockets = [socket.create_connection((p.host, p.port)) for _ in range(peers)]
        while len(p.server.connections) < peers:
            await asyncio.sleep(0)
        monkeypatch.setattr(TlsStream, "feed", timed)
        monkeypatch.setattr(fairness, "monotonic", lambda: clock[0])
        iteration()
        for one in sockets:
            one.sendall(hello)
        while sum(steps) < peers:
            await asyncio.sleep(0)
        assert max(steps) <= fairness.ITERATION_SECONDS / 0.001 + 1
        for one in sockets:
            one.close()


@pytest.mark.spec("REM-29")
def test_unknown_tls_mode_is_permissive() -> None:
    assert TlsSettings(mode="nonsense").server_mode is TlsMode.PERMISSIVE
    assert TlsSettings().server_mode is TlsMode.PERMISSIVE


@pytest.mark.spec("REM-29")
async def test_server_can_require_client_certificate(certificate: Pair, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path, "client")
    server = TlsSettings(
        server_cert_path=str(certificate[0]),
        server_key_path=str(certificate[1]),
        server_trust_path=str(cert),
        need_client_auth="require",
    )
    with_certificate = dataclasses.replace(CLIENT, client_cert_path=str(cert), client_key_path=str(key))
    async with pair(echo, tls=server, client_tls=with_certificate) as p:
        assert (await p.call(Command(10))).code == 0
    async with pair(echo, tls=server, client_tls=CLIENT) as p:
        with pytest.raises(ConnectFailed):
            await p.call(Command(10))


@pytest.mark.spec("REM-29")
@pytest.mark.parametrize(
    ("need", "auth", "mode"),
    [
        ("none", False, ssl.CERT_NONE),
        ("none", True, ssl.CERT_NONE),
        ("optional", False, ssl.CERT_OPTIONAL),
        ("optional", True, ssl.CERT_OPTIONAL),
        ("require", False, ssl.CERT_REQUIRED),
        ("require", True, ssl.CERT_REQUIRED),
    ],
)
def test_client_auth_is_decided_by_need_client_auth_alone(
    certificate: Pair, need: str, auth: bool, mode: ssl.VerifyMode
) -> None:
    settings = dataclasses.replace(
        server_tls("permissive", certificate), need_client_auth=need, server_auth_client=auth,
        server_trust_path=str(certificate[0]),
    )  # fmt: skip
    context = server_context(settings)
    assert context is not None and context.verify_mode is mode


@pytest.mark.spec("REM-29", "UX-05")
def test_unsupported_tls_keys_are_rejected_or_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"tls\.test\.mode\.enable=true: .*tls\.server\.certPath"):
        load(TlsSettings, ("file", {"tls.test.mode.enable": "true"}))
    with pytest.raises(ConfigError, match=r"tls\.config\.file=/etc/x: .* into this one"):
        load(TlsSettings, ("file", {"tls.config.file": "/etc/x"}))
    both = {"tls.server.authClient": "true", "tls.test.mode.enable": "false"}
    load(TlsSettings, ("file", both | {"tls.server.need.client.auth": "require", "tls.server.mode": "enforcing"}))
    assert not own_messages(caplog)
    load(TlsSettings, ("file", both))
    assert "tls.server.need.client.auth=none" in caplog.text


@pytest.mark.parametrize("mode", ["permissive", "disabled", "enforcing"])
def test_required_certificates_with_plain_connections_are_warned_about(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"tls.server.need.client.auth": "require", "tls.server.mode": mode}
    assert load(TlsSettings, ("file", keys)).settings.plain_without_certificate == (mode != "enforcing")
    assert (f"tls.server.mode={mode} accepts, need no certificate" in caplog.text) == (mode != "enforcing")


@pytest.mark.spec("REM-30", "NS-31")
def test_certificate_and_key_reload_only_after_both_changed(certificate: Pair, tmp_path: Path) -> None:
    holder = ContextHolder(server_tls("permissive", certificate))
    first = holder.context
    (tmp_path / "new").mkdir()
    cert, key = write_certificate(tmp_path / "new", "other")
    certificate[0].write_bytes(cert.read_bytes())
    assert holder.check() is False
    assert holder.context is first
    certificate[1].write_bytes(key.read_bytes())
    assert holder.check() is True
    assert holder.context is not first
    assert holder.check() is False


@pytest.mark.spec("REM-30")
def test_unusable_tls_files_are_logged_once_per_change(
    certificate: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def errors() -> int:
        return sum("tls reload failed" in record.message for record in caplog.records if record.levelname == "ERROR")

    holder = ContextHolder(server_tls("permissive", certificate))
    first = holder.context
    (tmp_path / "new").mkdir()
    (cert, key), (_, foreign) = (write_certificate(tmp_path / "new", name) for name in ("one", "two"))
    certificate[0].write_bytes(cert.read_bytes())
    certificate[1].write_bytes(foreign.read_bytes())
    assert [holder.check() for _ in range(3)] == [False] * 3
    assert errors() == 1 and holder.context is first
    certificate[1].write_text("nothing")
    assert [holder.check() for _ in range(3)] == [False] * 3
    assert errors() == 2
    certificate[1].write_bytes(key.read_bytes())
    assert holder.check() is True and errors() == 2


@pytest.mark.spec("REM-30")
def test_changed_trust_file_reloads_at_once(certificate: Pair, tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    trust.write_bytes(certificate[0].read_bytes())
    settings = TlsSettings(
        server_cert_path=str(certificate[0]),
        server_key_path=str(certificate[1]),
        server_trust_path=str(trust),
        need_client_auth="require",
    )
    holder = ContextHolder(settings)
    first = holder.context
    trust.write_text("not a certificate")
    assert holder.check() is False
    assert holder.context is first
    trust.write_bytes(write_certificate(tmp_path, "ca")[0].read_bytes())
    assert holder.check() is True


@pytest.mark.spec("REM-30")
def test_tls_file_created_after_start_is_not_watched(certificate: Pair, tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    settings = dataclasses.replace(server_tls("permissive", certificate), server_trust_path=str(trust))
    holder = ContextHolder(settings)
    trust.write_bytes(certificate[0].read_bytes())
    assert holder.check() is False


@pytest.mark.spec("REM-30")
async def test_tls_files_are_checked_twice_per_second(certificate: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: asyncio.Queue[float] = asyncio.Queue()

    async def noted(seconds: float) -> None:
        waits.put_nowait(seconds)
        await asyncio.Event().wait()

    holder = ContextHolder(server_tls("permissive", certificate))
    with monkeypatch.context() as patched:
        patched.setattr(tls_module.asyncio, "sleep", noted)  # type: ignore[attr-defined]
        holder.watch()
        assert await waits.get() == 0.5
    await holder.stop()


@pytest.mark.spec("REM-30", "NS-31")
async def test_running_server_serves_reloaded_certificate(certificate: Pair, tmp_path: Path) -> None:
    async def fingerprint(host: str, port: int) -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection(host, port, ssl=context)
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return found

    async with pair(echo, tls=server_tls("permissive", certificate)) as p:
        before = await fingerprint(p.host, p.port)
        (tmp_path / "new").mkdir()
        cert, key = write_certificate(tmp_path / "new", "other")
        certificate[0].write_bytes(cert.read_bytes())
        certificate[1].write_bytes(key.read_bytes())
        while await fingerprint(p.host, p.port) == before:
            await asyncio.sleep(0.05)  # poll until the watcher has looked, within the deadline of run
        assert await fingerprint(p.host, p.port) != before


@pytest.mark.spec("REM-29", "UX-05")
def test_unreadable_certificate_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls.server.certPath=.*missing.pem"):
        ContextHolder(TlsSettings(server_cert_path=str(tmp_path / "missing.pem")))


@pytest.mark.spec("SEC-15")
async def test_client_verifies_the_server_by_default(certificate: Pair, tmp_path: Path) -> None:
    """Refused: an unknown authority, a certificate for another host. Accepted: one that is trusted, or any without authServer."""
    stranger, _ = write_certificate(tmp_path, "stranger")
    elsewhere = write_certificate(tmp_path, "elsewhere", "127.0.0.9")
    trusting = TlsSettings(enable=True, client_trust_path=str(certificate[0]))

    async def works(server: Pair, client: TlsSettings) -> bool:
        async with pair(echo, tls=server_tls("enforcing", server), client_tls=client) as p:
            try:
                return (await p.call(Command(10))).code == 0
            except ConnectFailed as error:
                assert "certificate" in str(error), "the cause is named"
                return False

    assert not await works(certificate, TlsSettings(enable=True)), "the system's authorities do not know it"
    assert not await works(certificate, dataclasses.replace(trusting, client_trust_path=str(stranger)))
    assert await works(certificate, trusting)
    assert await works(certificate, CLIENT)
    moved = dataclasses.replace(trusting, client_trust_path=str(elsewhere[0]))
    assert not await works(elsewhere, moved), "it is for 127.0.0.9"
    assert await works(elsewhere, dataclasses.replace(moved, client_check_host=False))


@pytest.mark.spec("SEC-15")
def test_enforcing_without_certificate_does_not_start() -> None:
    with pytest.raises(
        ConfigError, match=r"tls\.server\.mode=enforcing needs a certificate: set tls\.server\.certPath"
    ):
        ContextHolder(TlsSettings(mode="enforcing"))


@pytest.mark.spec("SEC-15")
def test_trusting_any_server_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    load(TlsSettings, ("file", {"tls.enable": "true"}))
    load(TlsSettings, ("file", {"tls.client.authServer": "false"}))
    assert not own_messages(caplog)
    load(TlsSettings, ("file", {"tls.enable": "true", "tls.client.authServer": "false"}))
    assert "tls.client.authServer=false" in caplog.text


@pytest.mark.spec("SEC-05")
def test_server_refuses_renegotiation_and_versions_before_1_2(certificate: Pair) -> None:
    context = server_context(server_tls("permissive", certificate))
    assert context is not None
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
