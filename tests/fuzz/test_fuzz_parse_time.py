"""Parsers of network bytes take time proportional to their input, whatever it contains.

Each input family below is built for the worst case of one parser. CPU time is compared between sizes, never with a fixed limit.

Requirements: LIM-03.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq.client.connection.routes import build_route
from saturnmq.client.trace import records
from saturnmq.config.settings import parse_properties
from saturnmq.filter import pull_filter_of
from saturnmq.filter.sql import compile_sql
from saturnmq.protocol import json_dialect
from saturnmq.protocol.bodies import HeartbeatData, RegisterBrokerBody, TopicRouteData
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Serialization
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.message import decode_batch, decode_properties, decode_records
from saturnmq.raft.wire import codec, push
from tolerantjson import tolerant_loads

SIZES = [2**power for power in range(7, 19)]
STEPS = 5  # the last doublings, where constant costs no longer matter
SLACK = 4.5  # n log n grows 1.4 times as fast as n over STEPS doublings, page faults of large lists made it 3.1, n ** 1.5 5.7 times
ATTEMPTS = 20
Parse = Callable[[bytes], object]


def json_frame(header: bytes) -> bytes:
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def binary_frame(entries: bytes) -> bytes:
    header = bytes(13) + (0).to_bytes(4, "big") + len(entries).to_bytes(4, "big") + entries
    kind = Serialization.ROCKETMQ.value << 24
    return (len(header) + 4).to_bytes(4, "big") + (kind | len(header)).to_bytes(4, "big") + header


def frame(data: bytes) -> object:
    return FrameDecoder().feed(data)


def filled(size: int, unit: bytes, head: bytes = b"", tail: bytes = b"") -> bytes:
    return head + unit * max(1, (size - len(head) - len(tail)) // len(unit)) + tail


def trace_records(data: bytes) -> object:
    return list(records.decode_records(data.decode()))


def order_route(data: bytes) -> object:
    return build_route("T", TopicRouteData(order_topic_conf=data.decode()))


HEADERS: dict[str, Callable[[int], bytes]] = {
    "escaped quotes after 17 objects": lambda size: filled(size, b'\\"', b"{" * 17 + b'"'),
    "quotes after 17 objects": lambda size: filled(size, b'"', b"{" * 17),
    "one backslash per unclosed string": lambda size: filled(size, b'"\\', b"{" * 17),
    "open objects": lambda size: filled(size, b"{"),
    "open arrays": lambda size: filled(size, b"["),
    "members named alike": lambda size: filled(size, b'"a":1,', b'{"extFields":{', b'"b":1}}'),
    "digits": lambda size: filled(size, b"9", b'{"code":', b"}"),
    "white space": lambda size: filled(size, b" ", b"{", b"}"),
    "escapes": lambda size: filled(size, b"\\u0041", b'{"remark":"', b'"}'),
}
BODIES: dict[str, Callable[[int], bytes]] = {
    **HEADERS,
    "single quotes": lambda size: filled(size, b"'"),
    "object keys": lambda size: filled(size, b"{a:1}:1,", b"{", b"{a:2}:1}"),
    "nested objects": lambda size: filled(size, b"{a:{b:{c:1}}},", b"[", b"1]"),
    "references": lambda size: filled(size, b'{"$ref":"$[0]"},', b"[1,", b"1]"),
    "chained references": lambda size: filled(size, b'{"$ref":"$.a.a.a.a.a"},', b'{"a":[', b"1]}"),
    "words": lambda size: filled(size, b"a ", b"["),
    "minus signs": lambda size: filled(size, b"-", b"["),
    "exponents": lambda size: filled(size, b"1e1,", b"[", b"1]"),
}
FILTERS: dict[str, Callable[[int], bytes]] = {
    "alternatives": lambda size: filled(size, b"a=1 OR ", tail=b"a=1"),
    "parentheses": lambda size: filled(size, b"("),
    "negations": lambda size: filled(size, b"NOT ", tail=b"a=1"),
    "names": lambda size: filled(size, b"a"),
    "strings": lambda size: filled(size, b"''", b"a='", b"'"),
    "unclosed strings": lambda size: filled(size, b"'", b"a=", b"x"),
    "comments": lambda size: filled(size, b"/*", b"a=1 "),
    "digits": lambda size: filled(size, b"1", b"a="),
    "list": lambda size: filled(size, b"'a',", b"a IN (", b"'b')"),
}


def configuration(data: bytes) -> object:
    """The body of codes 25 and 318."""
    return parse_properties(data.decode())


OTHERS: dict[str, tuple[Parse, Callable[[int], bytes]]] = {
    "binary header of empty entries": (frame, lambda size: binary_frame(filled(size, bytes(6)))),
    "binary header of one-byte keys": (frame, lambda size: binary_frame(filled(size, b"\0\1a\0\0\0\0"))),
    "properties": (decode_properties, lambda size: filled(size, b"a\1b\2")),
    "properties without value": (decode_properties, lambda size: filled(size, b"a\2")),
    "properties without end": (decode_properties, lambda size: filled(size, b"\1")),
    "batch of empty messages": (decode_batch, lambda size: filled(size, b"\0\0\0\x16" + bytes(18))),
    "records of size 0": (decode_records, lambda size: filled(size, bytes(4))),
    "topic list": (
        RegisterBrokerBody.decode,
        lambda size: filled(
            size, b'"t":{"topicName":"t"},', b'{"topicConfigSerializeWrapper":{"topicConfigTable":{', b"}}}"
        ),
    ),
    "configuration of escapes": (configuration, lambda size: filled(size, b"\\u0022")),
    "configuration of continued lines": (configuration, lambda size: filled(size, b"a\\\n")),
    "configuration of short lines": (configuration, lambda size: filled(size, b"a=1\n")),
    "configuration of blanks": (configuration, lambda size: filled(size, b" ", b"a")),
    "tags": (lambda data: pull_filter_of(data.decode()), lambda size: filled(size, b"a||")),
    "tags without text": (lambda data: pull_filter_of(data.decode()), lambda size: filled(size, b"|")),
    "trace records": (trace_records, lambda size: filled(size, b"SubAfter\1r\1i\x019\1true\1k\x010\2")),
    "trace records without end": (trace_records, lambda size: filled(size, b"SubAfter\1r\1i\x019\1true\1k\x010\1")),
    "order configuration": (order_route, lambda size: filled(size, b"b:0;")),
    "DLedger push without end": (push.decode_push, lambda size: filled(size, b"\0")),
    "DLedger push of zeros": (lambda data: codec.decode_request(50001, data), lambda size: filled(size, b'"', b"{")),
}


def cpu_ns(parse: Parse, data: bytes) -> int:
    """CPU nanoseconds of the fastest of several calls; a refusal is a result like any other.

    Without the garbage collector: what it costs depends on all that other tests have left in memory.
    """
    best = 0
    gc.disable()
    for _ in range(3):
        start = time.process_time_ns()
        with contextlib.suppress(SaturnError, ValueError):
            parse(data)
        spent = time.process_time_ns() - start
        best = min(best or spent, spent)
    gc.enable()
    return max(best, 1)


def assert_linear(parse: Parse, build: Callable[[int], bytes]) -> None:
    spent: list[int] = []
    for size in SIZES:
        data = build(size)
        spent.append(cpu_ns(parse, data))
        if len(spent) > STEPS:
            before = max(spent[-1 - STEPS], 20_000)  # below 20 us the clock decides
            for _ in range(ATTEMPTS):  # other load on this machine also costs CPU time, in caches and page faults
                if spent[-1] <= before * 2**STEPS * SLACK:
                    break
                spent[-1] = min(spent[-1], cpu_ns(parse, data))
            growth = spent[-1] / before
            assert growth <= 2**STEPS * SLACK, (
                f"{size} bytes took {growth:.0f} times as long as {size >> STEPS}: {spent}"
            )


@pytest.mark.parametrize("name", HEADERS)
def test_json_header_is_parsed_in_linear_time(name: str) -> None:
    assert_linear(frame, lambda size: json_frame(HEADERS[name](size)))


@pytest.mark.parametrize("parse", [json_dialect.loads, tolerant_loads], ids=["standard", "dialect"])
@pytest.mark.parametrize("name", BODIES)
def test_json_body_is_parsed_in_linear_time(name: str, parse: Parse) -> None:
    assert_linear(parse, BODIES[name])


@pytest.mark.parametrize("name", FILTERS)
def test_filter_is_compiled_in_linear_time(name: str) -> None:
    def compile_filter(data: bytes) -> Any:
        return compile_sql(data.decode())

    assert_linear(compile_filter, FILTERS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_body_of_other_formats_is_parsed_in_linear_time(name: str) -> None:
    assert_linear(*OTHERS[name])


def test_heartbeat_of_many_subscriptions_is_parsed_in_linear_time() -> None:
    member = b'{"topic":"t","subString":"*"},'
    head, tail = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[', b'{"topic":"u"}]}]}'
    assert_linear(HeartbeatData.decode, lambda size: filled(size, member, head, tail))
