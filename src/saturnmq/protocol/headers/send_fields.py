"""The send header: V1 (codes 10 and 324) has words as names of its fields, V2 (codes 310, 320 and 325) one letter per field.

Requirements: SND-01, REM-08.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.headers.numbers import int32, int32_or, int64

SEND_V1_BY_V2: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}
SEND_V2_BY_V1: Final = {v1: v2 for v2, v1 in SEND_V1_BY_V2.items()}
_V2: Final = {name: name for name in SEND_V1_BY_V2}


def send_names(code: int) -> Mapping[str, str]:
    """Wire names of a request code's send header, by their V2 names."""
    return SEND_V1_BY_V2 if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE) else _V2


class SendFields:
    """The extFields of a send, a batch or a reply, parsed once under either header.

    What every send needs is parsed at once, the rest where it is read. Raises KeyError with the wire name for an absent field,
    HeaderError for an invalid number.
    """

    __slots__ = (
        "_ext",
        "_names",
        "born_ms",
        "flag",
        "is_batch",
        "properties",
        "queue_id",
        "reconsume_times",
        "sys_flag",
        "topic",
    )

    def __init__(self, code: int, ext: Mapping[str, str]) -> None:
        self._ext = ext
        self._names = names = send_names(code)
        self.topic = ext[names["b"]]
        self.queue_id = int32(ext, names["e"])
        self.sys_flag = int32(ext, names["f"])
        self.born_ms = int64(ext, names["g"])
        self.flag = int32(ext, names["h"])
        self.properties = ext.get(names["i"]) or ""
        self.reconsume_times = int32_or(ext, names["j"], 0)
        self.is_batch = code == RequestCode.SEND_BATCH_MESSAGE or ext.get(names["m"]) == "true"

    @property
    def producer_group(self) -> str:
        return self._ext[self._names["a"]]

    @property
    def default_topic(self) -> str:
        """The topic whose settings a new topic gets."""
        return self._ext[self._names["c"]]

    @property
    def default_topic_queue_nums(self) -> int:
        return int32(self._ext, self._names["d"])

    @property
    def unit_mode(self) -> bool:
        return self._ext.get(self._names["k"]) == "true"

    def max_reconsume_times(self, default: int) -> int:
        """After how many attempts a message of a retry topic becomes a dead letter."""
        return int32_or(self._ext, self._names["l"], default)
