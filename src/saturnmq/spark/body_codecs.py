"""Compression of message bodies by the sink. lz4 and zstd come from pyarrow, which Spark requires anyway.

Requirements: MSG-07.
"""

# LZ4 frame of one block, little-endian. Blocks are flagged independent: Java's reader accepts no others, and pyarrow's own
# frame writer makes linked ones.
#   at  type  field       meaning
#    0  u32   magic       0x184D2204
#    4  u8    flags       0x60: version 1, independent blocks, no checksums, no length
#    5  u8    block       0x70: blocks of up to 4 MiB
#    6  u8    check       0x73, of the two bytes before
#    7  u32   block_size  its highest bit: the block is not compressed
#   11        block
#    +  u32   end         0

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final

from saturnmq.client.compression import ZLIB_FLAGS
from saturnmq.protocol.codes import SysFlag

LEVEL: Final = 5
_HEAD: Final = struct.Struct("<IBBBI")
_MAGIC: Final = 0x184D2204
_UNCOMPRESSED: Final = 1 << 31
_END: Final = bytes(4)


def _zlib(body: bytes) -> bytes:
    return zlib.compress(body, LEVEL)


def _lz4(body: bytes) -> bytes:
    import pyarrow as pa

    block: bytes = pa.Codec("lz4_raw").compress(body, asbytes=True)
    size = len(block)
    if size >= len(body):
        block, size = body, len(body) | _UNCOMPRESSED
    return _HEAD.pack(_MAGIC, 0x60, 0x70, 0x73, size) + block + _END


def _zstd(body: bytes) -> bytes:
    import pyarrow as pa

    packed: bytes = pa.Codec("zstd").compress(body, asbytes=True)
    return packed


# option compress -> (compressor of a body of up to 4 MiB, sysFlag bits of its message)
CODECS: Final[dict[str, tuple[Callable[[bytes], bytes], int]]] = {
    "zlib": (_zlib, ZLIB_FLAGS),
    "lz4": (_lz4, int(SysFlag.COMPRESSED | SysFlag.LZ4)),
    "zstd": (_zstd, int(SysFlag.COMPRESSED | SysFlag.ZSTD)),
}
