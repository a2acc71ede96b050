"""The message record as stored and pulled, message properties, the batch body, and tag hashes.

RECORD_FIELDS is the layout of a record's head. All else is derived from it: `head_struct` and `position_of` serve callers that
read or patch a few fields without decoding a record.

Requirements: MSG-01..MSG-07, ST-07, ST-09.
"""

# Message record, big-endian (MSG-02, docs/spec/00 section 4.1): the fields of RECORD_FIELDS, from 0 to 88 with two IPv4 hosts.
# Hosts take 20 bytes instead of 8 when sysFlag bit 4 (born) or bit 5 (store) is set.
#    .  ...   body, as long as body_bytes says
#    .  u8    topic length, topic
#    .  i16   properties length, properties
#
# Batch body (request 320), one entry per message (MSG-03, docs/spec/00 section 4.2).
#    0  i32   total_size         22 + body + properties
#    4  i32   magic              written 0, ignored
#    8  i32   body_crc           written 0, ignored
#   12  i32   flag
#   16  i32   body length, body
#    .  i16   properties length, properties

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from saturnmq.protocol.codes import COMPRESSION_MASK, PropertyKey, SysFlag
from saturnmq.protocol.crc import crc32
from saturnmq.protocol.errors import LocalProtocolError, MessageError
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset

Buffer: TypeAlias = bytes | bytearray | memoryview

MESSAGE_MAGIC: Final = -626843481  # 0xDAA320A7
BLANK_MAGIC: Final = -875286124  # 0xCBD43194, filler at the end of a commit log file
BATCH_FIXED_BYTES: Final = 22
BATCH_MESSAGES_MAX: Final = 10_000  # messages of one batch: a broker stores it in one step of the event loop
TOPIC_BYTES_MAX: Final = 127
PROPERTIES_BYTES_MAX: Final = 32767

TIME_END_MS: Final = 1 << 43  # year 2248: no time in a record or a file is later

_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
BATCH_HEAD: Final = struct.Struct(">iiiii")
_BATCH_ENTRY: Final = struct.Struct(">i8xii")  # total_size, flag, body length

_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
HOSTS_V6: Final = _BORN_V6 | _STORE_V6  # bits of sys_flag that say how long the hosts are

RECORD_FIELDS: Final = {  # of a record's head, in order, with their struct codes; the one place that knows the layout
    "total_size": "i",  # bytes of the whole record
    "magic": "i",  # 0xDAA320A7; the filler at a file's end has 0xCBD43194
    "body_crc": "i",  # CRC-32 of the body as stored & 0x7FFFFFFF
    "queue_id": "i",
    "flag": "i",  # set by the producer application, not interpreted
    "queue_offset": "q",  # number of the message in its queue
    "physical_offset": "q",  # position in the commit log, bytes
    "sys_flag": "i",
    "born_timestamp": "q",  # Unix ms, the producer's clock
    "born_ip": "4s",  # 16 bytes if it is IPv6
    "born_port": "i",
    "store_timestamp": "q",  # Unix ms, taken inside the append
    "store_ip": "4s",  # 16 bytes if it is IPv6
    "store_port": "i",
    "reconsume_times": "i",
    "prepared_transaction_offset": "q",
    "body_bytes": "i",
}


def _codes(bits: int) -> dict[str, str]:
    """The struct code of each field of the head, by the IPv6 bits of sys_flag."""
    long = {"born_ip"} if bits & _BORN_V6 else set()
    long |= {"store_ip"} if bits & _STORE_V6 else set()
    return {name: "16s" if name in long else code for name, code in RECORD_FIELDS.items()}


def head_struct(*names: str) -> struct.Struct:
    """Unpacks these fields of a head, in the order of the layout, and skips the others; behind a host only if it is IPv4."""
    codes = [code if name in names else f"{struct.calcsize(code)}x" for name, code in RECORD_FIELDS.items()]
    while codes[-1].endswith("x"):
        del codes[-1]
    return struct.Struct(">" + "".join(codes))


def position_of(name: str, bits: int = 0) -> int:
    """Where a field of the head begins, bytes; bits: the IPv6 bits of sys_flag."""
    codes = _codes(bits)
    return struct.calcsize(">" + "".join(list(codes.values())[: list(codes).index(name)]))


