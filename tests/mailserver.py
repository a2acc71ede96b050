"""An SMTP server that takes one connection after the other and keeps the letters."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import cast


class _Session(socketserver.StreamRequestHandler):
    """A few lines of SMTP."""

    def handle(self) -> None:
        self.wfile.write(b"220 ok\r\n")
        for line in self.rfile:
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go\r\n")
                letter: list[bytes] = []
                while (part := self.rfile.readline()) != b".\r\n":
                    letter.append(part)
                cast(MailServer, self.server).raw.append(b"".join(letter))
            if line.upper().startswith(b"QUIT"):
                self.wfile.write(b"221 bye\r\n")
                break
            self.wfile.write(b"250 ok\r\n")


class MailServer(socketserver.TCPServer):
    """raw: the letters as they came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.raw: list[bytes] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def letters(self) -> list[EmailMessage]:
        return [cast(EmailMessage, message_from_bytes(one, policy=policy.default)) for one in self.raw]


@contextmanager
def mail_server() -> Iterator[MailServer]:
    """A server on a free port of loopback."""
    with MailServer() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()
