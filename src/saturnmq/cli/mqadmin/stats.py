"""The command statsAll.

Requirements: C-44.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from saturnmq.admin.connection import ask_each
from saturnmq.admin.statistics import TopicFlow
from saturnmq.cli.mqadmin.java_forms import cut, fixed, text_order
from saturnmq.cli.mqadmin.output import Call, Shown
from saturnmq.protocol.codes import DLQ_PREFIX, RETRY_PREFIX
from saturnmq.protocol.errors import SaturnError

_LAYOUT: Final = "%-64s  %-64s %12s %11s %11s %14s %14s\n"
_SECONDS: Final = 15.0  # for one topic with all its groups


async def stats_all(call: Call) -> None:
    """Print rates and lag of topics and their groups; topics of groups themselves are left out."""
    requested_topic = call.options.get("t", "")
    topics = [
        topic
        for topic in text_order(await call.admin.topics.names())
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) and (not requested_topic or topic == requested_topic)
    ]
    dead = await call.admin.brokers.dead()
    flow = partial(call.admin.statistics.topic, without=dead)
    rows: list[tuple[Any, ...]] = []
    for topic, topic_flow in (await ask_each(topics, flow, seconds=_SECONDS)).items():
        if isinstance(topic_flow, SaturnError):
            call.out.problem(f"{topic}: {topic_flow.message}")
        else:
            rows += _rows(topic_flow, only_active="a" in call.options)
    columns = [("#Topic", "topic"), ("#Consumer Group", "consumer_group"), ("#Accumulation", "accumulation")]
    columns += [("#InTPS", "in_tps"), ("#OutTPS", "out_tps")]
    columns += [("#InMsg24Hour", "in_msg_24_hour"), ("#OutMsg24Hour", "out_msg_24_hour")]
    call.out.table(_LAYOUT, columns, rows)


def _rows(topic_flow: TopicFlow, *, only_active: bool) -> list[tuple[Any, ...]]:
    topic, sent = cut(topic_flow.topic, 64), topic_flow.flow
    if not topic_flow.groups:
        row = (topic, Shown("", None), 0, _rate(sent.tps), Shown("", None), sent.day, Shown("NO_CONSUMER", None))
        return [row] if sent.day or not only_active else []
    by_name = {group_flow.group: group_flow for group_flow in topic_flow.groups}
    return [
        (
            topic,
            cut(group, 64),
            group_flow.lag,
            _rate(sent.tps),
            _rate(group_flow.flow.tps),
            sent.day,
            group_flow.flow.day,
        )
        for group in text_order(by_name)
        if (group_flow := by_name[group]) and (not only_active or sent.day or group_flow.flow.day)
    ]


def _rate(tps: float) -> Shown:
    return Shown(fixed(tps, 2), tps)
