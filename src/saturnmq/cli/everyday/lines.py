"""Lines of standard input, as they arrive, in bounded memory.

A terminal or pipe is read when the event loop reports it as readable, so that Ctrl-C interrupts a read at once; a file, which
never waits, is read directly.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Final

from saturnmq.protocol.errors import ConfigError

_READ_BYTES: Final = 256 * 1024


async def chunks(descriptor: int) -> AsyncGenerator[bytes, None]:
    """The bytes of a file descriptor until its end, at most 256 KiB at a time."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
        waits = True
    except (PermissionError, NotImplementedError):  # a file: epoll refuses it
        waits = False
    try:
        while True:
            if waits:
                await readable.wait()
                readable.clear()
            data = os.read(descriptor, _READ_BYTES)
            if not data:
                return
            yield data
            if not waits:
                await asyncio.sleep(0)
    finally:
        if waits:
            loop.remove_reader(descriptor)


async def lines(descriptor: int, bytes_max: int) -> AsyncGenerator[list[bytes], None]:
    """Lists of lines without their line ends; a list holds what one read completed. Raises ConfigError for a longer line."""
    partial_line, number = b"", 0
    async for data in chunks(descriptor):
        *complete, partial_line = (partial_line + data).split(b"\n")
        number += len(complete)
        if len(partial_line) > bytes_max:
            raise ConfigError(f"line {number + 1} of standard input has more than {bytes_max} bytes")
        if complete:
            yield [line.removesuffix(b"\r") for line in complete]
    if partial_line:
        yield [partial_line]


async def whole(descriptor: int, bytes_max: int) -> bytes:
    """All of standard input. Raises ConfigError if it is larger."""
    parts, size = [], 0
    async for data in chunks(descriptor):
        parts.append(data)
        size += len(data)
        if size > bytes_max:
            raise ConfigError(f"standard input has more than {bytes_max} bytes, the limit of one message")
    return b"".join(parts)
