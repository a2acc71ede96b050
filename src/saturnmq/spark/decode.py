"""Converts stored records to Arrow: back-to-back records of a block become record batches of the requested columns.

Fast path: numpy gathers the fixed-size part of all records at once, and Arrow slices texts and bodies out of the same buffer.
Blocks with IPv6 hosts or anything unusual take the slow path, record by record through `decode_record`, which reports what is
wrong. No length in a record is trusted. Layout: protocol/message.py. Does not import pyspark.

Memory is bounded by the decoded size: `decode_block` stops decompressing at DECOMPRESSED_BYTES and returns how many records it has
covered, properties become Python objects a part at a time, and `rebatched` cuts batches at BATCH_BYTES_MAX. The limit of one body
is that of client/compression.py.

Requirements: SRC-08, SRC-09, LIM-05.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from saturnmq.client.compression import decompress
from saturnmq.protocol.addresses import join_host_port
from saturnmq.protocol.codes import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from saturnmq.protocol.crc import crc32
from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.message import (
    MESSAGE_MAGIC,
    NAME_SEPARATOR,
    PAIR_SEPARATOR,
    RECORD_FIELDS,
    RECORD_FIXED_BYTES,
    RECORD_V4,
    Buffer,
    Host,
    Message,
    body_crc,
    decode_record,
    java_hash,
    position_of,
)
from saturnmq.spark.options import COLUMNS

_TIME: Final = pa.timestamp("us", tz="UTC")
_BY_NAME: Final[dict[str, pa.DataType]] = {
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "flag": pa.int32(),
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "body": pa.binary(),
    "physicalOffset": pa.int64(),
    "storeSize": pa.int32(),
    "sysFlag": pa.int32(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "bodyCrc": pa.int32(),
    "tagsCode": pa.int64(),
    "propertiesMap": pa.map_(pa.string(), pa.string()),
    "properties:map": pa.map_(pa.string(), pa.string()),
}
_FORMS: Final = ("properties:json", "properties:map")  # other formats of a column, named as by SourceOptions.form_of
TYPES: Final[dict[str, pa.DataType]] = {name: _BY_NAME.get(name, pa.string()) for name in (*COLUMNS, *_FORMS)}


def head_dtype(*names: str) -> np.dtype[Any]:
    """These fields of a record with IPv4 hosts, up to the end of the last; `born_ip` and `store_ip` include the port."""
    formats = [np.dtype("V8" if name.endswith("_ip") else f">{RECORD_FIELDS[name]}") for name in names]
    return np.dtype({"names": names, "formats": formats, "offsets": [position_of(name) for name in names]})


_HEAD: Final = head_dtype(*(name for name in RECORD_FIELDS if not name.endswith("_port")))
_HEAD_BYTES: Final = RECORD_V4.size
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024  # of a record batch, unless it is a single row (SRC-08)
DECOMPRESSED_BYTES: Final = 8 * 1024 * 1024  # a batch ends when its decompressed bodies have reached this size
_STEP_BYTES: Final = 1024 * 1024  # of raw properties that are Python objects at a time
_HEAD_RAW: Final = np.dtype(f"V{_HEAD_BYTES}")
_V6: Final = 0x30  # sysFlag bits of IPv6 born host and store host
_TRANSACTION: Final = 0xC
# Prepared (4) and rolled back (12) messages are hidden.
_VISIBLE: Final = (0, 8)  # transaction states: none, committed
HIDDEN_TOPICS: Final = frozenset({HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC})
_TOTAL: Final = struct.Struct(">i")
_WORD_BYTES: Final = 8
_CRC_MASK: Final = 0x7FFFFFFF  # MSG-06: 31 bits are stored
_HEAD_FIELDS: Final = {  # column -> field of the head
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "flag": "flag",
    "physicalOffset": "physical_offset",
    "storeSize": "total_size",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "bodyCrc": "body_crc",
}
_PROPERTY: Final = {"tags": "TAGS", "keys": "KEYS", "uniqKey": "UNIQ_KEY"}
Ints = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the schema of the columns, in the given order; all fields nullable."""
    return pa.schema([pa.field(name_of(name), TYPES[name], nullable=True) for name in columns])


