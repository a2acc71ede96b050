"""Scans of a topic and what they look for: bounds of the span, limits, following, silent brokers, and each condition by itself."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, cast

import pytest
from browsing import Times, run

from saturnmq.admin import Admin
from saturnmq.client.codecs import BytesCodec
from saturnmq.client.message import Message
from saturnmq.client.puller.puller import PullResult, PullStatus
from saturnmq.console import scanning
from saturnmq.console.conditions import BODY_BYTES_MAX, Conditions, parse_conditions, parse_path
from saturnmq.console.forms import WrongField
from saturnmq.console.scanning import BATCH, NewestScan, ScanRange, TopicScan
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.message import Message as Record
from saturnmq.protocol.message import decode_record, encode_properties, encode_record
from saturnmq.protocol.offsets import QueueOffset


class Topic:
    """A topic in memory: for each queue its broker, first offset, and the store times of its messages, whose bodies are times."""

    def __init__(self, *queues: tuple[str, int, list[int]]) -> None:
        self.queues = [(MessageQueue("T", broker, number), first, times)
                       for number, (broker, first, times) in enumerate(queues)]  # fmt: skip
        self.silent: set[str] = set()
        self.pulls: list[tuple[int, int]] = []
        self.expressions: set[str] = set()

    def _of(self, queue: MessageQueue) -> tuple[int, list[int]]:
        if queue.broker_name in self.silent:
            raise SaturnError("no answer")
        return next((first, times) for own, first, times in self.queues if own == queue)

    async def refresh(self, topic: str) -> list[MessageQueue]:
        return [queue for queue, _, _ in self.queues]

    async def max_offset(self, queue: MessageQueue) -> int:
        first, times = self._of(queue)
        return first + len(times)

    async def min_offset(self, queue: MessageQueue) -> int:
        return self._of(queue)[0]

    async def offset_by_time(self, queue: MessageQueue, ms: int) -> int:
        first, times = self._of(queue)
        return first + min(bisect_left(times, ms), max(len(times) - 1, 0))

    async def pull(self, queue: MessageQueue, offset: int, *, max_count: int, expression: str) -> PullResult:
        first, times = self._of(queue)
        self.pulls.append((queue.queue_id, offset))
        self.expressions.add(expression)
        end = first + len(times)
        bounds = QueueOffset(first), QueueOffset(end)
        if offset < first:
            return PullResult(PullStatus.OFFSET_ILLEGAL, bounds[0], *bounds)
        if offset >= end:
            return PullResult(PullStatus.NO_NEW_MESSAGE, QueueOffset(offset), *bounds)
        records: list[bytes] = []
        while offset < end and len(records) < max_count:
            at = times[offset - first]
            if expression != "tens" or at % 10 == 0:  # a broker looks for as many as were asked for
                record = Record("T", b"%d" % at, store_timestamp_ms=at, queue_offset=QueueOffset(offset))
                records.append(encode_record(record))
            offset += 1
        status = PullStatus.FOUND if records else PullStatus.NO_MATCHED_MESSAGE
        return PullResult(status, QueueOffset(offset), *bounds, b"".join(records), queue)


def scan_of(
    topic: Topic,
    span: ScanRange,
    take: Callable[[Message[bytes]], bool],
    kind: type[TopicScan] = TopicScan,
    **more: Any,
) -> TopicScan:
    class Messages:
        async def puller(self) -> Topic:
            return topic

    class Cluster:
        messages = Messages()

    return kind(cast(Admin, Cluster()), span, take, **more)


def read(topic: Topic, span: ScanRange, enough: int = 10**9, **more: Any) -> tuple[TopicScan, list[int]]:
    """Run a scan that takes `enough` messages; returns it with the store times that it took."""
    found: list[int] = []

    def take(message: Message[bytes]) -> bool:
        found.append(int(message.body))
        return len(found) >= enough

    scan = scan_of(topic, span, take, **more)
    run(scan.run)
    return scan, found


@pytest.mark.spec("CON-09")
@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 10**6, [100, 200, 200, 200, 300, 400]),
        (200, 300, [200, 200, 200, 300]),
        (201, 299, []),
        (200, 200, [200, 200, 200]),
        (401, 10**6, []),
        (0, 99, []),
        (400, 400, [400]),
        (0, 100, [100]),
    ],
)
def test_scan_takes_the_messages_of_its_span(begin: int, end: int, expected: list[int]) -> None:
    topic = Topic(("b", 7, [100, 200, 200, 200, 300, 400]), ("b", 0, []))
    scan, found = read(topic, ScanRange("T", begin, end, "a || b"))
    assert (found, scan.end, scan.problems, scan.skipped) == (expected, "complete", {}, 0)
    assert topic.expressions <= {"a || b"} and all(queue == 0 for queue, _ in topic.pulls)


def test_scan_reads_its_queues_in_turn_and_stops_behind_its_span() -> None:
    topic = Topic(("a", 0, list(range(1, 201))), ("b", 0, list(range(1, 41))))
    scan, found = read(topic, ScanRange("T", 0, 150))
    assert sorted(found) == sorted([*range(1, 151), *range(1, 41)])
    assert topic.pulls[:4] == [(0, 0), (1, 0), (0, 32), (1, 32)]
    assert (0, 192) not in topic.pulls, "150 was passed at 128..159"
    assert (scan.scanned, scan.expected) == (200, 151 + 40)


def test_scan_ends_once_it_has_enough() -> None:
    topic = Topic(("a", 0, list(range(1, 201))), ("b", 0, list(range(1, 41))))
    scan, found = read(topic, ScanRange("T", 0, 10**6), enough=40)
    assert (len(found), scan.end, scan.scanned, topic.pulls) == (40, "enough", 64, [(0, 0), (1, 0)])


def test_scan_continues_where_a_queue_begins_now() -> None:
    topic = Topic(("a", 50, list(range(1, 71))))
    topic.min_offset = topic.max_offset  # type: ignore[method-assign]

    async def began(queue: MessageQueue) -> int:
        return 10  # expired since

    topic.min_offset = began  # type: ignore[method-assign]
    scan, found = read(topic, ScanRange("T", 0, 10**6))
    assert found == list(range(1, 71)) and topic.pulls == [(0, 10), (0, 50), (0, 82), (0, 114)]
    assert scan.scanned == 70, "offsets that the broker does not have were not read"


def test_scan_is_limited_by_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "SCANNED_MAX", 64)
    topic = Topic(("a", 0, list(range(1, 201))))
    scan, found = read(topic, ScanRange("T", 0, 10**6))
    assert (len(found), scan.end) == (64, "limit")
    monkeypatch.undo()
    clock = Times()

    def ticking() -> float:
        clock.now += 50
        return clock.now

    scan, found = read(topic, ScanRange("T", 0, 10**6), clock=ticking)
    assert scan.end == "limit" and len(found) == 4 * BATCH, (
        "300 s are not exceeded by 300: two looks at the clock for each round"
    )


def newest(topic: Topic, span: ScanRange, most: int) -> tuple[NewestScan, list[int]]:
    """Run a search for the newest `most` messages; returns it with the store times that it read, in that order."""
    found: list[int] = []

    def take(message: Message[bytes]) -> bool:
        found.append(int(message.body))
        return False

    def has_enough(newest_ms: int) -> bool:
        return sum(at > newest_ms for at in found) >= most

    scan = scan_of(topic, span, take, NewestScan, has_enough=has_enough)
    run(scan.run)
    assert isinstance(scan, NewestScan)
    return scan, found


@pytest.mark.parametrize("most", [1, 32, 40, 100, 300, 10**6])
@pytest.mark.parametrize(("begin", "end"), [(0, 10**6), (0, 700), (150, 700), (900, 10**6), (0, 5)])
@pytest.mark.parametrize("tag", ["*", "tens"])
def test_search_reads_the_newest_messages_first(begin: int, end: int, most: int, tag: str) -> None:
    old, new, mixed = list(range(1, 401)), list(range(500, 1500, 2)), list(range(3, 1503, 3))
    topic = Topic(("a", 10, old), ("b", 0, new), ("b", 5, mixed))
    scan, found = newest(topic, ScanRange("T", begin, end, tag), most)
    there = sorted(at for at in (*old, *new, *mixed) if begin <= at <= end and (tag == "*" or at % 10 == 0))
    assert sorted(found)[-most:] == there[-most:], "each once"
    assert scan.end == ("complete" if len(found) == len(there) <= most else scan.end)
    assert scan.end in ("complete", "enough") and (len(there) > most or scan.end == "complete")
    assert len(found) <= most + 3 * 512 and not scan.problems


def test_search_reads_little_for_few_messages_of_a_long_queue() -> None:
    topic = Topic(("a", 0, list(range(1, 100_001))), ("b", 0, list(range(1, 1001))))
    scan, found = newest(topic, ScanRange("T", 0, 10**6), 2000)
    assert sorted(found)[-2000:] == list(range(98_001, 100_001)) and scan.end == "enough"
    assert len(found) < 2600 and len([queue for queue, _ in topic.pulls if queue == 1]) == 1, "32 of the second queue"


def test_search_goes_on_before_messages_that_expired_and_without_a_silent_broker() -> None:
    topic = Topic(("a", 50, list(range(1, 71))), ("b", 0, [5]))

    async def began(queue: MessageQueue) -> int:
        if queue.broker_name == "b":
            raise SaturnError("no answer")
        return 10  # expired since

    topic.min_offset = began  # type: ignore[method-assign]
    scan, found = newest(topic, ScanRange("T", 0, 10**6), 2000)
    assert (sorted(found), scan.end, list(scan.problems)) == (list(range(1, 71)), "complete", ["b"])
    assert scan.scanned == 70, "offsets that the broker does not have were not read"


def test_search_is_limited_by_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "SCANNED_MAX", 64)
    scan, found = newest(Topic(("a", 0, list(range(1, 201)))), ScanRange("T", 0, 10**6), 2000)
    assert scan.end == "limit" and sorted(found) == list(range(105, 201)), "whole windows"


def test_silent_broker_ends_the_scan_of_its_queues_only() -> None:
    topic = Topic(("a", 0, list(range(1, 101))), ("b", 0, list(range(1, 101))), ("b", 0, [1]))
    ask = topic.pull

    async def pull(queue: MessageQueue, offset: int, **more: Any) -> PullResult:
        if offset:
            topic.silent.add("b")
        return await ask(queue, offset, **more)

    topic.pull = pull  # type: ignore[method-assign]
    scan, found = read(topic, ScanRange("T", 0, 10**6))
    assert (len(found), scan.end, scan.problems) == (100 + 32 + 1, "complete", {"b": "no answer"})
    topic.silent = {"a", "b"}
    scan, found = read(topic, ScanRange("T", 0, 10**6))
    assert (found, scan.end, scan.problems) == ([], "complete", {"a": "no answer", "b": "no answer"})


def test_topic_with_too_many_queues_is_refused() -> None:
    most = [("a", 0, [5])] * 1024
    assert len(read(Topic(*most), ScanRange("T", 0, 10))[1]) == 1024
    with pytest.raises(ConfigError, match="T has 1025 queues; at most 1024 can be read here"):
        read(Topic(*most, ("a", 0, [5])), ScanRange("T", 0, 10))


def test_following_scan_takes_what_is_new_and_skips_what_it_cannot_keep_up_with() -> None:
    times = list(range(1, 11))
    topic = Topic(("a", 0, times), ("gone", 0, []))
    topic.silent.add("gone")
    pauses: list[float] = []
    wanted = True
    clock = Times()

    async def sleep(seconds: float) -> None:
        nonlocal wanted
        pauses.append(seconds)
        if len(pauses) == 1:
            times.extend([11, 12])
        elif len(pauses) == 2:
            times.extend(range(13, 113))
            clock.now += 5
        elif len(pauses) == 5:
            wanted = False

    scan, found = read(topic, ScanRange("T"), is_viewed=lambda: wanted, sleep=sleep, clock=clock)
    assert found == [11, 12, *range(13, 45), *range(81, 113)], "the last 32 of 100"
    assert (scan.end, scan.skipped, scan.scanned, scan.expected) == ("left", 36, 66, 66)
    assert pauses == [1.0] * 5 and scan.problems == {"gone": "no answer"}


def test_following_scan_rests_twice_as_long_as_a_round_takes_and_ends_after_an_hour() -> None:
    topic = Topic(("a", 0, [1]))
    clock = Times()
    pauses: list[float] = []
    ask = topic.pull

    async def pull(queue: MessageQueue, offset: int, **more: Any) -> PullResult:
        clock.now += 100
        return await ask(queue, offset, **more)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.now += seconds

    topic.pull = pull  # type: ignore[method-assign]
    scan, _ = read(topic, ScanRange("T"), clock=clock, sleep=sleep)
    assert scan.end == "limit" and pauses == [200.0] * 12, "3600 s"
    topic.silent = {"a"}
    scan, _ = read(topic, ScanRange("T"), clock=clock, sleep=sleep)
    assert (scan.end, scan.problems) == ("complete", {"a": "no answer"}), "there is no broker to follow"


# ---- conditions


def message(body: bytes = b"", flag: int = 0, **properties: str) -> Message[bytes]:
    raw = encode_properties(properties)
    record = decode_record(encode_record(Record("T", body, raw, sys_flag=flag)))
    return Message(record, MessageQueue("T", "b", 0), BytesCodec())


ORDER = message(b' {"id": 7, "items": [{"n": "x"}, {"n": "y"}], "none": null}', TAGS="paid", KEYS="k1 k2", city="Ulm")


@pytest.mark.spec("CON-09")
@pytest.mark.parametrize(
    ("form", "met"),
    [
        ({}, True),
        ({"tag": "paid"}, True),
        ({"tag": "pai"}, False),
        ({"key": "k2"}, True),
        ({"key": "k"}, False),
        ({"property": "city"}, True),
        ({"property": "city=Ulm"}, True),
        ({"property": " city = Ulm "}, True),
        ({"property": "city=ulm"}, False),
        ({"property": "city="}, False),
        ({"property": "land"}, False),
        ({"text": '"items"'}, True),
        ({"text": "Items"}, False),
        ({"json": "id=7"}, True),
        ({"json": "id=8"}, False),
        ({"json": "items[*].n=y"}, True),
        ({"json": "items[*].n=z"}, False),
        ({"json": "none"}, True),
        ({"json": "absent"}, False),
        ({"json": "id=7", "text": "nowhere"}, False),
        ({"tag": "paid", "key": "k1", "property": "city", "json": "id", "text": "id"}, True),
        ({"tag": "other", "key": "k1", "property": "city", "json": "id", "text": "id"}, False),
    ],
)
def test_message_must_meet_each_condition(form: dict[str, str], met: bool) -> None:
    assert parse_conditions(form).met(ORDER) is met


def test_body_that_is_no_json_or_does_not_decompress_meets_no_condition_on_it() -> None:
    id_only = parse_conditions({"json": "id"})
    assert not id_only.met(message(b"id")) and not id_only.met(message(b"{id")) and not id_only.met(message(b"7"))
    assert Conditions(path=parse_path("[0]")).met(message(b"[0]"))
    assert not Conditions(path=()).met(message(b"[" * 100_000)), "nested too deeply"
    long = json.dumps({"id": "x" * BODY_BYTES_MAX}).encode()
    assert not id_only.met(message(long)) and parse_conditions({"text": "xxx"}).met(message(long))
    fitting = b'{"id": "' + b"x" * (BODY_BYTES_MAX - 10) + b'"}'
    assert len(fitting) == BODY_BYTES_MAX and id_only.met(message(fitting))
    damaged = message(b"not zlib", SysFlag.COMPRESSED, TAGS="t")
    assert not parse_conditions({"text": "not"}).met(damaged) and parse_conditions({"tag": "t"}).met(damaged)


def test_wrong_condition_names_its_field() -> None:
    for name in ("tag", "key", "property", "json", "text"):
        with pytest.raises(WrongField, match=f"{name} has 1001 characters; at most 1000 are allowed") as caught:
            parse_conditions({name: "x" * 1001})
        assert caught.value.field == name
    assert parse_conditions({"text": " " + "x" * 1000 + " "}).text == b"x" * 1000
    with pytest.raises(WrongField, match=r"JSON path 'a\[' at character 2; write such as") as caught:
        parse_conditions({"json": "a[=1"})
    assert caught.value.field == "json"


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("$", ()), ("", ()), ("a", ("a",)), ("$.a[0]['b c'][\"d\"].*[*]", ("a", 0, "b c", "d", None, None)), ("['']", ("",)),
        ("a" + "[0]" * 31, ("a", *[0] * 31)),
    ],
)  # fmt: skip
def test_steps_of_a_path(path: str, steps: tuple[Any, ...]) -> None:
    assert parse_path(path) == steps


def test_path_has_32_steps_and_500_characters_at_most() -> None:
    with pytest.raises(ConfigError, match="it has more than 32 steps; write such as"):
        parse_path("a" + "[0]" * 32)
    assert parse_path("x" * 500) == ("x" * 500,)
    with pytest.raises(ConfigError, match="the JSON path has 501 characters; at most 500 are allowed"):
        parse_path("x" * 501)
