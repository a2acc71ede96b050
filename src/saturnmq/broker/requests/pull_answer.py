"""The answer to a pull as the bytes of its frame: the records are copied once, from the log to where they are sent from.

Equal, byte for byte, to what `encode_frame` makes of the same fields. Source: spec 03 BP-05; spec 00 section 3.
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
_MARK: Final = 0x41424344  # where the opaque goes
_DIGITS_MAX: Final = 20  # of a 64-bit number with its sign
_LENGTHS: Final = tuple(_I32.pack(number) for number in range(_DIGITS_MAX + 1))


def fields(broker_id: int, next_offset: int, min_offset: int, max_offset: int) -> dict[str, str]:
    """extFields of every answer to a pull."""
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
    """The frame that answers request. offsets: next, min, max of the queue; buffers: the body in pieces."""
    body_bytes = sum(map(len, buffers))
    if request.serialization is _JSON:
        header = _json_pattern(code, remark, broker_id) % (request.opaque, *offsets)
        size = len(header)
        return b"".join((_PREFIX.pack(4 + size + body_bytes, size), header, *buffers))
    before, middle, to_next, to_min, to_max, fixed_bytes = _binary_parts(code, remark, broker_id)
    following, low, high = [b"%d" % offset for offset in offsets]
    ext_bytes = fixed_bytes + len(following) + len(low) + len(high)
    size = len(before) + 4 + len(middle) + 4 + ext_bytes
    return b"".join((
        _PREFIX.pack(4 + size + body_bytes, _BINARY_WORD | size), before, _I32.pack(request.opaque), middle, _I32.pack(ext_bytes),
        to_next, _LENGTHS[len(following)], following, to_min, _LENGTHS[len(low)], low, to_max, _LENGTHS[len(high)], high,
        *buffers,
    ))  # fmt: skip


def _sample(serialization: Serialization, code: int, remark: str, broker_id: int, opaque: int) -> bytes:
    """The header of an answer whose offsets are 0."""
    command = Command(
        code,
        ext=fields(broker_id, 0, 0, 0),
        opaque=opaque,
        flag=_RESPONSE,
        remark=remark,
        serialization=serialization,
    )
    return encode_head(command, 0)[8:]


@lru_cache(maxsize=256)
def _binary_parts(code: int, remark: str, broker_id: int) -> tuple[bytes, bytes, bytes, bytes, bytes, int]:
    """What stands before the opaque, from there to the length of extFields, between the offsets; bytes of extFields but these."""
    header = _sample(Serialization.ROCKETMQ, code, remark, broker_id, 0)
    middle_end = 17 + len(remark.encode())
    entries = header[middle_end + 4 :]
    ends = [entries.index(name) + len(name) for name in (b"nextBeginOffset", b"minOffset", b"maxOffset")]
    to_next, to_min, to_max = (
        entries[: ends[0]],
        entries[ends[0] + 5 : ends[1]],  # behind a length of 1 and the digit 0
        entries[ends[1] + 5 : ends[2]],
    )
    fixed_bytes = len(to_next) + len(to_min) + len(to_max) + 3 * 4
    return header[:5], header[9:middle_end], to_next, to_min, to_max, fixed_bytes


@lru_cache(maxsize=256)
def _json_pattern(code: int, remark: str, broker_id: int) -> bytes:
    """A header whose opaque and three offsets are %d."""
    header = _sample(_JSON, code, remark, broker_id, _MARK).replace(b"%", b"%%")
    for sample in (f'"opaque":{_MARK},', '"nextBeginOffset":"0"', '"minOffset":"0"', '"maxOffset":"0"'):
        number = str(_MARK) if sample.startswith('"opaque"') else "0"
        header = header.replace(sample.encode(), sample.replace(number, "%d").encode(), 1)
    return header
