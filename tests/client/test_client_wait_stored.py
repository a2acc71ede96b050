"""Property WAIT of messages: each way of sending asks a broker to respond when the message is durable, except by option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saturnmq import Client, Outgoing
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_batch, decode_properties, decode_record
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


def waits(command: Command) -> list[str]:
    """WAIT of each message of a request."""
    if command.code == 320:
        return [decode_properties(item.properties_raw.decode())["WAIT"] for item in decode_batch(command.body or b"")]
    return [decode_properties(command.ext["i"])["WAIT"]]


async def test_every_way_of_sending_waits_for_storage_by_default(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        for options, expected in (({}, "true"), ({"wait_stored": True}, "true"), ({"wait_stored": False}, "false")):
            c.broker.requests.clear()
            await out.send("T", b"1", **options)
            await out.send_oneway("T", b"1", **options)
            await out.send_many("T", [b"1", b"2"], **options)
            await until(lambda: len(c.broker.of(310)) == 2)
            found = [wait for code in (310, 320) for command in c.broker.of(code) for wait in waits(command)]
            assert found == [expected] * 4, options


async def test_message_of_a_batch_overrides_the_default(cluster: Any) -> None:
    """Messages that wait and messages that do not are in requests of their own; receipts keep the order of the messages."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        values = [b"1", Outgoing(value=b"2", wait_stored=False), Outgoing(value=b"3", wait_stored=True)]
        for default, expected in ((True, [["false"], ["true", "true"]]), (False, [["false", "false"], ["true"]])):
            c.broker.requests.clear()
            receipts = await out.send_many("T", values, wait_stored=default)
            assert sorted(waits(command) for command in c.broker.requests if command.code in (310, 320)) == expected
            stored = [c.broker.stored["T", receipt.queue.queue_id][receipt.offset] for receipt in receipts]
            assert [decode_record(record).body for record in stored] == [b"1", b"2", b"3"]
