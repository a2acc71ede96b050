"""consumerFilter.json as data. Written as the original lays it out: tabs, one member a line, the numbers of a list together.

    {"filterDataByTopic": {topic: {"topic": topic, "groupFilterData": {group: {
        "bloomFilterData": {"bitNum": m, "bitPos": [p, ...]}, "bornTime": ms, "clientVersion": ms, "consumerGroup": group,
        "dead": bool, "deadTime": ms (0 while alive), "expression": text, "expressionType": "SQL92", "topic": topic}}}}}

Source: spec 03 section 15.2, spec 02 section 15.
"""
# No postponed annotations: `body` reads them while the class is made.

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
    """One record. dead follows from the times; it is written, never believed."""

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
        """UTF-8, as the original lays it out."""
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
