"""The tolerant reader of the JSON dialect, also for text that `loads` gives to the standard parser."""

from __future__ import annotations

from typing import Any

from saturnmq.protocol.json_dialect import _Reader, _text_of


def tolerant_loads(data: bytes | bytearray | str) -> Any:
    return _Reader(_text_of(data)).document()