RECORD_HEADS: Final = {  # the whole head, by the IPv6 bits
    bits: struct.Struct(">" + "".join(_codes(bits).values())) for bits in (0, _BORN_V6, _STORE_V6, HOSTS_V6)
}
RECORD_V4: Final = RECORD_HEADS[0]
_V4_BYTES: Final = RECORD_V4.size
RECORD_FIXED_BYTES: Final = _V4_BYTES + 3  # a record with two IPv4 hosts, no body, no topic, no properties
_AT_SYS_FLAG: Final = position_of("sys_flag")
_AT_STORE_TIMESTAMP: Final = position_of("store_timestamp"), position_of("store_timestamp", _BORN_V6)
STORE_TIMESTAMP_END_MAX: Final = _AT_STORE_TIMESTAMP[1] + 8  # a head of so many bytes has it in any case


def store_timestamp_of(record: Buffer) -> int:
    """Store timestamp of a record, Unix ms."""
    at = _AT_STORE_TIMESTAMP[bool(record[_AT_SYS_FLAG + 3] & _BORN_V6)]
    return int.from_bytes(record[at : at + 8], "big", signed=True)


NAME_SEPARATOR: Final = "\x01"
PAIR_SEPARATOR: Final = "\x02"


Entry: TypeAlias = tuple[Buffer, bytes, int]
"""Body, encoded properties and flag of a message."""


class Host(NamedTuple):
    """An IP address as text and a port."""

    ip: str
    port: int


ENTRY_HOST: Final = Host("127.0.0.1", 10911)  # of entries that no client sent


NO_HOST: Final = Host("0.0.0.0", 0)  # noqa: S104 - an address stored in a record; no socket is bound to it


@dataclass(slots=True)
class Message:
    """A message as it is stored and pulled.

    properties_raw is the encoded property string; `properties` decodes it. Times are Unix ms. queue_offset, physical_offset,
    store_timestamp_ms, body_crc and store_bytes (record length) are set only once the message is stored.
    """

    topic: str
    body: Buffer
    properties_raw: bytes = b""
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: Host = NO_HOST
    store_host: Host = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    queue_offset: QueueOffset = QueueOffset(0)
    physical_offset: PhysicalOffset = PhysicalOffset(0)
    store_timestamp_ms: int = 0
    body_crc: int = 0
    store_bytes: int = 0
    _properties: dict[str, str] | None = field(default=None, repr=False, compare=False)

    @property
    def properties(self) -> dict[str, str]:
        """The properties, decoded on first use; the dict is cached and must not be modified."""
        if self._properties is None:
            self._properties = decode_properties(self.properties_raw)
        return self._properties

    @property
    def entry(self) -> Entry:
        """Body, properties and flag."""
        return self.body, self.properties_raw, self.flag

    @property
    def tags(self) -> str | None:
        return self.properties.get(PropertyKey.TAGS)

    @property
    def keys(self) -> str | None:
        return self.properties.get(PropertyKey.KEYS)


def body_crc(body: Buffer) -> int:
    """CRC-32 of the body as stored, masked to 31 bits (MSG-06); 0 for an empty body."""
    return crc32(body) & 0x7FFFFFFF


@lru_cache(maxsize=4096)
def _packed_ip(ip: str) -> bytes:
    try:
        return ipaddress.ip_address(ip).packed
    except ValueError as error:
        raise LocalProtocolError(f"host {ip!r} is not an IP address") from error


def pack_host(host: tuple[str, int]) -> bytes:
    """IP and port as in a record: 8 bytes for IPv4, 20 for IPv6. Raises LocalProtocolError if it is none."""
    try:
        return _packed_ip(host[0]) + _I32.pack(host[1])
    except struct.error as error:
        raise LocalProtocolError(f"port {host[1]} of host {host[0]} does not fit 32 bits") from error


@lru_cache(maxsize=4096)
def _host(ip: bytes, port: int) -> Host:
    """Decode an IP of 4 or 16 bytes. Cached: the records of a broker contain few distinct hosts."""
    return Host(".".join(map(str, ip)) if len(ip) == 4 else str(ipaddress.IPv6Address(ip)), port)


