"""The file consumerFilter.json, in Apache RocketMQ's layout: tabs, one member per line, lists of numbers on one line.

    {"filterDataByTopic": {topic: {"topic": topic, "groupFilterData": {group: {
        "bloomFilterData": {"bitNum": m, "bitPos": [p, ...]}, "bornTime": ms, "clientVersion": ms, "consumerGroup": group,
        "dead": bool, "deadTime": ms (0 while alive), "expression": text, "expressionType": "SQL92", "topic": topic}}}}}

See docs/spec/03 section 15.2 and docs/spec/02 section 15.
"""
# No `from __future__ import annotations`: `body` evaluates the annotations when it creates the class.

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from saturnmq.protocol.bodies.fields import Body, body
from saturnmq.protocol.json_dialect import dumps


@body()
class BloomFilterData(Body):
    """Positions of one subscription in bit maps of bit_num bits."""

    bit_pos: list[int] = field(default_factory=list)
    bit_num: int = 0


@body()
class ConsumerFilterData(Body):
    """One record. `dead` is derived from the times: it is written, but ignored on reading."""

    consumer_group: str
    topic: str
    expression: str
    expression_type: str
    born_time: int = 0
    dead_time: int = 0
    dead: bool = False
    client_version: int = 0
    bloom_filter_data: BloomFilterData | None = None


@body()
class FilterDataMapByTopic(Body):
    """The records of a topic by group."""

    topic: str
    group_filter_data: dict[str, ConsumerFilterData] = field(default_factory=dict)


@body()
class ConsumerFilterFile(Body):
    """The file: records by topic."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode as UTF-8 in Apache RocketMQ's layout."""
        return "".join(_lines(self.to_json(), "")).encode("utf-8", "replace")


def _lines(value: Any, indent: str) -> Iterator[str]:
    if type(value) is not dict or not value:
        yield dumps(value).decode()
        return
    inner = indent + "\t"
    mark = "{"
    for name, member in value.items():
        yield f"{mark}\n{inner}{dumps(name).decode()}:"
        yield from _lines(member, inner)
        mark = ","
    yield f"\n{indent}}}"
