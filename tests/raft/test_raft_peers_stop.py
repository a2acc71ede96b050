"""A member that stops while requests to others are under way: nothing is left that asyncio would report."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from harness import virtualtime
from saturnmq.net import NO_RESPONSE
from saturnmq.net.connection import Connection
from saturnmq.net.server import RemotingServer
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.access import PeerAccess
from saturnmq.raft.core.messages import Response, TransferRequest
from saturnmq.raft.peers import Peers
from waiting import until


async def reported_by(stops: Any) -> list[str]:
    """What asyncio reports while `stops(peers, silent)` runs. n1 takes requests and answers none, n2 is not there."""
    found: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context["message"]))

    def silent(connection: Connection, command: Command) -> bytes:
        return NO_RESPONSE

    server = RemotingServer(silent, settings=NetSettings())
    host, port = await server.start("127.0.0.1", 0)
    addresses = {"n1": f"{host}:{port}", "n2": "127.0.0.1:1"}
    peers = Peers(addresses, NetSettings(), lambda request, answer: None, access=PeerAccess(["127.0.0.1"]))
    try:
        await stops(peers, server)
    finally:
        await server.stop()
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)
    return found


def request() -> TransferRequest:
    return TransferRequest(group="g", term=1, local_id="n0", remote_id="n1", transferee_id="n1")


def test_stop_in_mid_transfer_reports_no_unread_error() -> None:
    answered: list[Response | None] = []

    async def stops(peers: Peers, server: RemotingServer) -> None:
        peers.send("n1", request(), 3000, answered.append)  # it connects first
        while not server.connections:
            await asyncio.sleep(0.01)  # poll
        peers.send("n1", request(), 3000, answered.append)
        await asyncio.sleep(0)
        await peers.stop()

    assert virtualtime.run(reported_by(stops)) == [] and answered == []


def test_stop_closes_the_connections_to_other_members() -> None:
    async def stops(peers: Peers, server: RemotingServer) -> None:
        peers.send("n1", request(), 3000, lambda response: None)
        await until(lambda: server.connections)
        await peers.stop()
        await until(lambda: not server.connections)

    assert virtualtime.run(reported_by(stops)) == []


def test_request_after_the_stop_is_not_sent() -> None:
    answered: list[Response | None] = []

    async def stops(peers: Peers, server: RemotingServer) -> None:
        await peers.stop()
        for name in ("n1", "n2"):
            peers.send(name, request(), 3000, answered.append)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not server.connections

    assert virtualtime.run(reported_by(stops)) == [] and answered == []
