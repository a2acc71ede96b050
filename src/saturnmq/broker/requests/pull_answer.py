"""Encodes responses to pulls directly as frames; records are copied once, from the log into the send buffer.

The frame is byte for byte what `encode_frame` makes of the same fields.

Requirements: BP-05.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from saturnmq.protocol.codes import CommandFlag
from saturnmq.protocol.frames.command import Command, Serialization, encode_head

_JSON: Final = Serialization.JSON
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_PREFIX: Final = struct.Struct(">iI")
_I32: Final = struct.Struct(">i")
_BINARY_WORD: Final = int(Serialization.ROCKETMQ) << 24
_MARK: Final = 0x41424344  # placeholder of the opaque
_DIGITS_MAX: Final = 20  # of a 64-bit number with sign
_LENGTHS: Final = tuple(_I32.pack(number) for number in range(_DIGITS_MAX + 1))


def fields(broker_id: int, next_offset: int, min_offset: int, max_offset: int) -> dict[str, str]:
    """extFields of every pull response."""
    return {
        "suggestWhichBrokerId": str(broker_id),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
    }


def frame(
    request: Command,
    code: int,
    remark: str,
    broker_id: int,
    offsets: tuple[int, int, int],
    buffers: Sequence[bytes | memoryview] = (),
) -> bytes:
    """Encode the response to a request. offsets: next, min and max of the queue. buffers: pieces of the body."""
    body_bytes = sum(map(len, buffers))
    head = frame_head(request.serialization, request.opaque, code, remark, broker_id, offsets, body_bytes)
    return b"".join((head, *buffers))


def frame_head(
    serialization: Serialization,
    opaque: int,
    code: int,
    remark: str,
    broker_id: int,
    offsets: tuple[int, int, int],
    body_bytes: int,
) -> bytes:
    """What precedes the body in the response to a request of this serialization and opaque; see `frame`."""
    # `is`: an enum member.
    if serialization is _JSON:
        header = _json_pattern(code, remark, broker_id) % (opaque, *offsets)
        size = len(header)
        return _PREFIX.pack(4 + size + body_bytes, size) + header
    before, middle, to_next, to_min, to_max, fixed_bytes = _binary_parts(code, remark, broker_id)
    following, low, high = [b"%d" % offset for offset in offsets]
    ext_bytes = fixed_bytes + len(following) + len(low) + len(high)
    size = len(before) + 4 + len(middle) + 4 + ext_bytes
    return b"".join((
        _PREFIX.pack(4 + size + body_bytes, _BINARY_WORD | size), before, _I32.pack(opaque), middle, _I32.pack(ext_bytes),
        to_next, _LENGTHS[len(following)], following, to_min, _LENGTHS[len(low)], low, to_max, _LENGTHS[len(high)], high,
    ))  # fmt: skip


def _sample(serialization: Serialization, code: int, remark: str, broker_id: int, opaque: int) -> bytes:
    """The header of a response whose offsets are 0."""
    command = Command(
        code,
        ext=fields(broker_id, 0, 0, 0),
        opaque=opaque,
        flag=_RESPONSE,
        remark=remark,
        serialization=serialization,
    )
    # Without the two length words, which depend on the body.
    return encode_head(command, 0)[8:]


@lru_cache(maxsize=256)
def _binary_parts(code: int, remark: str, broker_id: int) -> tuple[bytes, bytes, bytes, bytes, bytes, int]:
    """Parts of a binary header: before the opaque, between opaque and extFields length, and up to each of the three offsets.

    The last item is the length of extFields without the digits of the offsets.
    """
    header = _sample(Serialization.ROCKETMQ, code, remark, broker_id, 0)
    # Fixed part of a binary header up to the remark's length, and the remark.
    middle_end = 17 + len(remark.encode())
    entries = header[middle_end + 4 :]
    ends = [entries.index(name) + len(name) for name in (b"nextBeginOffset", b"minOffset", b"maxOffset")]
    to_next, to_min, to_max = (
        entries[: ends[0]],
        entries[ends[0] + 5 : ends[1]],  # skips the length (1) and the digit 0 of the previous offset
        entries[ends[1] + 5 : ends[2]],
    )
    fixed_bytes = len(to_next) + len(to_min) + len(to_max) + 3 * 4
    return header[:5], header[9:middle_end], to_next, to_min, to_max, fixed_bytes


@lru_cache(maxsize=256)
def _json_pattern(code: int, remark: str, broker_id: int) -> bytes:
    """JSON header with %d for opaque and the three offsets."""
    # A percent sign in a remark must survive the formatting.
    header = _sample(_JSON, code, remark, broker_id, _MARK).replace(b"%", b"%%")
    for sample in (f'"opaque":{_MARK},', '"nextBeginOffset":"0"', '"minOffset":"0"', '"maxOffset":"0"'):
        number = str(_MARK) if sample.startswith('"opaque"') else "0"
        header = header.replace(sample.encode(), sample.replace(number, "%d").encode(), 1)
    return header
