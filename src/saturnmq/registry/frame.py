"""The reference to a schema that a message carries: the frame before the value, or the header beside it. Pure.

Facts from confluent-kafka 2.16.1, `schema_registry/common/serde.py`, and Confluent's documentation of its wire format. A Kafka
header is bytes and a property of a message is text, so the property has the header's bytes in hexadecimal.

Requirements: API-08.
"""

# Reference, big-endian. The frame: before the value. The header: no other bytes.
#   at  type    field     meaning
#    0  u8      magic     0: id follows; 1: guid follows
#    1  u32     id        of the schema in this registry; u8[16] guid: of the schema in every registry
#    +  varint  count     Protobuf only: length of the path to the message type; 0 stands for the path (0)
#    +  varint  index...  of the message in its file, then of each message nested in it; zigzag, as the count

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from uuid import UUID

from saturnmq.errors import DecodeError

HEADER: Final = "__value_schema_id"
PROTOBUF: Final = "PROTOBUF"
_ID: Final = struct.Struct(">BI")
_GUID_BYTES: Final = 17
_PATH_MAX: Final = 32  # levels of nested messages
_VARINT_BYTES_MAX: Final = 5


class SchemaReference(NamedTuple):
    """An id of one registry or a GUID, and in Protobuf the path to the message type in the schema."""

    key: int | UUID
    path: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"id {self.key}" if isinstance(self.key, int) else f"GUID {self.key}"

    def to_bytes(self) -> bytes:
        key = _ID.pack(0, self.key) if isinstance(self.key, int) else b"\x01" + self.key.bytes
        if not self.path:
            return key
        numbers = (0,) if self.path == (0,) else (len(self.path), *self.path)
        return key + b"".join(map(_varint, numbers))


def read_reference(data: bytes, kind: str) -> tuple[SchemaReference, bytes]:
    """Return the reference at the beginning of data and the bytes after it. kind: type of the schema. Raises DecodeError."""
    magic = data[:1]
    if magic == b"\x00" and len(data) >= _ID.size:
        key: int | UUID = _ID.unpack_from(data)[1]
        at = _ID.size
    elif magic == b"\x01" and len(data) >= _GUID_BYTES:
        key, at = UUID(bytes=data[1:_GUID_BYTES]), _GUID_BYTES
    else:
        raise DecodeError(
            f"no reference to a schema: {len(data)} bytes that begin with 0x{data[:8].hex()}, must be 0x00 and an id of 4 bytes, "
            "or 0x01 and a GUID of 16 bytes"
        )
    path: tuple[int, ...] = ()
    if kind == PROTOBUF:
        count, at = _read_varint(data, at)
        if not 0 <= count <= _PATH_MAX:
            raise DecodeError(f"the path to the Protobuf message has {count} indexes, must be 0..{_PATH_MAX}")
        indexes = []
        for _ in range(count):
            index, at = _read_varint(data, at)
            indexes.append(index)
        path = tuple(indexes) or (0,)
    return SchemaReference(key, path), data[at:]


def read_header(text: str, kind: str) -> SchemaReference:
    """Return the reference in the property HEADER. Raises DecodeError."""
    try:
        reference, behind = read_reference(bytes.fromhex(text), kind)
    except (ValueError, DecodeError) as error:
        raise DecodeError(
            f"property {HEADER}={text!r:.80} is no reference to a schema in hexadecimal: {error}"
        ) from None
    if behind:
        raise DecodeError(f"property {HEADER}={text!r:.80} has {len(behind)} bytes behind the reference")
    return reference


def _varint(number: int) -> bytes:
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + shift + 1
    raise DecodeError("the path to the Protobuf message ends early or has an index of more than 5 bytes")