def name_of(column: str) -> str:
    """Return a column's name without its format."""
    return column.partition(":")[0]


@dataclass(frozen=True)
class Selection:
    """Which records become rows: ranges of queue offsets and store times, and sets of allowed values.

    Queue offsets [begin, end), store times [start_ms, end_ms) in Unix ms. An empty set (None for queue_ids) allows every value.
    consumer_view drops what consumers never see: prepared and rolled back messages, and the topics that brokers use internally for
    transactions and delays.
    """

    begin: int = 0
    end: int = 2**63 - 1
    tags: frozenset[str] = frozenset()
    start_ms: int | None = None
    end_ms: int | None = None
    topics: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    uniq_keys: frozenset[str] = frozenset()
    queue_ids: frozenset[int] | None = None
    consumer_view: bool = False


def record_positions(buffer: bytes | memoryview) -> Ints:
    """Return where each record starts in a buffer of back-to-back records.

    Raises MessageError when a record does not end where the next begins.
    """
    at, end = 0, len(buffer)
    positions: list[int] = []
    unpack, add, last = _TOTAL.unpack_from, positions.append, end - RECORD_FIXED_BYTES
    # Bound names outside of the loop, which runs once per record.
    while at <= last:
        add(at)
        (total,) = unpack(buffer, at)
        # Zero or negative would never end the loop.
        if total < RECORD_FIXED_BYTES:
            raise MessageError(f"record at {at} claims {total} bytes")
        at += total
    if at > end:
        raise MessageError(
            f"record at {positions[-1]} claims {at - positions[-1]} bytes, {end - positions[-1]} are there"
        )
    # Fewer bytes are left than the smallest record has.
    if at != end:
        raise MessageError(f"a block of records ends inside a record at {at}")
    return np.array(positions, dtype=np.int64)


def decode_block(
    buffer: bytes | memoryview,
    columns: tuple[str, ...],
    broker: str | None,
    select: Selection,
    *,
    positions: Ints | None = None,
    check_crc: bool = False,
    decompressed: bool = True,
) -> tuple[pa.RecordBatch, int]:
    """Return the selected records of a block, in their order, and how many records of the block they cover.

    All records are covered unless their bodies decompress to more than DECOMPRESSED_BYTES. positions: where the records start, if
    that has been determined. Raises MessageError for records that do not parse, or with check_crc for a wrong CRC.
    """
    at = record_positions(buffer) if positions is None else positions
    block: _Fast | _Slow
    # None when any record of the block is unusual.
    fast = _Fast.of(buffer, at) if len(at) else None
    block = fast if fast is not None else _Slow([decode_record(buffer, int(p)) for p in at], at)
    if check_crc:
        block.check_crc()
    # Before the bodies: what is left out is not decompressed.
    block.select(select)
    bodies, covered = block.bodies(decompressed) if "body" in columns else None, len(at)
    # The limit of decompressed bytes has ended the batch early.
    if bodies is not None and len(bodies) < block.rows:
        # Rows that were left out before the next one count as covered.
        covered = int(np.searchsorted(at, block.position(len(bodies))))
        block.keep_first(len(bodies))
    arrays = []
    for name in columns:
        if name == "brokerName":
            # The broker's name is not stored in records.
            arrays.append(pa.repeat(pa.scalar(broker, type=pa.string()), block.rows))
        else:
            arrays.append(bodies if name == "body" else block.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns)), covered