def mend_time(message: Message, latest_ms: int) -> int:
    """Replace an impossible store time by latest_ms, that of the records before; returns the latest time of all, Unix ms.

    No checksum covers the time of a record, and the times of later records must not be lower.
    """
    if not 0 <= message.store_timestamp_ms < TIME_END_MS:
        message.store_timestamp_ms = max(latest_ms, 1)
    return max(latest_ms, message.store_timestamp_ms)


def encode_record(message: Message) -> bytes:
    """Encode a message with the offsets and times it carries. Raises LocalProtocolError; see `encode_records`."""
    return encode_records(message, (message.entry,), message.physical_offset)[0][0]


def encode_records(
    message: Message, entries: Sequence[Entry], physical_offset: PhysicalOffset
) -> tuple[list[bytes], PhysicalOffset]:
    """Encode records that lie one after another; body, properties and flag are those of the entries, the rest is the message's.

    Queue offsets count from the message's. Returns the records and the offset after them. The IPv6 bits of sys_flag follow from
    the hosts. Raises LocalProtocolError when the topic or the properties are too long, or a number does not fit its field.
    """
    born_host, store_host, number = message.born_host, message.store_host, message.queue_offset
    pack, fixed_bytes, bits, born, store, topic = _fixed_parts(born_host[0], store_host[0], message.topic)
    sys_flag, short = message.sys_flag & ~HOSTS_V6 | bits, _I16.pack
    records = []
    try:
        for body, properties, flag in entries:
            body_bytes, properties_bytes = len(body), len(properties)
            size = fixed_bytes + body_bytes + properties_bytes
            head = pack(
                size, MESSAGE_MAGIC, crc32(body) & 0x7FFFFFFF, message.queue_id, flag, number, physical_offset, sys_flag,
                message.born_timestamp_ms, born, born_host[1], message.store_timestamp_ms, store, store_host[1],
                message.reconsume_times, message.prepared_transaction_offset, body_bytes,
            )  # fmt: skip
            records.append(b"".join((head, body, topic, short(properties_bytes), properties)))
            physical_offset += size  # type: ignore[assignment]
            number += 1  # type: ignore[assignment]
    except struct.error as error:
        longest = max(len(properties) for _, properties, _ in entries)
        if longest > PROPERTIES_BYTES_MAX:
            text = f"properties of {longest} bytes do not fit a record, at most {PROPERTIES_BYTES_MAX} do"
        else:
            text = f"a number of the message does not fit its field: {error}"
        raise LocalProtocolError(text) from error
    return records, physical_offset


@lru_cache(maxsize=16_384)
def _fixed_parts(born_ip: str, store_ip: str, topic: str) -> tuple[Callable[..., bytes], int, int, bytes, bytes, bytes]:
    """Shared by records with the same addresses and topic: packer of the head, bytes of an empty record, IPv6 bits, encodings."""
    born, store, encoded = _packed_ip(born_ip), _packed_ip(store_ip), topic.encode()
    if len(encoded) > TOPIC_BYTES_MAX:
        raise LocalProtocolError(f"topic of {len(encoded)} bytes does not fit a record, at most {TOPIC_BYTES_MAX} do")
    bits = (_BORN_V6 if len(born) == 16 else 0) | (_STORE_V6 if len(store) == 16 else 0)
    head = RECORD_HEADS[bits]
    return head.pack, head.size + 3 + len(encoded), bits, born, store, bytes((len(encoded),)) + encoded


def decode_record(buffer: Buffer, at: int = 0, *, check_crc: bool = False) -> Message:
    """Decode the record that starts at `at`; the body is copied. Raises MessageError, also for a truncated record."""
    return _decode(buffer, at, 1, check_crc=check_crc)[0]


