"""Compression of message bodies, as stated by sysFlag bits 0 and 8-10.

Requirements: PR-24, MSG-07, LIM-05.
"""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable
from typing import Any, Final

from saturnmq.extras import install_command
from saturnmq.protocol.codes import COMPRESSION_MASK, SysFlag
from saturnmq.protocol.errors import MessageError, SaturnError
from saturnmq.protocol.message import Buffer, compression_type

PLAIN_BYTES_MAX: Final = 16 * 1024 * 1024  # the limit of a frame; bounds decompression bombs (LIM-05)
ZLIB_LEVEL_MAX: Final = 9
ZSTD_LEVEL_MAX: Final = 22
ZLIB_FLAGS: Final = int(SysFlag.COMPRESSED | SysFlag.ZLIB)  # 0x301


# compress_type -> sysFlag bits of a message that is compressed so
COMPRESSION_FLAGS: Final = {
    "zlib": ZLIB_FLAGS,
    "lz4": int(SysFlag.COMPRESSED | SysFlag.LZ4),
    "zstd": int(SysFlag.COMPRESSED | SysFlag.ZSTD),
}


def compressor(kind: str, level: int) -> Callable[[bytes], bytes]:
    """The function that compresses bodies. lz4 ignores level, as in Apache RocketMQ; Java reads independent blocks only.

    Raises SaturnError if the package for lz4 or zstd is not installed.
    """
    if kind == "lz4":
        return functools.partial(_extra("lz4.frame", "compress_type is lz4").compress, block_linked=False)
    if kind == "zstd":
        compress: Callable[[bytes], bytes] = (
            _extra("zstandard", "compress_type is zstd").ZstdCompressor(level=level).compress
        )
        return compress
    return lambda body: zlib.compress(body, level)


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
            decompressed: bytes = machine.decompress(body, bytes_max + 1)
            if machine.eof and len(decompressed) <= bytes_max:
                return decompressed
            return _checked("zlib", body, decompressed, bytes_max, complete=machine.eof)
        if kind is SysFlag.LZ4:
            machine = _extra("lz4.frame", "the message is compressed with lz4").LZ4FrameDecompressor()
            decompressed = machine.decompress(body, max_length=bytes_max + 1)
            return _checked("lz4", body, decompressed, bytes_max, complete=machine.eof)
        return _zstd(bytes(body), bytes_max)
    except SaturnError:
        raise
    except (zlib.error, RuntimeError, ValueError, OSError) as error:
        raise MessageError(f"compressed body (0x{sys_flag & COMPRESSION_MASK:03X}) does not unpack: {error}") from error


def _zstd(body: bytes, bytes_max: int) -> bytes:
    zstandard = _extra("zstandard", "the message is compressed with zstandard")
    machine = zstandard.ZstdDecompressor()
    try:
        with machine.stream_reader(body) as reader:  # bounded, but silent about a body that ends early
            decompressed: bytes = reader.read(bytes_max + 1)
        if len(decompressed) > bytes_max:
            return _checked("zstd", body, decompressed, bytes_max, complete=False)
        declared = zstandard.frame_content_size(body) if body else 0
        if declared > 0:
            return _checked("zstd", body, decompressed, bytes_max, complete=len(decompressed) == declared)
        whole = machine.decompressobj()  # its output is `decompressed`, whose size is known by now
        whole.decompress(body)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return _checked("zstd", body, decompressed, bytes_max, complete=whole.eof)


def _checked(name: str, body: Buffer, decompressed: bytes, bytes_max: int, *, complete: bool) -> bytes:
    if len(decompressed) > bytes_max:
        raise MessageError(
            f"{name} body of {len(body)} bytes decompresses to more than {bytes_max} bytes, the largest frame"
        )
    if not complete:
        raise MessageError(
            f"{name} body of {len(body)} bytes is cut: it ends after {len(decompressed)} decompressed bytes"
        )
    return decompressed


def _extra(module: str, need: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise SaturnError(
            f"{need}, and package {package} is not installed",
            hint=f"Install it: {install_command('compression')}",
        ) from error
