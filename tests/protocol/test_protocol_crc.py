"""CRC-32 by the processor's instruction and by zlib are one."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from saturnmq.protocol import crc

BUFFERS = st.sampled_from((bytes, bytearray, memoryview))


@given(st.binary(max_size=3000), BUFFERS, st.integers(0, 64))
@example(b"", bytes, 0)
@example(b"123456789", bytes, 0)
@example(bytes(70_000), memoryview, 3)
def test_every_buffer_has_the_crc_that_zlib_finds(data: bytes, kind: type, at: int) -> None:
    assert crc.crc32(kind(data)) == zlib.crc32(data)
    assert crc.crc32(memoryview(data)[at:]) == zlib.crc32(data[at:]), "at any alignment"
    assert crc.crc32(data[at:], crc.crc32(data[:at])) == zlib.crc32(data)


def test_zlib_is_used_where_isal_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert importlib.reload(crc).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(crc)
