"""Entries whose body is one RocketMQ message: the physical offset inside it, the check at recovery, the no-op.

Source: spec 04 DL-B02..04, DL-X04, DL-X16.
"""

from __future__ import annotations

import struct
from typing import Final

from saturnmq.protocol.codes import SELF_TEST_TOPIC, SysFlag
from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.message import AT_PHYSICAL_OFFSET, Host, Message, decode_record, encode_record
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES

_OFFSET: Final = struct.Struct(">q")
_OFFSET_END: Final = AT_PHYSICAL_OFFSET + _OFFSET.size


def stamp_message(body: bytes, pos: int) -> bytes:
    """The message with its physical offset: that of the entry plus 48 (DL-B03). The same bytes reach every member."""
    return b"".join((body[:AT_PHYSICAL_OFFSET], _OFFSET.pack(pos + ENTRY_HEADER_BYTES), body[_OFFSET_END:]))


def message_is_good(body: memoryview) -> bool:
    """Whether a body is one whole message whose own CRC is right (DL-X16)."""
    try:
        return decode_record(body, 0, check_crc=True).store_bytes == len(body)
    except MessageError:
        return False


def noop_message(store_host: tuple[str, int], now_ms: int) -> bytes:
    """What a new leader appends to commit what is older: a rolled-back message without body, which no member dispatches.

    A Java member's dispatcher skips it for consume queue and index (DL-X04).
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