def readable_parts(
    at: Ints, decode: Callable[[Ints], tuple[pa.RecordBatch, int]]
) -> Iterator[tuple[pa.RecordBatch | str, Ints]]:
    """Yield (record batch, positions of the records it covers), and (what is wrong, its position) for an unreadable record.

    decode: what `decode_block` returns for records that start at these positions. Unreadable records are isolated by bisection,
    with few decodings: usually only one is bad.
    """
    # All at once; the parts shrink only where it is needed.
    window = len(at)
    while len(at):
        part = at[:window]
        try:
            batch, covered = decode(part)
        except MessageError as error:
            # A single record: this one is unreadable.
            if len(part) == 1:
                yield str(error), part
            else:
                half = len(part) // 2
                yield from readable_parts(part[:half], decode)
                yield from readable_parts(part[half:], decode)
            at = at[len(part) :]
            continue
        yield batch, part[:covered]
        del batch  # otherwise in memory together with the next one (SCL-06)
        at = at[covered:]
        window = 2 * covered  # so that records are not parsed again for every part before them


class _Fast:
    """Fast path: records with IPv4 hosts and consistent lengths, converted without a loop over records."""

    def __init__(self, buffer: bytes | memoryview, at: Ints, head: Any, ends: tuple[Ints, Ints, Ints]) -> None:
        self._buffer = buffer
        self._at = at
        self._head = head
        self._body_end, self._topic_end, self._end = ends
        self._pairs: _Pairs | None = None

    @classmethod
    def of(cls, buffer: bytes | memoryview, at: Ints) -> _Fast | None:
        """Return the records, None when any of them is unusual or damaged."""
        raw = np.frombuffer(buffer, dtype=np.uint8)
        # Heads are read before lengths are checked: each must lie inside of the buffer.
        if int(at.min()) < 0 or int(at.max()) + RECORD_FIXED_BYTES > len(raw):
            return None
        # A strided view with a head at every byte: the only cost is the copy of 88 bytes for each row picked out of it.
        heads = np.ndarray((len(raw) - _HEAD_BYTES + 1,), dtype=_HEAD_RAW, buffer=buffer, strides=(1,))
        head = heads[at].view(_HEAD)
        total, body_bytes = head["total_size"].astype(np.int64), head["body_bytes"].astype(np.int64)
        # 64 bits: a damaged length must not overflow the sum.
        end = at + total
        body_end = at + _HEAD_BYTES + body_bytes
        if (
            np.any(head["magic"] != MESSAGE_MAGIC)
            or np.any(head["sys_flag"] & _V6)
            or np.any(total < RECORD_FIXED_BYTES)
            or int(end.max()) > len(raw)
            or np.any(body_bytes < 0)
            # The topic's length and that of the properties follow the body.
            or np.any(body_end + 3 > end)
        ):
            return None
        topic_bytes = raw[body_end]
        topic_end = body_end + 1 + topic_bytes
        # Java reads the length of the topic as a signed byte.
        if np.any(topic_bytes > 127) or np.any(topic_end + 2 > end):
            return None
        # Two bytes, big-endian.
        properties = (raw[topic_end].astype(np.int64) << 8) + raw[topic_end + 1]
        # The parts must fill the record.
        if np.any(topic_end + 2 + properties != end):
            return None
        return cls(buffer, at, head, (body_end, topic_end, end))

    @property
    def rows(self) -> int:
        return len(self._at)

    def check_crc(self) -> None:
        # Through a view: no body is copied.
        view = memoryview(self._buffer)
        begin, end = self._at + _HEAD_BYTES, self._body_end
        checksums = [crc32(view[a:b]) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
        wrong = np.flatnonzero((np.array(checksums, dtype=np.int64) & _CRC_MASK) != self._head["body_crc"])
        if len(wrong):
            first = int(wrong[0])
            raise MessageError(
                f"record at {self._at[first]}: body CRC is {checksums[first] & _CRC_MASK}, "
                f"the record says {self._head['body_crc'][first]}"
            )

    def select(self, want: Selection) -> None:
        # Cheapest first: what the head shows, then topic, then properties.
        offsets, times = self._head["queue_offset"], self._head["store_timestamp"]
        keep = (offsets >= want.begin) & (offsets < want.end)
        if want.start_ms is not None:
            keep &= times >= want.start_ms
        if want.end_ms is not None:
            keep &= times < want.end_ms
        if want.queue_ids is not None:
            # Numpy needs a sequence.
            keep &= np.isin(self._head["queue_id"], sorted(want.queue_ids))
        if want.consumer_view:
            keep &= np.isin(self._head["sys_flag"] & _TRANSACTION, _VISIBLE)
        # Before the columns of text are made.
        self._keep(keep)
        if want.consumer_view:
            self._keep(~_is_in(self.column("topic"), HIDDEN_TOPICS))
        for column, allowed in (("topic", want.topics), ("tags", want.tags), ("uniqKey", want.uniq_keys)):
            if allowed:
                self._keep(_is_in(self.column(column), allowed))
        if want.keys:
            texts = self.column("keys").to_pylist()
            self._keep(np.array([_has_key(text, want.keys) for text in texts], dtype=np.bool_))

    def _keep(self, mask: Mask) -> None:
        # The usual case copies nothing.
        if not mask.all():
            self._take(mask)

    def keep_first(self, rows: int) -> None:
        self._take(slice(rows))

    def _take(self, rows: Mask | slice) -> None:
        self._at, self._head, self._end = self._at[rows], self._head[rows], self._end[rows]
        self._body_end, self._topic_end = self._body_end[rows], self._topic_end[rows]
        # `_pairs` was built for all rows.
        self._pairs = None

    def position(self, row: int) -> int:
        return int(self._at[row])

    def column(self, name: str) -> pa.Array:
        head = self._head
        head_field = _HEAD_FIELDS.get(name)
        if head_field is not None:
            values = head[head_field]
            # Arrow takes the order of the machine only.
            return pa.array(values.astype(values.dtype.newbyteorder("=")))
        if name in ("bornTimestamp", "storeTimestamp"):
            # Stored in ms, the column has microseconds.
            times = head["born_timestamp" if name == "bornTimestamp" else "store_timestamp"].astype(np.int64) * 1000
            return pa.array(times).cast(_TIME)
        if name in ("bornHost", "storeHost"):
            return self._hosts(head["born_ip" if name == "bornHost" else "store_ip"])
        if name == "topic":
            return _texts(_cut(self._buffer, self._body_end + 1, self._topic_end))
        if name == "offsetMsgId":
            pairs = zip(head["store_ip"].tolist(), head["physical_offset"].tolist(), strict=True)
            return pa.array([offset_message_id(_host(host), offset) for host, offset in pairs], type=pa.string())
        if name == "tagsCode":
            return _hashes(self.column("tags").to_pylist())
        if self._pairs is None:
            self._pairs = _Pairs(_cut(self._buffer, self._topic_end + 2, self._end))
        if name == "properties":
            return _texts(self._pairs.raw)
        if name in ("propertiesMap", "properties:map"):
            return _maps(self._pairs.raw)
        if name == "properties:json":
            return _in_steps(self._pairs.raw, _json, pa.string())
        return self._pairs.value(_PROPERTY[name])

    def _hosts(self, packed: Any) -> pa.Array:
        # Few hosts send to a topic: each is formatted once.
        distinct, host_indexes = np.unique(np.frombuffer(packed.tobytes(), dtype=">u8"), return_inverse=True)
        names = [_host_text(_host(int(value).to_bytes(8, "big"))) for value in distinct]
        return pa.array(names, type=pa.string()).take(pa.array(host_indexes.astype(np.int64)))

    def bodies(self, decompressed: bool) -> pa.Array:
        """Return the bodies of all rows, or of the first ones when they decompress to more than DECOMPRESSED_BYTES."""
        begin, flags = self._at + _HEAD_BYTES, self._head["sys_flag"]
        # Stored as they are: slices of the buffer.
        if not decompressed or not np.any(flags & 1):
            return _cut(self._buffer, begin, self._body_end)
        view, rows = memoryview(self._buffer), zip(begin.tolist(), self._body_end.tolist(), flags.tolist(), strict=True)
        return pa.array(_decompressed_bodies((view[a:b], flag) for a, b, flag in rows), type=pa.binary())


class _Pairs:
    """The property strings of a block; looks up single properties without a loop over records."""

    def __init__(self, raw: pa.Array) -> None:
        self.raw = raw
        rows = len(raw)
        _, offsets, data = raw.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int32)[: rows + 1] if rows else np.zeros(1, dtype=np.int32)
        # Sums and differences in 64 bits.
        self._bounds = bounds.astype(np.int64)
        content = int(self._bounds[-1])
        padded = np.zeros(content + _WORD_BYTES, dtype=np.uint8)  # so that an 8-byte word can be read at every byte
        if data is not None:
            padded[:content] = np.frombuffer(data, dtype=np.uint8)[:content]
        self._data = padded
        # Pairs begin after a separator and at the start of a record's properties. No pair crosses records.
        begins = np.empty(content + 1, dtype=np.bool_)
        np.equal(padded[:content], ord(PAIR_SEPARATOR), out=begins[1:])
        # Also where the properties of the record before have no separator at their end.
        begins[self._bounds] = True
        starts = np.flatnonzero(begins)  # the last one is the end of the data
        # Without the separator.
        self._starts, self._ends = starts[:-1], starts[1:] - (padded[starts[1:] - 1] == ord(PAIR_SEPARATOR))
        starts = self._starts
        prefixes = np.ndarray((content + 1,), dtype="<u8", buffer=padded, strides=(1,))
        # The first eight bytes of each pair as one number.
        self._prefixes = prefixes[starts]

    def value(self, name: str) -> pa.Array:
        """Return the property of each record, null when it is missing or empty; the last of several wins, as in Java."""
        mark = name.encode() + NAME_SEPARATOR.encode()
        first = mark[:_WORD_BYTES]
        # Names of less than eight bytes leave the rest out.
        mask = (1 << 8 * len(first)) - 1
        # One comparison of words instead of one of texts.
        matches = np.flatnonzero((self._prefixes & np.uint64(mask)) == np.uint64(int.from_bytes(first, "little")))
        # The part of the name after its first eight bytes.
        for n in range(_WORD_BYTES, len(mark)):
            matches = matches[self._data[np.minimum(self._starts[matches] + n, len(self._data) - 1)] == mark[n]]
        begin, end = self._starts[matches] + len(mark), self._ends[matches]
        # An empty value counts as missing.
        some = end > begin
        begin, end = begin[some], end[some]
        rows = len(self._bounds) - 1
        # The usual case, such as UNIQ_KEY.
        if len(begin) == rows and np.all(begin > self._bounds[:-1]) and np.all(begin < self._bounds[1:]):
            return _texts(_cut(self._data, begin, end))  # every record has exactly one
        row = np.searchsorted(self._bounds, begin, side="right") - 1
        first_at, last_at = self._bounds[:-1].copy(), self._bounds[:-1].copy()
        # Of several in a record the last assignment stays.
        first_at[row], last_at[row] = begin, end
        absent = np.ones(rows, dtype=np.bool_)
        absent[row] = False
        return _texts(_cut(self._data, first_at, last_at, absent))


