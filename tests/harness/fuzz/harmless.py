"""Harmless frames: what clients and brokers send all day, as many and as fast as the hostile ones, as their control.

An honest client beside them pays for the machine that all share; what it pays more beside hostile frames is the attack.

Requirements: G10.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from harness.fuzz.frames import Frame
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.message import encode_properties
from saturnmq.raft.wire.codec import DLedgerCode

TOPIC: Final = "HonestTopic"  # the honest client's: it exists wherever that sends, elsewhere the first send creates it
GROUP: Final = "HarmlessGroup"
_METADATA: Final = b'{"group":"fuzz-b","remoteId":"n0"}'


class HarmlessMaker:
    """Makes requests for one kind of server (`Port.kind`), which all succeed. sign: signs each of them."""

    def __init__(self, seed: int, kind: str, sign: Callable[[Command], None] | None = None) -> None:
        self._chance = random.Random(seed)
        self._make = {"namesrv": self._to_name_server, "dledger": self._to_member}.get(kind, self._to_broker)
        self._sign = sign
        self._client = f"harmless-{seed}"
        self._first = kind in ("broker", "signed")

    def frame(self) -> Frame:
        """The next frame."""
        command = self._make()
        command.opaque = self._chance.randrange(2**31)
        if self._sign is not None:
            self._sign(command)
        return Frame(encode_frame(command), whole=True, sound=True)

    def _to_name_server(self) -> Command:
        if self._chance.random() < 0.1:
            return Command(RequestCode.GET_BROKER_CLUSTER_INFO)
        return Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "TBW102"}, serialization=self._form())

    def _to_member(self) -> Command:
        return Command(DLedgerCode.METADATA, body=_METADATA)

    def _to_broker(self) -> Command:
        chance = self._chance.random()
        if self._first or chance < 0.5:  # the topic is there from then on
            self._first = False
            return self._send()
        if chance < 0.6:
            consumer = ConsumerData(GROUP, subscription_data_set=[SubscriptionData(TOPIC, "*", sub_version=1)])
            body = HeartbeatData(self._client, [ProducerData("harmless")], [consumer]).encode()
            return Command(RequestCode.HEART_BEAT, body=body)
        queue = {"topic": TOPIC, "queueId": str(self._chance.randrange(4))}
        code = self._chance.choice((RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET))
        return Command(code, ext=queue, serialization=self._form())

    def _send(self) -> Command:
        raw = encode_properties(
            {"UNIQ_KEY": f"7F0000010000{self._chance.randrange(2**40):020X}", "WAIT": "true", "TAGS": "paid"}
        )
        fields = {"a": "harmless", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(self._chance.randrange(4)), "f": "0",
                  "g": "1700000000000", "h": "0", "i": raw.decode(), "j": "0", "k": "false", "m": "false"}  # fmt: skip
        return Command(RequestCode.SEND_MESSAGE_V2, ext=fields, body=bytes(128), serialization=self._form())

    def _form(self) -> Serialization:
        return self._chance.choice((Serialization.JSON, Serialization.ROCKETMQ))
