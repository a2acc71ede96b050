"""The file consumerFilter.json, in Apache RocketMQ's layout: tabs, one member per line, lists of numbers on one line.

    {"filterDataByTopic": {topic: {"topic": topic, "groupFilterData": {group: {
        "bloomFilterData": {"bitNum": m, "bitPos": [p, ...]}, "bornTime": ms, "clientVersion": ms, "consumerGroup": group,
        "dead": bool, "deadTime": ms (0 while alive), "expression": text, "expressionType": "SQL92", "topic": topic}}}}}

See docs/spec/03 section 15.2 and docs/spec/02 section 15.
"""
# No `from __future__ import annotations`: `body` evaluates the annotations when it creates the class.

from collections.abc import Iterable, Iterator
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


def file_pieces(topics: Iterable[tuple[str, Iterable[ConsumerFilterData]]]) -> Iterator[bytes]:
    """The file as UTF-8 in Apache RocketMQ's layout, in pieces of one record; topics: each with its records, at least one."""
    yield b'{\n\t"filterDataByTopic":'
    mark = "{"
    for topic, records in topics:
        name = dumps(topic).decode()
        yield f'{mark}\n\t\t{name}:{{\n\t\t\t"groupFilterData":'.encode()
        mark = "{"
        for record in records:
            lines = "".join(_lines(record.to_json(), "\t\t\t\t"))
            yield f"{mark}\n\t\t\t\t{dumps(record.consumer_group).decode()}:{lines}".encode("utf-8", "replace")
            mark = ","
        yield f'\n\t\t\t}},\n\t\t\t"topic":{name}\n\t\t}}'.encode()
        mark = ","
    yield b"{}\n}" if mark == "{" else b"\n\t}\n}"


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
