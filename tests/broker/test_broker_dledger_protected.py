"""The DLedger port of a group whose brokers have access control: no way around the accounts.

Requirements: SEC-12, SEC-18.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from brokergroup import ledger_group
from protected import write_accounts

from harness import virtualtime
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.raft.core.ids import LedgerIndex
from saturnmq.raft.core.messages import AppendRequest, GetRequest, MetadataRequest
from saturnmq.raft.wire.codec import code_of, encode

OPERATOR = "127.0.0.9"  # in adminAddresses by default, no member's host


async def ask_from(source: str, address: str, command: Command) -> Command:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    try:
        writer.write(encode_frame(command))
        decoder = FrameDecoder()
        while not (found := decoder.feed(await reader.read(65536))):
            pass
        return found[0]
    finally:
        writer.close()


@pytest.mark.spec("SEC-12", "SEC-18")
@pytest.mark.parametrize("protected", [False, True])
def test_admin_addresses_reach_messages_only_without_accounts(tmp_path: Path, protected: bool) -> None:
    write_accounts(tmp_path)
    secret = {"cluster_secret": "sixteen bytes at least", "require_secret": True}

    async def work() -> None:
        async with ledger_group(tmp_path, size=1, raft=secret, acl_enable=protected, acl_home=str(tmp_path)) as group:
            await group.master()
            sides: dict[str, Any] = {"group": "g", "remote_id": "n0"}
            requests = (
                GetRequest(begin_index=LedgerIndex(0), **sides),
                AppendRequest(body=b"x", **sides),
                MetadataRequest(**sides),
            )
            codes = []
            for request in requests:
                command = Command(code_of(request), body=encode(request))
                codes.append((await ask_from(OPERATOR, group.addresses["n0"], command)).code)
            # Of the body of the append only its check is reached: it is no message.
            assert codes == ([16, 16, 200] if protected else [200, 1, 200])

    virtualtime.run(asyncio.wait_for(work(), 60))