def _decode(buffer: Buffer, at: int, most: int, *, check_crc: bool) -> list[Message]:
    """Decode the records from `at` to the end of the buffer, at most `most`, but one in any case."""
    messages: list[Message] = []
    size, topic_raw, topic = len(buffer), b"", ""
    try:
        while True:
            (
                total, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born_ms,
                born_ip, born_port, store_ms, store_ip, store_port, reconsume_times, prepared, body_bytes,
            ) = RECORD_V4.unpack_from(buffer, at)  # fmt: skip
            if magic != MESSAGE_MAGIC:
                raise MessageError(f"record at {at} has magic 0x{magic & 0xFFFFFFFF:08X}, must be 0xDAA320A7")
            end = at + total
            if total < RECORD_FIXED_BYTES or end > size:
                raise MessageError(f"record at {at} claims {total} bytes, {size - at} are there")
            pos = at + _V4_BYTES
            if sys_flag & HOSTS_V6:
                head = RECORD_HEADS[sys_flag & HOSTS_V6]
                born_ip, born_port, store_ms, store_ip, store_port, reconsume_times, prepared, body_bytes = (
                    head.unpack_from(buffer, at)[9:]
                )
                pos = at + head.size
            born_host, store_host = _host(born_ip, born_port), _host(store_ip, store_port)
            if not 0 <= body_bytes <= end - pos:
                raise MessageError(f"record at {at} claims a body of {body_bytes} bytes, {end - pos} are left")
            body = bytes(buffer[pos : pos + body_bytes])
            pos += body_bytes
            topic_bytes = buffer[pos]
            if topic_bytes > TOPIC_BYTES_MAX:
                raise MessageError(
                    f"record at {at} claims a topic of {topic_bytes} bytes, at most {TOPIC_BYTES_MAX} fit"
                )
            raw = bytes(buffer[pos + 1 : pos + 1 + topic_bytes])
            if raw != topic_raw:  # the records of an answer have one topic
                topic_raw, topic = raw, raw.decode()
            pos += 1 + topic_bytes
            (properties_bytes,) = _I16.unpack_from(buffer, pos)
            pos += 2
            if properties_bytes < 0 or pos + properties_bytes != end:
                raise MessageError(f"record at {at}: properties of {properties_bytes} bytes, {end - pos} are left")
            if check_crc and body_crc(body) != crc:
                raise MessageError(f"record at {at}: body CRC is {body_crc(body)}, the record says {crc}")
            messages.append(
                Message(
                    topic,
                    body,
                    bytes(buffer[pos:end]),
                    queue_id,
                    flag,
                    sys_flag,
                    born_ms,
                    born_host,
                    store_host,
                    reconsume_times,
                    prepared,
                    queue_offset,
                    physical,
                    store_ms,
                    crc,
                    total,
                )
            )
            at = end
            if at >= size or len(messages) >= most:
                return messages
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MessageError(f"record at {at} is cut or not UTF-8: {error}") from error


def record_properties(buffer: Buffer, at: int = 0) -> bytes:
    """Return the property string of the record at `at`, reading nothing else but the lengths in front of it.

    Raises MessageError when the lengths do not add up to the record length.
    """
    try:
        (total,) = _I32.unpack_from(buffer, at)
        (sys_flag,) = _I32.unpack_from(buffer, at + _AT_SYS_FLAG)
        pos = at + RECORD_HEADS[sys_flag & HOSTS_V6].size
        (body_bytes,) = _I32.unpack_from(buffer, pos - 4)
        topic_at = pos + body_bytes
        pos = topic_at + 1 + buffer[topic_at]
        (properties_bytes,) = _I16.unpack_from(buffer, pos)
        pos += 2
    except (struct.error, IndexError) as error:
        raise MessageError(f"record at {at} is cut: {error}") from error
    end = at + total
    if body_bytes < 0 or properties_bytes < 0 or pos + properties_bytes != end or end > len(buffer):
        raise MessageError(
            f"record at {at}: its body of {body_bytes} and properties of {properties_bytes} bytes do not fit"
        )
    return bytes(buffer[pos:end])


def decode_records(buffer: Buffer, most: int = 2**31, *, check_crc: bool = False) -> list[Message]:
    """Decode the messages of a pull or query body, at most `most`. Raises MessageError."""
    return _decode(buffer, 0, most, check_crc=check_crc) if buffer else []


def encode_properties(properties: Mapping[str, str | None]) -> bytes:
    """Encode `name 0x01 value` pairs joined by 0x02, without a trailing separator; None values are skipped (MSG-01)."""
    return PAIR_SEPARATOR.join(
        f"{name}{NAME_SEPARATOR}{value}" for name, value in properties.items() if value is not None
    ).encode()


