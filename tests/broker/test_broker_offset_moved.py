"""Events of pulls that are redirected to another offset: their pauses and limits, with a store that only takes them."""

from __future__ import annotations

import json
from typing import cast

import pytest
from wire import Clock

from loglines import own_messages
from saturnmq.broker.state import offset_moved
from saturnmq.broker.state.offset_moved import OffsetMovedEvents
from saturnmq.protocol.message import Host, Message
from saturnmq.store import MessageStore, PutResult, PutStatus

HERE = Host("192.0.2.1", 10911)


class Store:
    """Takes messages, or refuses them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.status = PutStatus.PUT_OK

    def put(self, message: Message) -> PutResult:
        self.messages.append(message)
        return PutResult(self.status)


class Bench:
    """Events with a clock that a test advances."""

    def __init__(self) -> None:
        self.clock, self.store = Clock(), Store()
        self.events = OffsetMovedEvents(cast(MessageStore, self.store), "broker-a", self.clock)

    def count(self, group: str = "G", queue: int = 0, topic: str = "T") -> int:
        """Add an event; returns how many were stored so far."""
        self.events.add(group, topic, queue, 77, 5, HERE)
        return len(self.store.messages)


@pytest.mark.spec("BP-08")
def test_event_names_both_offsets_and_where() -> None:
    bench = Bench()
    bench.count(queue=3)
    (message,) = bench.store.messages
    assert (message.topic, message.queue_id, message.born_timestamp_ms) == ("OFFSET_MOVED_EVENT", 0, bench.clock.ms)
    assert (message.born_host, message.store_host, message.flag, message.sys_flag) == (HERE, HERE, 0, 0)
    assert message.properties == {"TAGS": "G", "KEYS": "G"}
    assert json.loads(message.body) == {
        "consumerGroup": "G", "messageQueue": {"brokerName": "broker-a", "queueId": 3, "topic": "T"}, "offsetNew": 5,
        "offsetRequest": 77,
    }  # fmt: skip


def test_queue_of_a_group_has_one_event_a_second() -> None:
    bench = Bench()
    assert [bench.count(), bench.count()] == [1, 1]
    assert [bench.count(queue=1), bench.count(group="H"), bench.count(topic="U")] == [2, 3, 4]
    bench.clock.ms += 999
    assert bench.count() == 4
    bench.clock.ms += 1
    assert bench.count() == 5


def test_events_of_all_are_100_a_second_also_if_the_clock_is_set_back() -> None:
    bench = Bench()
    assert [bench.count(queue=queue) for queue in range(102)][-3:] == [100, 100, 100]
    bench.clock.ms += 999
    assert bench.count(queue=200) == 100
    bench.clock.ms += 1
    assert bench.count(queue=200) == 101
    bench.clock.ms -= 3_600_000
    assert bench.count(queue=300) == 102, "the second that began later is over"


def test_remembered_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_moved, "_REMEMBERED_MAX", 3)
    bench = Bench()
    assert [bench.count(queue=queue) for queue in (0, 1, 2, 0)] == [1, 2, 3, 3]
    assert [bench.count(queue=queue) for queue in (3, 3, 0)] == [4, 4, 5], "with the fourth, the others are forgotten"


def test_event_that_is_not_stored_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.count()
    assert not own_messages(caplog)
    bench.store.status = PutStatus.SERVICE_NOT_AVAILABLE
    bench.count(group="H")
    assert "offset-moved event not stored group=H topic=T status=SERVICE_NOT_AVAILABLE" in caplog.text
