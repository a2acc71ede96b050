"""TLS and the shared secret on the HA port: who gets bytes of the log, and what a Java peer sees."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slavestub import SYNC, SocketSlave, following, liar, log_bytes, serving

from certificates import write_certificate
from saturnmq.net import TlsSettings
from saturnmq.net.signer import Signer
from saturnmq.net.tls import ContextHolder, client_context
from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.raft.cluster_secret import FIELD, ClusterSecret
from saturnmq.replication.masterslave import handshake
from saturnmq.replication.masterslave.handshake import INTRODUCE, MAGIC, SECRET, TLS, MasterChannel, SlaveChannel, Terms
from saturnmq.replication.masterslave.master import PROOF_SECONDS
from saturnmq.replication.masterslave.settings import HaSettings
from waiting import until

WORD = "sixteen bytes or more"
STREAM = b"the stream"


def tls_files(folder: Path, name: str, mode: str = "permissive") -> TlsSettings:
    certificate, key = write_certificate(folder, name)
    return TlsSettings(
        mode=mode,
        enable=True,
        server_cert_path=str(certificate),
        server_key_path=str(key),
        client_trust_path=str(certificate),
    )


class Ends:
    """Both channels of one connection without a network, and everything that each received."""

    def __init__(
        self,
        *,
        tls: TlsSettings | None = None,
        context: ssl.SSLContext | None = None,
        secrets: tuple[str, str] = ("", ""),
        trusted: bool = True,
    ) -> None:
        self.to_master, self.to_slave = bytearray(), bytearray()
        terms = Terms(ContextHolder(tls or TlsSettings(mode="disabled")), ClusterSecret.of(secrets[0], required=True))
        self.master = MasterChannel(self.to_slave.extend, terms, trusted=trusted)
        secret = ClusterSecret.of(secrets[1], required=True)
        self.slave = SlaveChannel(self.to_master.extend, "127.0.0.1:10912", context, secret)
        self.sent = b""  # everything that the slave sent

    def run(self, sizes: Callable[[], int] = lambda: 1 << 20) -> bytes:
        """Exchange bytes in pieces until both are established; returns what the master gets of STREAM."""
        self.slave.start()
        if self.slave.established:
            self.slave.write(STREAM)
        found, written = b"", self.slave.established
        while self.to_master or self.to_slave:
            size = sizes()
            piece, self.to_master[:size] = bytes(self.to_master[:size]), b""
            self.sent += piece
            found += self.master.feed(piece) if piece else b""
            piece, self.to_slave[:size] = bytes(self.to_slave[:size]), b""
            if piece:
                assert self.slave.feed(piece) == b""
            if self.slave.established and not written:
                written = True
                self.slave.write(STREAM)
        return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsSettings:
    return tls_files(tmp_path_factory.mktemp("tls"), "pair")


def context_of(tls: TlsSettings) -> ssl.SSLContext:
    return client_context(tls)


@pytest.mark.spec("SEC-19")
@given(data=st.data(), encrypted=st.booleans(), secret=st.booleans())
def test_ends_agree_however_the_bytes_are_cut(
    files: TlsSettings, data: st.DataObject, encrypted: bool, secret: bool
) -> None:
    words = (WORD, WORD) if secret else ("", "")
    ends = Ends(tls=files, context=context_of(files) if encrypted else None, secrets=words, trusted=not secret)
    assert ends.run(lambda: data.draw(st.integers(1, 600))) == STREAM
    assert ends.master.established and ends.slave.established
    assert ends.master.encrypted == ends.slave.encrypted == encrypted
    assert (STREAM in ends.sent) != encrypted
    assert ends.sent.startswith(MAGIC) == (encrypted or secret)


@pytest.mark.parametrize(
    ("settings", "words", "trusted", "slave_says", "master_says"),
    [
        ({}, ("", WORD), True, "it has no haClusterSecret", "haClusterSecret is not set here"),
        ({}, (WORD, "another secret, as long"), True, "the master has another haClusterSecret", "not signed"),
        ({}, (WORD, ""), False, "", "does not prove haClusterSecret"),
        ({"mode": "enforcing"}, (WORD, WORD), True, "it accepts TLS only", "tls.server.mode=enforcing"),
        ({"mode": "enforcing"}, ("", ""), True, "", "tls.server.mode=enforcing"),
    ],
)
def test_refusals_say_why_at_both_ends(
    files: TlsSettings,
    settings: dict[str, Any],
    words: tuple[str, str],
    trusted: bool,
    slave_says: str,
    master_says: str,
) -> None:
    ends = Ends(tls=dataclasses.replace(files, **settings), secrets=words, trusted=trusted)
    with pytest.raises(RemoteProtocolError, match=master_says):
        ends.run()
    assert not ends.master.established
    if slave_says:
        with pytest.raises(RemoteProtocolError, match=slave_says):
            ends.slave.feed(bytes(ends.to_slave))
    else:
        assert not ends.to_slave or b"\x88" in ends.to_slave


def test_tls_that_the_master_does_not_have_is_refused(files: TlsSettings) -> None:
    ends = Ends(context=context_of(files))
    with pytest.raises(RemoteProtocolError, match=r"tls\.server\.mode=disabled"):
        ends.run()
    with pytest.raises(RemoteProtocolError, match="haTlsEnable=false here"):
        ends.slave.feed(bytes(ends.to_slave))


def test_bytes_behind_an_unanswered_opening_are_refused(files: TlsSettings) -> None:
    """They would be read before TLS begins, as if they came from the slave."""
    ends = Ends(tls=files)
    with pytest.raises(RemoteProtocolError, match="bytes behind the opening"):
        ends.master.feed(MAGIC + bytes([TLS]) + bytes(8))
    slave = SlaveChannel(bytes, "127.0.0.1:1", context_of(files), None)
    with pytest.raises(RemoteProtocolError):
        slave.feed(MAGIC + bytes([TLS]) + b"plain")


def test_a_changed_answer_does_not_switch_tls_or_the_secret_off(files: TlsSettings) -> None:
    for answer in (MAGIC + b"\0", MAGIC + bytes([TLS]), bytes(8), MAGIC + b"\xff", b"\xff" * 8):
        slave = SlaveChannel(bytes, "127.0.0.1:1", context_of(files), ClusterSecret(WORD, required=True))
        with pytest.raises(RemoteProtocolError):
            slave.feed(answer)
        assert not slave.established


def test_recorded_introductions_cannot_be_used_again() -> None:
    first = Ends(secrets=(WORD, WORD), trusted=False)
    assert first.run() == STREAM
    secret = first.master._terms.secret
    for terms in (first.master._terms, Ends(secrets=(WORD, WORD)).master._terms):  # also after a restart
        answers = bytearray()
        again = MasterChannel(answers.extend, terms, trusted=False)
        frames = first.sent.removesuffix(STREAM)
        again.feed(frames[:8])
        with pytest.raises(RemoteProtocolError, match="introduction refused"):
            again.feed(frames[8:])
        assert not again.established
    assert secret is not None


@pytest.mark.parametrize("code", [INTRODUCE, 10])
def test_unsigned_and_other_requests_are_refused(code: int) -> None:
    ends = Ends(secrets=(WORD, WORD), trusted=False)
    ends.master.feed(MAGIC + bytes([SECRET]))
    request = Command(code)
    if code != INTRODUCE:
        signer = ClusterSecret(WORD)
        signer.sign("a:1", request)
        assert FIELD in request.ext
    with pytest.raises(RemoteProtocolError, match="introduction refused"):
        ends.master.feed(encode_frame(request))


@given(st.binary(max_size=300), st.integers(0, 255))
def test_any_bytes_are_refused_or_awaited(data: bytes, flags: int) -> None:
    for start in (b"", MAGIC + bytes([flags])):
        ends = Ends(secrets=(WORD, WORD), trusted=False)
        try:
            assert ends.master.feed(start) == b""
            assert ends.master.feed(data) == b""
        except RemoteProtocolError:
            pass
        assert not ends.master.established
        assert len(ends.master._decoder._partial_frame) <= handshake._LIMITS.frame_bytes_max


def test_a_large_frame_is_refused_before_it_is_complete() -> None:
    ends = Ends(secrets=(WORD, WORD), trusted=False)
    ends.master.feed(MAGIC + bytes([SECRET]))
    with pytest.raises(RemoteProtocolError):
        ends.master.feed((1 << 20).to_bytes(4, "big") + (100).to_bytes(4, "big"))


# ---- ports


@pytest.mark.spec("SEC-19")
@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
async def test_a_slave_copies_the_log_over_tls_with_the_secret(tmp_path: Path, mode: str) -> None:
    tls = tls_files(tmp_path, "pair", mode)
    master = {"tls": tls, "protected": True, "cluster_secret": WORD}
    async with serving(tmp_path / "m", from_oldest=True, **master) as port:
        port.put(1500)
        async with following(tmp_path / "s", port, SYNC, tls, cluster_secret=WORD) as slave:
            await slave.has(port)
            port.put(10)
            await slave.has(port)
            assert log_bytes(slave.store, 0, slave.store.log.end) == log_bytes(port.store)
            await until(lambda: port.acks.highest == port.store.log.end)
            assert [c._channel.encrypted for c in port.master._connections] == [True]  # type: ignore[union-attr]


@pytest.mark.spec("SEC-19")
async def test_with_accounts_nothing_is_sent_before_the_secret_is_proved(tmp_path: Path) -> None:
    async with serving(tmp_path / "m", protected=True, cluster_secret=WORD) as port:
        port.put(20)
        plain = await port.slave()
        plain.report(0)
        await plain.closed()
        opened = await port.slave()
        opened.write(MAGIC + bytes([SECRET]))
        opened.report(0)
        await opened.closed_with(MAGIC + b"\xff")
        for words in ("", "another secret, as long"):
            async with following(tmp_path / f"s{words}", port, cluster_secret=words) as slave:
                refused = port.rejections.counts["ha"]
                await until(lambda refused=refused: port.rejections.counts["ha"] > refused)
                assert slave.store.log.end == 0
        assert port.acks.slaves == 0
        async with following(tmp_path / "s", port, cluster_secret=WORD) as slave:
            await slave.has(port)


async def test_a_listed_address_needs_no_secret_unless_it_is_required(tmp_path: Path) -> None:
    more = {"cluster_secret": WORD, "allowed_text": "127.0.0.1", "protected": True}
    async with serving(tmp_path / "1", **more) as port:
        port.put(5)
        slave = await port.slave()
        slave.report(0)
        await slave.data(port.store.log.end)
    async with serving(tmp_path / "2", require_secret=True, **more) as port:
        slave = await port.slave()
        slave.report(0)
        await slave.closed()


def test_settings_of_the_secret_are_checked() -> None:
    assert HaSettings(cluster_secret=WORD).port_open(protected=True)
    assert HaSettings(cluster_secret=WORD).secret_only(protected=True)
    assert not HaSettings(cluster_secret=WORD).secret_only(protected=False)
    assert not HaSettings(cluster_secret=WORD, allowed_text="10.0.0.1").secret_only(protected=True)
    assert HaSettings(cluster_secret=WORD, require_secret=True).secret_only(protected=False)
    assert "needs haClusterSecret" in HaSettings(require_secret=True).validate()[0]
    assert "at least 16 bytes" in HaSettings(cluster_secret="short").validate()[0]


def test_each_problem_of_the_settings_is_reported() -> None:
    assert HaSettings().validate() == []
    assert HaSettings(access_key="a", secret_key="b", cluster_secret="x" * 16, require_secret=True).validate() == []
    for pair in ({"access_key": "a"}, {"secret_key": "b"}):
        assert HaSettings(**pair).validate() == ["haAccessKey and haSecretKey must be set together"]
    problems = HaSettings(allowed_text="10.1.2.300", cluster_secret="x" * 15, access_key="a").validate()
    assert [problem.split("=")[0] for problem in problems[:1]] == ["haAllowedAddresses"]
    assert "10.1.2.300" in problems[0]
    assert problems[1:] == [
        "haClusterSecret must have at least 16 bytes", "haAccessKey and haSecretKey must be set together"
    ]  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
def test_a_slave_signs_with_its_account_and_version(version: int) -> None:
    assert HaSettings().signer is None
    signer = HaSettings(access_key="slave", secret_key="sixteen bytes", signature_version=version).signer
    assert signer is not None
    signed, expected = Command(21), Command(21)
    signer.sign(signed)
    Signer("slave", "sixteen bytes", version=f"v{version}").sign(expected)
    assert signed.ext["AccessKey"] == "slave"
    assert signed.ext.keys() == expected.ext.keys()
    assert (signed.ext == expected.ext) is (version == 1), "version 2 covers a time and a nonce"


async def test_a_connection_that_proves_nothing_is_closed_soon(tmp_path: Path) -> None:
    async with serving(tmp_path / "m", protected=True, cluster_secret=WORD) as port:
        clock = asyncio.get_running_loop().time
        began = clock()
        silent, slow = await port.slave(), await port.slave()
        slow.write(MAGIC + bytes([SECRET]))
        frame = encode_frame(Command(INTRODUCE))

        async def drip() -> None:
            for at in range(len(frame)):
                await asyncio.sleep(1)  # poll
                slow.write(frame[at : at + 1])

        dripping = asyncio.create_task(drip())
        await asyncio.gather(silent.closed(), slow.closed_with(MAGIC + bytes([SECRET])))
        dripping.cancel()
        assert PROOF_SECONDS <= clock() - began < 3 * PROOF_SECONDS


async def test_a_slave_does_not_follow_a_master_without_a_trusted_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls, forged = tls_files(tmp_path, "pair"), tls_files(tmp_path, "forged")
    async with serving(tmp_path / "m", tls=forged) as port:
        port.put(5)
        async with following(tmp_path / "s", port, None, tls) as slave:
            await until(lambda: "certificate verify failed" in caplog.text)
            assert slave.store.log.end == 0


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    tls = tls_files(tmp_path, "pair")
    async with serving(tmp_path / "m", tls=tls) as port:
        port.put(5)
        renewed = tls_files(tmp_path, "pair")
        assert renewed == tls, "the same paths"
        async with following(tmp_path / "s", port, None, renewed) as slave:
            await slave.has(port)


async def test_a_java_master_gets_no_bytes_that_acknowledge_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes the last whole 8 bytes of what it received for an offset, and the first one unchecked."""
    tls = tls_files(tmp_path, "pair")
    got: list[bytes] = []

    async def java(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read())

    async with liar(java) as address, following(tmp_path / "s", lambda: address, None, tls, cluster_secret=WORD):
        await until(lambda: got)
    assert [int.from_bytes(data, "big", signed=True) < 0 for data in got] == [True]
    assert [len(data) for data in got] == [8]
    assert "set haTlsEnable=false" in caplog.text


@pytest.mark.spec("SEC-19")
async def test_peers_of_apache_rocketmq_are_served_in_plain(tmp_path: Path) -> None:
    """TLS may be configured for the other ports."""
    tls = tls_files(tmp_path, "pair")
    for number, (mode, enable) in enumerate((("permissive", True), ("enforcing", False))):
        settings = tls_files(tmp_path, f"pair{number}", mode)
        async with serving(tmp_path / f"m{number}", tls=settings, tls_enable=enable) as port:
            port.put(5)
            slave: SocketSlave = await port.slave()
            slave.report(0)
            assert await slave.data(port.store.log.end) == log_bytes(port.store)
    async with (
        serving(tmp_path / "m") as port,  # as plain as Java's
        following(tmp_path / "s", port, None, tls, tls_enable=False) as again,
    ):
        port.put(5)
        await again.has(port)