def decode_properties(raw: Buffer | str) -> dict[str, str]:
    """Decode properties by name. Entries with an empty name or value are dropped; a value may contain 0x01 (MSG-01).

    Raises MessageError when raw is not UTF-8.
    """
    try:
        text = raw if isinstance(raw, str) else bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"property string of {len(raw)} bytes is not UTF-8: {error}") from error
    properties = {}
    for pair in text.split(PAIR_SEPARATOR):
        name, separator, value = pair.partition(NAME_SEPARATOR)
        if name and separator and value:
            properties[name] = value
    return properties


class BatchItem(NamedTuple):
    """One message of a batch body: body, encoded properties, and the producer's flag."""

    body: bytes
    properties_raw: bytes = b""
    flag: int = 0


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Encode the body of a SEND_BATCH_MESSAGE request. Raises LocalProtocolError for properties that are too long."""
    parts: list[bytes] = []
    for item in items:
        body_bytes, properties_bytes = len(item.body), len(item.properties_raw)
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(f"properties of {properties_bytes} bytes, at most {PROPERTIES_BYTES_MAX} fit")
        parts.append(BATCH_HEAD.pack(BATCH_FIXED_BYTES + body_bytes + properties_bytes, 0, 0, item.flag, body_bytes))
        parts.append(item.body)
        parts.append(_I16.pack(properties_bytes))
        parts.append(item.properties_raw)
    return b"".join(parts)


def decode_batch(raw: bytes, most: int = 2**31) -> list[BatchItem]:
    """Decode the messages of a batch body. Raises MessageError when a length in it is wrong, or for more than `most` messages."""
    items: list[BatchItem] = []
    at, end = 0, len(raw)
    entry, new = _BATCH_ENTRY.unpack_from, tuple.__new__
    try:
        while at < end:
            total, flag, body_bytes = entry(raw, at)
            body_end = at + 20 + body_bytes
            if body_bytes < 0 or body_end + 2 > end:
                raise MessageError(f"batch entry at {at} claims a body of {body_bytes} bytes, {end - at - 20} are left")
            properties_bytes = raw[body_end] << 8 | raw[body_end + 1]
            stop = body_end + 2 + properties_bytes
            if properties_bytes > PROPERTIES_BYTES_MAX or stop > end:
                raise MessageError(
                    f"batch entry at {at} claims {properties_bytes} property bytes, {end - body_end - 2} are left"
                )
            if total != stop - at:
                raise MessageError(f"batch entry at {at} claims {total} bytes but its parts add up to something else")
            if len(items) >= most:
                raise MessageError(f"the batch holds more than {most} messages, send it in parts")
            items.append(new(BatchItem, (raw[at + 20 : body_end], raw[body_end + 2 : stop], flag)))
            at = stop
    except struct.error as error:
        raise MessageError(f"batch entry at {at} is cut: {error}") from error
    return items


def java_hash(text: str) -> int:
    """Java's String.hashCode: 32-bit signed over UTF-16 units (CQ-02, codeSet of subscriptions)."""
    value = 0
    if text.isascii():
        for byte in text.encode():
            value = (value * 31 + byte) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        for (unit,) in struct.iter_unpack(">H", raw):
            value = (value * 31 + unit) & 0xFFFFFFFF
    return value - 0x100000000 if value >= 0x80000000 else value


_COMPRESSED: Final = int(SysFlag.COMPRESSED)  # plain int: operators of enum flags take longer than inflating 1 KiB
_COMPRESSION_TYPES: Final = {0: SysFlag.ZLIB} | {int(kind): kind for kind in (SysFlag.ZLIB, SysFlag.LZ4, SysFlag.ZSTD)}


def compression_type(sys_flag: int) -> SysFlag | None:
    """Return ZLIB, LZ4 or ZSTD for a compressed body, None for an uncompressed one; type 0 with bit 0 set is zlib (MSG-07).

    Raises MessageError for a type that is not defined.
    """
    if not sys_flag & _COMPRESSED:
        return None
    kind = _COMPRESSION_TYPES.get(sys_flag & COMPRESSION_MASK)
    if kind is None:
        type_bits = sys_flag & COMPRESSION_MASK
        raise MessageError(f"compression type 0x{type_bits:03X} is unknown; allowed: 0x100 LZ4, 0x200 ZSTD, 0x300 ZLIB")
    return kind
