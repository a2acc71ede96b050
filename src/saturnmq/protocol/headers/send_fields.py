"""Wire names of the send header: V1 (codes 10 and 324) has words, V2 (codes 310, 320 and 325) one letter per field."""

from __future__ import annotations

from typing import Final

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
