"""Compression of message bodies, as stated by sysFlag bits 0 and 8-10.

Requirements: PR-24, MSG-07, LIM-05.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Final

from saturnmq.protocol.codes import COMPRESSION_MASK, SysFlag
from saturnmq.protocol.errors import MessageError, SaturnError
from saturnmq.protocol.message import Buffer, compression_type

PLAIN_BYTES_MAX: Final = 16 * 1024 * 1024  # the limit of a frame; bounds decompression bombs (LIM-05)
ZLIB_FLAGS: Final = int(SysFlag.COMPRESSED | SysFlag.ZLIB)  # 0x301


def compress(body: bytes, level: int) -> bytes:
    """Compress with zlib; the message's sysFlag then gets ZLIB_FLAGS."""
    return zlib.compress(body, level)


def decompress(body: Buffer, sys_flag: int, *, bytes_max: int = PLAIN_BYTES_MAX) -> bytes:
    """Decompress a stored body. Raises MessageError for damaged data or a result of more than bytes_max bytes.

    Raises SaturnError if the package for lz4 or zstd is not installed.
    """
    kind = compression_type(sys_flag)
    if kind is None:
        return bytes(body)
    try:
        if kind is SysFlag.ZLIB:
            machine: Any = zlib.decompressobj()
            return _checked("zlib", body, machine, machine.decompress(body, bytes_max + 1), bytes_max)
        if kind is SysFlag.LZ4:
            machine = _extra("lz4.frame").LZ4FrameDecompressor()
            return _checked("lz4", body, machine, machine.decompress(body, max_length=bytes_max + 1), bytes_max)
        with _extra("zstandard").ZstdDecompressor().stream_reader(bytes(body)) as reader:
            plain: bytes = reader.read(bytes_max + 1)
        if len(plain) > bytes_max:
            raise MessageError(_too_long("zstd", body, bytes_max))
        return plain
    except SaturnError:
        raise
    except (zlib.error, RuntimeError, ValueError, OSError) as error:
        raise MessageError(f"compressed body (0x{sys_flag & COMPRESSION_MASK:03X}) does not unpack: {error}") from error


def _checked(name: str, body: Buffer, machine: Any, plain: bytes, bytes_max: int) -> bytes:
    if len(plain) > bytes_max:
        raise MessageError(_too_long(name, body, bytes_max))
    if not machine.eof:
        raise MessageError(f"{name} body of {len(body)} bytes is cut: it ends after {len(plain)} decompressed bytes")
    return plain


def _too_long(name: str, body: Buffer, bytes_max: int) -> str:
    return f"{name} body of {len(body)} bytes decompresses to more than {bytes_max} bytes, the largest frame"


def _extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SaturnError(
            f"the message is compressed with {module.partition('.')[0]}",
            hint="Install it: pip install 'saturnmq[compression]'.",
        ) from error
