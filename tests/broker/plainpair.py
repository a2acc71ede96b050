"""Two brokers that get the same bytes: one takes plain requests by `saturnmq.hot`, the other decodes every header."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any

from hotways import hot_module
from saturnmq.broker import Broker
from saturnmq.broker.requests.plain_sends import PlainRules, plain_sends
from saturnmq.net.plain_reads import PlainReader, PlainSends
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.headers.send_fields import SEND_V1_BY_V2
from saturnmq.protocol.message import decode_record
from saturnmq.store import FlushDiskType, StoreProfile, StoreSettings
from saturnmq.testing import EmbeddedBroker
from waiting import until

V1, V2, BATCH = int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)
FIELDS = {
    "a": "producers", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795246686100", "h": "0",
    "i": "UNIQ_KEY\x01ABC\x02WAIT\x01true", "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip


def request_frame(
    opaque: int,
    more: dict[str, str],
    *,
    code: int = V2,
    flag: int = 0,
    body: bytes = b"body",
    serialization: Serialization = Serialization.ROCKETMQ,
) -> bytes:
    ext = {name: value for name, value in (FIELDS | more).items() if value != "absent"}
    if code == V1:
        ext = {SEND_V1_BY_V2.get(name, name): value for name, value in ext.items()}
    return encode_frame(
        Command(code, ext=ext, body=body, opaque=opaque, flag=flag, serialization=serialization, language=0)
    )


class CountingSends:
    """Plain sends of a broker. reads: from which some were taken."""

    def __init__(self, sends: PlainSends) -> None:
        self._sends = sends
        self.reads = 0

    def feed(self, data: bytes, until: float, reader: PlainReader) -> int:
        end = self._sends.feed(data, until, reader)
        self.reads += end > 0
        return end

    def finish(self) -> dict[int, int]:
        return self._sends.finish()


class BrokerPair:
    """Two brokers in one event loop. In the first, `saturnmq.hot` takes plain sends; the second decodes every header.

    way: compiled or interpreted, how that code runs. flush: of both stores.
    """

    def __init__(self, way: str, flush: FlushDiskType) -> None:
        self.loop = asyncio.new_event_loop()
        self._way = way
        self._store = StoreSettings(profile=StoreProfile.SMALL, flush_disk_type=flush)
        self._servers: list[EmbeddedBroker] = []
        self._sends: CountingSends | None = None

    def start(self) -> None:
        for way in (self._way, "full"):
            server = EmbeddedBroker(store=self._store)
            self.loop.run_until_complete(server.start())
            endpoint = server.broker._server
            endpoint.take_plain(None)
            endpoint.request_seconds = server.broker.metrics.request_seconds
            if way != "full":
                self._sends = CountingSends(plain_sends_of(server.broker, way))
                endpoint.take_plain(self._sends)
            self._servers.append(server)

    @property
    def reads_taken(self) -> int:
        """Reads so far from which `saturnmq.hot` took sends."""
        return self._sends.reads if self._sends is not None else 0

    def stop(self) -> None:
        for server in self._servers:
            self.loop.run_until_complete(server.stop())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    @property
    def brokers(self) -> list[Broker]:
        return [server.broker for server in self._servers]

    def exchange(self, frames: list[bytes], answers: int) -> list[list[Command]]:
        """Responses of each broker to frames sent in one write, by opaque."""

        async def both() -> list[list[Command]]:
            async with asyncio.timeout(30):
                return await asyncio.gather(*(self._exchange(s, b"".join(frames), answers) for s in self._servers))

        return self.loop.run_until_complete(both())

    def fates(self, pieces: list[bytes]) -> list[list[Command]]:
        """Responses of each broker to pieces of bytes after which the client closes, in the order in which they came."""

        async def both() -> list[list[Command]]:
            async with asyncio.timeout(30):
                fates = await asyncio.gather(*(self._fate(server, pieces) for server in self._servers))
                for broker in self.brokers:  # sends that wait for the disk are counted when they are confirmed
                    await until(lambda broker=broker: not broker.in_flight.sends)
                return fates

        return self.loop.run_until_complete(both())

    async def _fate(self, server: EmbeddedBroker, pieces: list[bytes]) -> list[Command]:
        host, port = server.broker_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        answers = bytearray()
        with contextlib.suppress(OSError):  # closed for a bad frame
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)  # so that the pieces arrive in several reads
            writer.write_eof()
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                answers += data
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return FrameDecoder().feed(bytes(answers))

    async def _exchange(self, server: EmbeddedBroker, data: bytes, answers: int) -> list[Command]:
        host, port = server.broker_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        decoder, got = FrameDecoder(), []
        try:
            writer.write(data)
            while len(got) < answers:
                piece = await reader.read(65536)
                assert piece, "the broker closed the connection"
                got += decoder.feed(piece)
        finally:
            writer.close()
            await writer.wait_closed()
        return sorted(got, key=lambda command: command.opaque)


def plain_sends_of(broker: Broker, way: str) -> PlainSends:
    module = hot_module("sends", way)
    rules = PlainRules(broker.admission, broker.dledger, broker._server.frame_limits)
    return plain_sends(broker._send_context, rules, module)


def facts(answer: Command, broker: Broker) -> dict[str, Any]:
    """A response without what differs between two brokers: their address."""
    ext = dict(answer.ext)
    ids = ext.pop("msgId", "").split(",")
    assert all(not text or text.startswith(broker.identity.id_prefix) for text in ids)
    remark = (answer.remark or "").replace(broker.advertised_address, "ADDRESS").partition(" Producer: ")[0]
    offsets = [text[len(broker.identity.id_prefix) :] for text in ids]
    return {"code": answer.code, "opaque": answer.opaque, "flag": answer.flag, "language": answer.language,
            "version": answer.version, "serialization": answer.serialization, "remark": remark, "ext": list(ext.items()),
            "ids": offsets, "body": answer.body}  # fmt: skip


def records(broker: Broker) -> list[Any]:
    """All stored messages, by topic and queue."""
    found = []
    for topic, queue_id in sorted(broker.store.topic_queues()):
        for offset in range(broker.store.max_offset(topic, queue_id)):
            physical = broker.store.physical_offset(topic, queue_id, offset)
            m = decode_record(broker.store.read_record(physical) or b"", check_crc=True)
            found.append((m.topic, m.queue_id, m.queue_offset, m.physical_offset, m.body, m.properties_raw, m.flag,
                          m.sys_flag, m.born_timestamp_ms, m.reconsume_times, m.prepared_transaction_offset,
                          m.store_bytes))  # fmt: skip
    return found


def units(broker: Broker) -> dict[tuple[str, int], list[Any]]:
    """The units of every queue: physical offset, size and tags code."""
    store = broker.store
    return {
        key: [store.queues.by_key[key].unit(offset) for offset in range(store.max_offset(*key))]
        for key in sorted(store.topic_queues())
    }


def counters(broker: Broker) -> dict[str, Any]:
    stats, store = broker.stats, broker.store
    items = {
        (name, key): (item.value, item.times)
        for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
        for key in sorted({topic for topic, _ in store.topic_queues()})
        if (item := stats.sets.find(name, key)) is not None
    }
    return {
        "messages": stats.put_messages, "bytes": stats.put_bytes, "failed": stats.put_failed, "items": items,
        "requests": {code: sum(times.counts) for code, times in broker.metrics.request_seconds.items()},
        "end": store.log.end, "dispatched": store.dispatched,
    } | ({"appends": sum(store.append_watch.durations.counts)} if store.acknowledges_at_once else {})  # fmt: skip


def damaged(frames: list[bytes], random: Random) -> list[bytes]:
    """The frames with some bytes cut, overwritten, repeated or removed, in up to three pieces."""
    data = bytearray(b"".join(frames))
    for _ in range(random.randrange(3)):
        at = random.randrange(len(data))
        kind = random.randrange(4)
        if kind == 0:
            data[at] = random.choice([0, 1, 0x22, 0x30, 0x5C, 0x7B, 0x7D, 0x80, 0xFF, random.randrange(256)])
        elif kind == 1:
            del data[at : at + random.randrange(1, 4)]
        elif kind == 2:
            data[at:at] = data[at : at + random.randrange(1, 4)]
        else:
            del data[at:]
        if not data:
            return [b"\0"]
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(3)))
    return [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