class _Slow:
    """Slow path: records decoded one by one by protocol/message.py."""

    def __init__(self, messages: list[Message], at: Ints) -> None:
        self._rows = list(zip(messages, at.tolist(), strict=True))

    @property
    def rows(self) -> int:
        return len(self._rows)

    def check_crc(self) -> None:
        for m, _ in self._rows:
            if body_crc(m.body) != m.body_crc:
                raise MessageError(f"message at {m.physical_offset}: body CRC does not fit")

    def select(self, want: Selection) -> None:
        self._rows = [
            (m, at)
            for m, at in self._rows
            if want.begin <= m.queue_offset < want.end
            and (want.start_ms is None or m.store_timestamp_ms >= want.start_ms)
            and (want.end_ms is None or m.store_timestamp_ms < want.end_ms)
            and (want.queue_ids is None or m.queue_id in want.queue_ids)
            and (not want.consumer_view or (m.sys_flag & _TRANSACTION in _VISIBLE and m.topic not in HIDDEN_TOPICS))
            and (not want.topics or m.topic in want.topics)
            and (not want.tags or _property(m, "TAGS") in want.tags)
            and (not want.uniq_keys or _property(m, "UNIQ_KEY") in want.uniq_keys)
            and (not want.keys or _has_key(_property(m, "KEYS"), want.keys))
        ]

    def keep_first(self, rows: int) -> None:
        self._rows = self._rows[:rows]

    def position(self, row: int) -> int:
        return int(self._rows[row][1])

    def bodies(self, decompressed: bool) -> pa.Array:
        """Return the bodies of all rows, or of the first ones when they decompress to more than DECOMPRESSED_BYTES."""
        if not decompressed:
            return pa.array([bytes(m.body) for m, _ in self._rows], type=pa.binary())
        return pa.array(_decompressed_bodies((m.body, m.sys_flag) for m, _ in self._rows), type=pa.binary())

    def column(self, name: str) -> pa.Array:
        getter = _GETTERS[name]
        return pa.array([getter(m) for m, _ in self._rows], type=TYPES[name])


