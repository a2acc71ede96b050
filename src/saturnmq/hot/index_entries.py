"""Keys and entries of an index file: hashes of the keys of records, and entries with their slots.

Does what `MessageIndex.put_many` and `IndexFile.put_many` do (store/index/), byte for byte. `add_records` reads records in the log,
for an index that lags: it stops at anything that is no plain record in its place, which the reference (`IndexQueue`) reads. No
length is trusted. `index_entries.pxd` declares types for Cython.

Requirements: IX-02..IX-04.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from saturnmq.hot.numbers import int16, int32, int64
from saturnmq.protocol.codes import TRANSACTION_MASK, SysFlag
from saturnmq.protocol.message import (
    HOSTS_V6,
    MESSAGE_MAGIC,
    RECORD_FIXED_BYTES,
    TIME_END_MS,
    TOPIC_BYTES_MAX,
    position_of,
)

_UNIQUE_KEY = b"UNIQ_KEY\1"
_KEYS = b"KEYS\1"
_SIGN = 0x80000000
_U32 = 0xFFFFFFFF
_SPACE = 0x20
_HEADER_BYTES = 40
_SLOT_BYTES = 4
_ENTRY_BYTES = 20
_SECONDS_MAX = 0x7FFFFFFF
_WAITING_BYTES = 100  # memory that a waiting record takes beside its properties
_KEY_BYTES = 32  # what a further key weighs beside its text: 64 keys may have 127 bytes
_RECORD_BYTES_MIN = RECORD_FIXED_BYTES
_HEAD_BYTES = RECORD_FIXED_BYTES - 3
_AT_PHYSICAL, _AT_SYS_FLAG = position_of("physical_offset"), position_of("sys_flag")
_AT_STORE_MS, _AT_BODY_BYTES = position_of("store_timestamp"), position_of("body_bytes")
_MAGIC, _V6, _TOPIC_BYTES_MAX = MESSAGE_MAGIC, HOSTS_V6, TOPIC_BYTES_MAX
_TIME_END_MS = TIME_END_MS
_TRANSACTION, _ROLLBACK = int(TRANSACTION_MASK), int(SysFlag.ROLLBACK)


def add_hashes(
    items: list[tuple[int, int, int]],
    prefix: int,
    properties: bytes,
    physical_offset: int,
    store_ms: int,
    words_max: int,
) -> bool:
    """Append (hash, physical offset, store time in Unix ms) for each key of a record.

    prefix: the hash of `topic#`. False, without effect, if a key is not ASCII.
    """
    # For the way back: a key that is not ASCII takes the others of its record with it.
    count = len(items)
    at = _last(properties, _UNIQUE_KEY)
    if at >= 0:
        end = properties.find(b"\2", at)
        value = _hash(properties, at, len(properties) if end < 0 else end, prefix)
        if value < 0:
            return False
        items.append((value, physical_offset, store_ms))
    at = _last(properties, _KEYS)
    if at >= 0:
        end = properties.find(b"\2", at)
        if end < 0:
            end = len(properties)
        words = 0
        while at < end and words < words_max:
            if properties[at] == _SPACE:
                at += 1
                continue
            start = at
            while at < end and properties[at] != _SPACE:
                at += 1
            value = _hash(properties, start, at, prefix)
            if value < 0:
                del items[count:]
                return False
            items.append((value, physical_offset, store_ms))
            words += 1
    return True


def add_records(
    items: list[tuple[int, int, int]],
    data: Any,
    piece: tuple[int, int],
    at: int,
    skips_first: bool,
    prefix_of: Callable[[bytes], int],
    words_max: int,
    items_max: int,
    until: float,
) -> int:
    """As `add_hashes`, for the plain records in the log from position `at` on; returns that of the last one, -1 if there is none.

    data: a part of the log, which begins and ends at the positions in `piece`. skips_first: the first record is indexed already. It
    ends when there are items_max items, or at time.monotonic() `until`: pages that are not in memory take long.
    """
    start, end = piece
    last = -1
    topic = b""
    prefix = 0
    while at + _RECORD_BYTES_MIN <= end and len(items) < items_max:
        # Bytes, which `int32` needs: the log is a mapping.
        head = data[at - start : at - start + _HEAD_BYTES]
        size, body_bytes, flag = int32(head, 0), int32(head, _AT_BODY_BYTES), int32(head, _AT_SYS_FLAG)
        store_ms = int64(head, _AT_STORE_MS)
        if (
            int32(head, 4) != _MAGIC
            or size < _RECORD_BYTES_MIN
            or at + size > end
            or int64(head, _AT_PHYSICAL) != at
            or flag & _V6
            or store_ms < 0
            or store_ms >= _TIME_END_MS
            or body_bytes < 0
            or body_bytes > size - _RECORD_BYTES_MIN
        ):
            break
        tail = data[at - start + _HEAD_BYTES + body_bytes : at - start + size]
        topic_bytes = tail[0]
        properties_at = topic_bytes + 3
        if topic_bytes > _TOPIC_BYTES_MAX or properties_at > len(tail):
            break
        if int16(tail, topic_bytes + 1) != len(tail) - properties_at:
            break
        # A rolled-back message is not indexed, as in Apache RocketMQ.
        if flag & _TRANSACTION != _ROLLBACK and not (skips_first and last < 0):
            name = tail[1 : topic_bytes + 1]
            # Records of one topic follow each other often: its hash is kept.
            if name != topic:
                if not name.isascii():
                    break
                topic, prefix = name, prefix_of(name)
            if not add_hashes(items, prefix, tail[properties_at:], at, store_ms, words_max):
                break
        # Also for a record without keys, so that the index does not look at it again.
        last = at
        at += size
        if monotonic() >= until:
            break
    return last


def weight_of(properties: bytes, words_max: int) -> int:
    """Memory of a waiting record, bytes; more for one whose keys take long to index."""
    # Each key costs an entry, so a record with 64 short keys must not count as one small record.
    keys = properties.count(b" ") if b" " in properties else 0
    return len(properties) + _WAITING_BYTES + _KEY_BYTES * (keys if keys < words_max else words_max)


def weigh(records: list[Any], count_max: int, weight_max: int, words_max: int) -> tuple[int, int]:
    """Number and weight of the first records, up to the one that reaches the limit of either."""
    count = weight = 0
    while count < count_max and weight < weight_max:
        weight += weight_of(records[count][1], words_max)
        count += 1
    return count, weight


def _last(properties: bytes, name: bytes) -> int:
    """The start of the last non-empty value of a property; -1 if there is none."""
    at = properties.rfind(name)
    while at >= 0:
        value_at = at + len(name)
        # A match counts only where a property begins and has a value; else an earlier one may.
        if (at == 0 or properties[at - 1] == 2) and value_at < len(properties) and properties[value_at] != 2:
            return value_at
        at = properties.rfind(name, 0, value_at - 1)
    return -1


def _hash(text: bytes, at: int, end: int, value: int) -> int:
    """The hash of an entry (IX-03) for the key text[at:end]; -1 if it is not ASCII. value: the hash of what is before it."""
    for position in range(at, end):
        byte = text[position]
        if byte >= 0x80:
            return -1
        value = (value * 31 + byte) & _U32
    # Java's Math.abs of an int: of the lowest one it is negative, which Apache turns into 0 (IX-03).
    if value < _SIGN:
        return value
    return 0 if value == _SIGN else 0x100000000 - value


def put_entries(
    view: Any,
    items: list[tuple[int, int, int]],
    start: int,
    stop: int,
    count: int,
    shape: tuple[int, int],
    begin_ms: int,
) -> int:
    """Write items[start:stop] as the entries from number `count` on; returns how many slots were unused before.

    view: the mapping of the file. shape: its slots, and the position of entry 0.
    """
    slots, entries_at = shape
    used = 0
    at = entries_at + count * _ENTRY_BYTES
    for number in range(start, stop):
        value, physical_offset, store_ms = items[number]
        slot_at = _HEADER_BYTES + value % slots * _SLOT_BYTES
        first, second, third, fourth = view[slot_at], view[slot_at + 1], view[slot_at + 2], view[slot_at + 3]
        previous = first << 24 | second << 16 | third << 8 | fourth
        # A slot is 0, or holds what a crash left of entries beyond the count: both end the chain.
        if not 0 < previous < count:
            previous = 0
            used += 1
        seconds = (store_ms - begin_ms) // 1000 if 0 < begin_ms < store_ms else 0
        if seconds > _SECONDS_MAX:
            seconds = _SECONDS_MAX
        _put32(view, at, value)
        _put32(view, at + 4, physical_offset >> 32)
        _put32(view, at + 8, physical_offset & _U32)
        _put32(view, at + 12, seconds)
        _put32(view, at + 16, previous)
        # Last: no slot points to an entry that is not written.
        _put32(view, slot_at, count)
        at += _ENTRY_BYTES
        count += 1
    return used


def _put32(view: Any, at: int, value: int) -> None:
    view[at] = value >> 24 & 0xFF
    view[at + 1] = value >> 16 & 0xFF
    view[at + 2] = value >> 8 & 0xFF
    view[at + 3] = value & 0xFF
