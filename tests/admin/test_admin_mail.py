"""Mails by STARTTLS, implicit TLS and without TLS, with and without a login, and what errors say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from certificates import write_certificate
from mailserver import MailServer, mail_server
from saturnmq.admin.mail import PASSWORD_VARIABLE, MailAccess, Mailer, MailError, read_password
from saturnmq.protocol.errors import ConfigError

pytestmark = pytest.mark.realtime
ACCOUNTS = {"mq": "s3cret"}
LOGIN = MailAccess(user="mq", password="s3cret")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("mail"), "mail")


def send(server: MailServer | str, access: MailAccess) -> None:
    address = server if isinstance(server, str) else server.address
    asyncio.run(Mailer(address, "mq@example.org", "ops@example.org", access=access).send("lag", {"total": 7}))


def test_starttls_verifies_the_certificate_and_logs_in(pair: tuple[Path, Path]) -> None:
    with mail_server(pair, accounts=ACCOUNTS) as server:
        send(server, replace(LOGIN, ca=pair[0]))
    assert server.senders == [("mq", True)] and server.letters[0]["Subject"] == "[SaturnMQ] lag"
    assert server.verbs[:3] == ["EHLO", "STARTTLS", "EHLO"]


def test_implicit_tls_verifies_the_certificate_and_logs_in(pair: tuple[Path, Path]) -> None:
    with mail_server(pair, implicit=True, accounts=ACCOUNTS) as server:
        send(server, replace(LOGIN, tls="implicit", ca=pair[0]))
    assert server.senders == [("mq", True)] and "STARTTLS" not in server.verbs


def test_relay_on_loopback_needs_neither_tls_nor_login(pair: tuple[Path, Path]) -> None:
    with mail_server() as server:
        send(server, MailAccess())
        send(f"localhost:{server.port}", MailAccess())
    with mail_server(pair) as offering:  # its certificate is in no list of the system
        send(offering, MailAccess())
    assert server.senders == [("", False)] * 2 and offering.senders == [("", False)]


@pytest.mark.parametrize("implicit", [False, True])
def test_unknown_certificate_is_refused_before_login_and_letter(pair: tuple[Path, Path], implicit: bool) -> None:
    with mail_server(pair, implicit=implicit, accounts=ACCOUNTS) as server:
        access = replace(LOGIN, tls="implicit" if implicit else "starttls")
        with pytest.raises(MailError, match=rf"{server.address}.*self-signed.*--mail-ca"):
            send(server, access)
        assert "AUTH" not in server.verbs and server.raw == []
        send(server, replace(access, verify=False))
    assert server.senders == [("mq", True)]


def test_certificate_of_another_host_is_refused(pair: tuple[Path, Path]) -> None:
    message = r"0\.0\.0\.0:\d+.*not valid for '0\.0\.0\.0'.*--mail-server"
    with mail_server(pair) as server, pytest.raises(MailError, match=message):
        send(f"0.0.0.0:{server.port}", MailAccess(ca=pair[0]))
    assert server.raw == []


@pytest.mark.parametrize(("host", "access"), [("0.0.0.0", MailAccess()), ("127.0.0.1", LOGIN)])
def test_server_without_starttls_gets_no_letter(host: str, access: MailAccess) -> None:
    """An address outside loopback, and a login, need TLS; 0.0.0.0 reaches loopback without being part of it."""
    with mail_server(accounts={"mq": "s3cret"} if access.user else {}) as server:
        with pytest.raises(MailError, match=rf"{host}:\d+ offers no STARTTLS; .*--mail-tls implicit"):
            send(f"{host}:{server.port}", access)
        assert {"AUTH", "MAIL"}.isdisjoint(server.verbs)
        send(server, replace(access, tls="none"))
    assert server.senders == [(access.user, False)]


def test_wrong_password_is_reported_without_it(pair: tuple[Path, Path]) -> None:
    message = r"refused the login of 'mq': 535 .*--mail-password-file"
    with mail_server(pair, accounts=ACCOUNTS) as server, pytest.raises(MailError, match=message) as caught:
        send(server, replace(LOGIN, ca=pair[0], password="wr0ng"))
    assert "wr0ng" not in str(caught.value) and "s3cret" not in repr(LOGIN) and server.raw == []


def test_server_without_logins_is_reported(pair: tuple[Path, Path]) -> None:
    with mail_server(pair) as server, pytest.raises(MailError, match=r"offers no login; .*without --mail-user"):
        send(server, replace(LOGIN, ca=pair[0]))


def test_port_without_tls_from_the_first_byte_is_reported(pair: tuple[Path, Path]) -> None:
    with mail_server(pair) as server, pytest.raises(MailError, match=r"no TLS.*--mail-tls starttls"):
        send(server, MailAccess(tls="implicit", ca=pair[0]))


@pytest.mark.parametrize(
    ("server", "access", "tls"),
    [
        ("127.0.0.1:25", MailAccess(), "none"),
        ("[::1]:25", MailAccess(), "none"),
        ("localhost:25", MailAccess(user="mq", password="x"), "starttls"),
        ("smtp.example.org:587", MailAccess(), "starttls"),
        ("smtp.example.org:465", MailAccess(), "implicit"),
        ("smtp.example.org:465", MailAccess(tls="starttls"), "starttls"),
        ("smtp.example.org:25", MailAccess(tls="none"), "none"),
    ],
)
def test_default_tls_depends_on_host_port_and_login(server: str, access: MailAccess, tls: str) -> None:
    assert Mailer(server, "a@b", "c@d", access=access).tls == tls


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (MailAccess(tls="ssl"), "--mail-tls 'ssl' must be starttls, implicit or none"),
        (MailAccess(tls="none", user="mq", password="x"), "clear text to smtp.example.org:25; .*starttls"),
        (MailAccess(tls="none", ca=Path("ca.pem")), "--mail-ca ca.pem has no effect"),
        (MailAccess(ca=Path("absent.pem")), "--mail-ca absent.pem: .*No such file.*PEM"),
        (MailAccess(ca=Path(__file__)), "--mail-ca .*test_admin_mail.py: .*PEM"),
        (MailAccess(user="mq"), f"--mail-user 'mq' needs a password.*--mail-password-file.*{PASSWORD_VARIABLE}"),
        (MailAccess(password="x"), "--mail-user"),
        (MailAccess(user="mq", password="pässword"), "printable ASCII"),
    ],
)
def test_unusable_access_is_a_configuration_error(access: MailAccess, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Mailer("smtp.example.org:25", "a@b", "c@d", access=access)
    assert "pässword" not in str(caught.value)


def test_password_is_read_from_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "from environment")
    assert read_password(None) == "from environment"
    path = tmp_path / "password"
    path.write_text("from file\n")
    assert read_password(path) == "from file"
    monkeypatch.delenv(PASSWORD_VARIABLE)
    assert read_password(None) == ""
    path.write_text("\n")
    with pytest.raises(ConfigError, match=f"--mail-password-file {path} is empty"):
        read_password(path)
    with pytest.raises(ConfigError, match=r"--mail-password-file .*absent cannot be read: No such file"):
        read_password(tmp_path / "absent")
