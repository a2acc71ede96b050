"""Rows of the commands on offsets, and of the statistics of topics and groups.

Requirements: C-41..C-44.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.call import AdminCommand
from saturnmq.cli.mqadmin.options import Opt

_GROUP: Final = Opt("g", "group", "set the consumer group", required=True)
_TOPIC: Final = Opt("t", "topic", "set the topic", required=True)
_FORCE: Final = Opt("f", "force", "set the force rollback by timestamp switch[true|false]")

ROWS: Final = (
    AdminCommand(
        "resetOffsetByTime",
        "Reset consumer offset by timestamp(without client restart).",
        "saturnmq admin resetOffsetByTime -g billing -t orders -s now",
        "offsets:reset_by_time",
        (
            _GROUP,
            _TOPIC,
            Opt("s", "timestamp", "set the timestamp[now|currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]", required=True),
            _FORCE,
            Opt("c", "cplus", "reset c++ client offset", value=False),
        ),
        changes=True,
    ),
    AdminCommand(
        "resetOffsetByTimeOld",
        "Reset consumer offset by timestamp(execute this command required client restart).",
        "saturnmq admin resetOffsetByTimeOld -g billing -t orders -s 0",
        "offsets:reset_by_time_old",
        (
            _GROUP,
            _TOPIC,
            Opt("s", "timestamp", "set the timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]", required=True),
            _FORCE,
        ),
        changes=True,
        is_extension=True,
    ),
    AdminCommand(
        "skipAccumulatedMessage",
        "Skip all messages that are accumulated (not consumed) currently",
        "saturnmq admin skipAccumulatedMessage -g billing -t orders",
        "offsets:skip",
        (_GROUP, _TOPIC, _FORCE),
        changes=True,
    ),
    AdminCommand(
        "cloneGroupOffset",
        "clone offset from other group.",
        "saturnmq admin cloneGroupOffset -s billing -d billing-2 -t orders",
        "offsets:clone",
        (
            Opt("s", "srcGroup", "set source consumer group", required=True),
            Opt("d", "destGroup", "set destination consumer group", required=True),
            Opt("t", "topic", "set the topic", required=True),
            Opt("o", "offline", "the group or the topic is offline"),
        ),
        changes=True,
    ),
    AdminCommand(
        "getConsumerStatus",
        "get consumer status from client.",
        "saturnmq admin getConsumerStatus -g billing -t orders",
        "offsets:consumer_status",
        (_GROUP, _TOPIC, Opt("i", "originClientId", "set the consumer clientId")),
        listing=True,
        is_extension=True,
    ),
    AdminCommand(
        "statsAll",
        "Topic and Consumer tps stats",
        "saturnmq admin statsAll -t orders",
        "stats:stats_all",
        (
            Opt("a", "activeTopic", "print active topic only", value=False),
            Opt("t", "topic", "print select topic only"),
        ),
        listing=True,
    ),
)
