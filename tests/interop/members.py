"""The members of a consumer group as the broker sees them, queried as clients do."""

from __future__ import annotations

import asyncio

from peers import Peer

from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command

# Apache's broker handles heartbeats and closed connections on different threads: if a member's last heartbeat is handled after
# its disconnect, the member keeps its share of the queues until the scan that drops members silent for 120 s.
LAST_HEARTBEAT_S = 150
ASK_TIMEOUT_MS = 5000


async def no_members(peer: Peer, group: str) -> None:
    """Wait until the broker has no member of a group; raises TimeoutError after LAST_HEARTBEAT_S."""
    client = RemotingClient(settings=NetSettings())
    ask = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": group})
    try:
        async with asyncio.timeout(LAST_HEARTBEAT_S):
            while (await client.invoke(peer.broker_address, ask, ASK_TIMEOUT_MS)).code == ResponseCode.SUCCESS:
                await asyncio.sleep(0.2)  # polls
    finally:
        await client.close()
