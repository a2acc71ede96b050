"""Replies at a broker with access control: who gets them, and who may send them.

Requirements: SEC-12, ACL-13.
"""

from __future__ import annotations

import pytest
from protected import ADMIN, USER, refused, v1
from wire import Wire

from saturnmq.net import Connection, NetSettings, RemotingClient
from saturnmq.protocol.bodies import HeartbeatData, ProducerData
from saturnmq.protocol.codes import TRACE_TOPIC, RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import encode_properties

ASKER = "10.0.0.1@4711"


class Asker:
    """A client that waits for replies, with an account."""

    def __init__(self, w: Wire, account: tuple[str, str]) -> None:
        self.got: list[bytes | None] = []
        self.w, self.account = w, account
        self.client = RemotingClient(settings=NetSettings(), handler=self._pushed)

    def _pushed(self, connection: Connection, request: Command) -> Command:
        self.got.append(request.body)
        return request.reply()

    async def heartbeat(self) -> None:
        command = Command(RequestCode.HEART_BEAT, body=HeartbeatData(ASKER, [ProducerData("P")], []).encode())
        v1(self.account)(command)
        assert (await self.client.invoke(self.w.server.broker_address, command, 5000)).code == 0


async def reply(w: Wire, topic: str) -> Command:
    text = encode_properties({"REPLY_TO_CLIENT": ASKER, "CORRELATION_ID": "1"}).decode()
    return await w.call(
        RequestCode.SEND_REPLY_MESSAGE_V2, b"secret", a="P", b=topic, c="TBW102", d=1, e=0, f=0, g=1, h=0, i=text, j=0
    )  # fmt: skip


@pytest.mark.spec("SEC-12")
async def test_another_account_cannot_divert_the_replies_of_a_client(protected: Wire) -> None:
    asker, thief = Asker(protected, ADMIN), Asker(protected, USER)
    await asker.heartbeat()
    await thief.heartbeat()
    assert (await reply(protected, "DefaultCluster_REPLY_TOPIC")).code == 0
    assert (asker.got, thief.got) == ([b"secret"], [])
    assert protected.broker.rejections.counts["client_id"] == 1
    again = Asker(protected, ADMIN)  # a client that reconnects keeps its id
    await again.heartbeat()
    assert (await reply(protected, "DefaultCluster_REPLY_TOPIC")).code == 0
    assert (asker.got, again.got) == ([b"secret"], [b"secret"])
    for one in (asker, thief, again):
        await one.client.close()


@pytest.mark.spec("ACL-13")
async def test_the_free_trace_topic_is_no_way_to_send_replies(protected: Wire) -> None:
    asker = Asker(protected, ADMIN)
    await asker.heartbeat()
    protected.sign = v1(USER)
    assert refused(await reply(protected, TRACE_TOPIC)) == (
        f"replies are sent to topic:DefaultCluster_REPLY_TOPIC, not to topic:{TRACE_TOPIC}"
    )
    assert asker.got == []
    await asker.client.close()
