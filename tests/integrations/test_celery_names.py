"""Topic names of kombu's queues and exchanges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.client.checks import check_topic, consumer_group_problem
from saturnmq.kombu.names import LENGTH_MAX, escaped, topic_of_exchange, topic_of_queue, unescaped
from saturnmq.protocol.errors import ConfigError

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)


@given(names, names)
def test_queue_names_map_to_legal_topics_and_back_without_collisions(one: str, other: str) -> None:
    topic = topic_of_queue(one)
    check_topic(topic)
    assert consumer_group_problem(topic) is None
    assert unescaped(topic) == one
    assert (topic == topic_of_queue(other)) == (one == other)
    assert topic_of_exchange(other) != topic


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("celery", "celery"),
        ("high_priority-2", "high_priority-2"),
        ("orders.high@eu", "orders|2Ehigh|40eu"),
        ("a|2Eb", "a|7C2Eb"),
        ("grün", "gr|C3|BCn"),
        ("TBW102", "|54BW102"),
        ("%RETRY%x", "|25RETRY|25x"),
        ("rmq_sys_x", "|72mq_sys_x"),
        ("CID_RMQ_SYS_x", "|43ID_RMQ_SYS_x"),
        ("DEFAULT_CONSUMER", "|44EFAULT_CONSUMER"),
        ("TOOLS_CONSUMER", "|54OOLS_CONSUMER"),
    ],
)
def test_queue_names_that_brokers_refuse_or_reserve_are_escaped(queue: str, topic: str) -> None:
    assert topic_of_queue(queue) == topic
    assert unescaped(topic) == queue


def test_exchange_names_share_no_topic_with_queues() -> None:
    assert topic_of_exchange("celery.pidbox") == "exchange||celery|2Epidbox"
    assert topic_of_queue("exchange||celery") == "exchange|7C|7Ccelery"


def test_empty_and_too_long_names_are_refused_by_name() -> None:
    assert topic_of_queue("x" * LENGTH_MAX) == "x" * LENGTH_MAX
    with pytest.raises(
        ConfigError, match=r"queue 'x{121}' is topic x{121}, which has 121 characters, must be at most 120"
    ):
        topic_of_queue("x" * 121)
    with pytest.raises(ConfigError, match="the queue's name is empty"):
        topic_of_queue("")
    assert escaped("") == ""
