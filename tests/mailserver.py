"""An SMTP server that takes one connection after the other and keeps the letters; with STARTTLS, implicit TLS and logins."""

from __future__ import annotations

import base64
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast


class _Session(socketserver.StreamRequestHandler):
    """A few lines of SMTP."""

    server: MailServer

    def setup(self) -> None:
        self.secured = False
        self.user = ""
        super().setup()
        if self.server.implicit:
            self._secure()

    def _secure(self) -> None:
        assert self.server.context is not None
        self.rfile.close()
        self.request = self.server.context.wrap_socket(cast(socket.socket, self.request), server_side=True)
        super().setup()
        self.secured = True

    def finish(self) -> None:
        super().finish()
        self.request.close()

    def handle(self) -> None:
        self._answer(b"220 ok")
        while line := self.rfile.readline():
            words = line.split()
            verb = words[0].upper() if words else b""
            self.server.verbs.append(verb.decode())
            if verb == b"EHLO":
                for offered in (b"test", *self._offered()):
                    self._answer(b"250-" + offered)
                self._answer(b"250 8BITMIME")
            elif verb == b"STARTTLS" and b"STARTTLS" in self._offered():
                self._answer(b"220 go")
                self._secure()
            elif verb == b"AUTH":
                _, user, password = base64.b64decode(words[2]).decode().split("\0")
                known = self.server.accounts.get(user) == password
                self.user = user if known else ""
                self._answer(b"235 welcome" if known else b"535 no such account")
            elif verb == b"MAIL" and self.server.accounts and not self.user:
                self._answer(b"530 log in first")
            elif verb == b"DATA":
                self._answer(b"354 go")
                letter: list[bytes] = []
                while (part := self.rfile.readline()) != b".\r\n":
                    letter.append(part)
                self.server.raw.append(b"".join(letter))
                self.server.senders.append((self.user, self.secured))
                self._answer(b"250 ok")
            elif verb == b"QUIT":
                self._answer(b"221 bye")
                break
            else:
                self._answer(b"250 ok")

    def _offered(self) -> list[bytes]:
        found = [b"STARTTLS"] if self.server.context is not None and not self.secured else []
        return [*found, b"AUTH PLAIN"] if self.server.accounts else found

    def _answer(self, line: bytes) -> None:
        self.wfile.write(line + b"\r\n")


class MailServer(socketserver.TCPServer):
    """raw: the letters as they came; senders: user and whether by TLS of each; verbs: of all commands.

    context: for STARTTLS, or with `implicit` from the first byte; accounts: passwords by user, empty: a letter needs no login.
    """

    def __init__(self, context: ssl.SSLContext | None, implicit: bool, accounts: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.context, self.implicit, self.accounts = context, implicit, accounts
        self.raw: list[bytes] = []
        self.senders: list[tuple[str, bool]] = []
        self.verbs: list[str] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that refuses the certificate is what some tests are about."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def letters(self) -> list[EmailMessage]:
        return [cast(EmailMessage, message_from_bytes(one, policy=policy.default)) for one in self.raw]


@contextmanager
def mail_server(
    certificate: tuple[Path, Path] | None = None, *, implicit: bool = False, accounts: Mapping[str, str] | None = None
) -> Iterator[MailServer]:
    """A server on a free port of loopback. certificate: its file and that of its key."""
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    with MailServer(context, implicit, accounts or {}) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()
