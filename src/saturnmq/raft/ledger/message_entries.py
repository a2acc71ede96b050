"""Entries whose body is one RocketMQ message: setting its physical offset, checking it, and the no-op message.

Requirements: DL-B02..DL-B04, DL-X04, DL-X16, DUR-08, MSG-01.
"""

from __future__ import annotations

import struct
from typing import Final

from saturnmq.protocol.codes import SELF_TEST_TOPIC, SysFlag
from saturnmq.protocol.message import (
    HOSTS_V6,
    MESSAGE_MAGIC,
    RECORD_HEADS,
    TOPIC_BYTES_MAX,
    Host,
    Message,
    body_crc,
    encode_record,
    head_struct,
    position_of,
)
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES

_OFFSET: Final = struct.Struct(">q")
_OFFSET_START: Final = position_of("physical_offset")
_OFFSET_END: Final = _OFFSET_START + _OFFSET.size
_RECORD_HEAD: Final = head_struct("total_size", "magic", "body_crc", "sys_flag")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")


def stamp_message(body: bytes, pos: int) -> bytes:
    """Set the message's physical offset: `pos`, the entry's position, plus 48 (DL-B03). All members store the same bytes."""
    # The CRC of a message covers its body only, so it stays valid.
    return b"".join((body[:_OFFSET_START], _OFFSET.pack(pos + ENTRY_HEADER_BYTES), body[_OFFSET_END:]))


def message_is_good(body: memoryview) -> bool:
    """Whether a body is one whole message with a correct CRC (DL-X16): what `decode_record` accepts, without decoding it.

    Hot path: every entry is checked before a follower acknowledges it, and whenever it is read from disk.
    """
    try:
        total_size, magic, crc, sys_flag = _RECORD_HEAD.unpack_from(body)
        # Both host fields decide how long the head is.
        body_start = RECORD_HEADS[sys_flag & HOSTS_V6].size
        (body_bytes,) = _I32.unpack_from(body, body_start - 4)
        if magic != MESSAGE_MAGIC or total_size != len(body) or body_bytes < 0:
            return False
        body_end = body_start + body_bytes
        topic_bytes = body[body_end]
        topic_end = body_end + 1 + topic_bytes
        (properties_bytes,) = _I16.unpack_from(body, topic_end)
        # Only to see that it is UTF-8: `decode_record` would refuse it.
        str(body[body_end + 1 : topic_end], "utf-8")
    except (struct.error, IndexError, UnicodeDecodeError):
        return False
    if topic_bytes > TOPIC_BYTES_MAX or not 0 <= properties_bytes == total_size - topic_end - 2:
        return False
    return body_crc(body[body_start:body_end]) == int(crc)


def noop_message(store_host: tuple[str, int], now_ms: int) -> bytes:
    """The no-op that a new leader appends to commit older entries: a rolled-back message without body.

    No member dispatches it to consume queues and the index, neither ours nor Apache's (DL-X04).
    """
    host = Host(*store_host)
    return encode_record(
        Message(
            SELF_TEST_TOPIC,
            b"",
            sys_flag=SysFlag.ROLLBACK,
            born_timestamp_ms=now_ms,
            born_host=host,
            store_host=host,
            store_timestamp_ms=now_ms,
        )
    )
