"""Commands of DLedger groups against a member that answers what it likes: nothing of it controls the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from saturnmq.cli import main
from saturnmq.net import Connection, NetSettings
from saturnmq.net.server import RemotingServer
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.core.messages import ChangeResponse, MetadataResponse, TransferResponse
from saturnmq.raft.tool import main as tool_main
from saturnmq.raft.wire.codec import RESPONSE_HEADER_CODE, DLedgerCode, encode
from saturnmq.testing.loop_thread import FixtureLoopThread

EVIL = "\x1b]0;owned\x07\n"


@contextmanager
def hostile_member() -> Iterator[str]:
    """The address of a member that leads."""
    peers = {"n0": "127.0.0.1:1", f"n1{EVIL}": "127.0.0.1:1"}
    answers = {
        DLedgerCode.METADATA: MetadataResponse(leader_id="n0", term=3, peers=peers, learners=(EVIL,)),
        DLedgerCode.MEMBERS: ChangeResponse(code=999_999, reason=EVIL, members=Configuration(peers)),
        DLedgerCode.LEADERSHIP_TRANSFER: TransferResponse(code=999_999),
    }

    def handler(connection: Connection, request: Command) -> Command:
        return request.reply(RESPONSE_HEADER_CODE, body=encode(answers[DLedgerCode(request.code)]))

    thread = FixtureLoopThread("hostile-member")
    server = RemotingServer(handler, settings=NetSettings())
    try:
        host, port = thread.submit("start", server.start("127.0.0.1", 0)).result(10)
        yield f"{host}:{port}"
        thread.submit("stop", server.stop()).result(10)
    finally:
        thread.stop()


def test_member_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with hostile_member() as address:
        words = ["-g", "g", "-p", f"n0-{address}"]
        added = main(["admin", "ledgerAddLearner", *words, "-m", "n9-127.0.0.1:1"])
        transferred = main(["admin", "ledgerTransfer", "-g", "g", "-p", f"n0-{address};n7-127.0.0.1:1", "--to", "n7"])
        status = tool_main(["status", *words])
    out, err = capsys.readouterr()
    assert (added, transferred, status) == (1, 1, 0)
    assert out.count("-1 UNKNOWN") == 2 and "\\x1b]0;owned" in out
    assert "\x1b" not in out + err and "\x07" not in out + err and "\nowned" not in out