def _cut(buffer: Any, begin: Ints, end: Ints, absent: Mask | None = None) -> pa.Array:
    """Return slices of a buffer as a binary array; begin and end must both ascend."""
    rows = len(begin)
    if not rows:
        return pa.array([], type=pa.binary())
    # Twice as many slices as rows: the odd ones are the gaps between.
    edges = np.empty(2 * rows, dtype=np.int32)
    edges[0::2], edges[1::2] = begin, end
    # No copy: Arrow slices the buffer, which it keeps alive.
    whole = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, [None, pa.py_buffer(edges), pa.py_buffer(buffer)])
    # The even slices, null where absent.
    return whole.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int64), mask=absent))


def _texts(raw: pa.Array) -> pa.Array:
    try:
        return raw.cast(pa.string())
    # Not UTF-8: rare, so that the check is left to Arrow.
    except pa.ArrowInvalid:
        values = [None if value is None else value.decode("utf-8", "replace") for value in raw.to_pylist()]
        return pa.array(values, type=pa.string())


def _hashes(tags: list[str | None]) -> pa.Array:
    """Return tags codes as stored in consume queues, 0 without a tag; hashed once per distinct tag, of which a topic has few."""
    code_by_tag = {tag: java_hash(tag or "") for tag in set(tags)}
    return pa.array([code_by_tag[tag] for tag in tags], type=pa.int64())


def _maps(raw: pa.Array) -> pa.Array:
    return _in_steps(raw, lambda value: list(pairs_of(value).items()), TYPES["propertiesMap"])


def _in_steps(raw: pa.Array, convert: Callable[[bytes], Any], kind: pa.DataType) -> pa.Array:
    """Convert properties through Python objects, which take many times their bytes: those of _STEP_BYTES at a time."""
    if raw.nbytes <= _STEP_BYTES or len(raw) < 2:
        # The slow step: each value becomes a Python object.
        return pa.array([convert(value) for value in raw.to_pylist()], type=kind)
    half = len(raw) // 2
    return pa.concat_arrays([_in_steps(part, convert, kind) for part in (raw[:half], raw[half:])])


def _json(raw: bytes) -> str:
    return json.dumps(pairs_of(raw), ensure_ascii=False)


def _is_in(column: pa.Array, allowed: frozenset[str]) -> Mask:
    # The same order in every task.
    matched = pc.is_in(column, value_set=pa.array(sorted(allowed), type=pa.string()))
    mask: Mask = matched.to_numpy(zero_copy_only=False)
    return mask


def _host(packed: bytes) -> Host:
    return Host(".".join(map(str, packed[:4])), int.from_bytes(packed[4:8], "big"))


def _host_text(host: Host) -> str:
    return join_host_port(*host)


def _has_key(text: str | None, keys: frozenset[str]) -> bool:
    """Whether one of the words of KEYS, which blanks separate, is in `keys`."""
    return text is not None and not keys.isdisjoint(text.split(" "))


def pairs_of(raw: bytes) -> dict[str, str]:
    """Parse properties by name; undecodable bytes are replaced, entries without a name or value are dropped."""
    properties = {}
    for pair in raw.decode("utf-8", "replace").split(PAIR_SEPARATOR):
        name, separator, value = pair.partition(NAME_SEPARATOR)
        if name and separator and value:
            properties[name] = value
    return properties


def _property(message: Message, name: str) -> str | None:
    return pairs_of(message.properties_raw).get(name)


def _decompressed_bodies(bodies: Iterable[tuple[Buffer, int]]) -> list[bytes]:
    """Decompress bodies, given with their system flags, until they have DECOMPRESSED_BYTES. Raises MessageError."""
    decompressed: list[bytes] = []
    size = 0
    for body, flag in bodies:
        try:
            decompressed.append(decompress(body, flag) if flag & 1 else bytes(body))
        except MessageError as error:
            raise MessageError(f"{error}; option decompress=false returns bodies as they are stored") from None
        size += len(decompressed[-1])
        # At least one body, however large.
        if size >= DECOMPRESSED_BYTES:
            break
    return decompressed


_GETTERS: Final[dict[str, Callable[[Message], Any]]] = {
    "topic": lambda m: m.topic,
    "queueId": lambda m: m.queue_id,
    "queueOffset": lambda m: m.queue_offset,
    "flag": lambda m: m.flag,
    "tags": lambda m: _property(m, "TAGS"),
    "keys": lambda m: _property(m, "KEYS"),
    "uniqKey": lambda m: _property(m, "UNIQ_KEY"),
    "properties": lambda m: m.properties_raw.decode("utf-8", "replace"),
    "bornTimestamp": lambda m: m.born_timestamp_ms * 1000,
    "storeTimestamp": lambda m: m.store_timestamp_ms * 1000,
    "physicalOffset": lambda m: m.physical_offset,
    "storeSize": lambda m: m.store_bytes,
    "sysFlag": lambda m: m.sys_flag,
    "reconsumeTimes": lambda m: m.reconsume_times,
    "bornHost": lambda m: _host_text(m.born_host),
    "storeHost": lambda m: _host_text(m.store_host),
    "preparedTransactionOffset": lambda m: m.prepared_transaction_offset,
    "bodyCrc": lambda m: m.body_crc,
    "offsetMsgId": lambda m: offset_message_id(m.store_host, m.physical_offset),
    "tagsCode": lambda m: java_hash(_property(m, "TAGS") or ""),
    "propertiesMap": lambda m: list(pairs_of(m.properties_raw).items()),
    "properties:map": lambda m: list(pairs_of(m.properties_raw).items()),
    "properties:json": lambda m: _json(m.properties_raw),
}


def rebatched(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most `rows` rows and BATCH_BYTES_MAX bytes; a larger row has its own. Empty batches are dropped."""
    for batch in batches:
        # A slice shares the memory of the batch.
        for at in range(0, batch.num_rows, rows):
            yield from _bounded(batch.slice(at, rows))
        # Not in memory together with the next one.
        del batch


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # A single row cannot be divided.
    if batch.num_rows < 2 or batch.nbytes <= BATCH_BYTES_MAX:
        yield batch
        return
    half = batch.num_rows // 2
    # By halves, since rows differ in size.
    yield from _bounded(batch.slice(0, half))
    yield from _bounded(batch.slice(half))


def joined(blocks: Sequence[bytes]) -> bytes:
    """Concatenate blocks of whole records."""
    # No copy of a single block.
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)
