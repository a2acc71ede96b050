"""Rows of the commands on groups and their clients.

Requirements: C-33..C-40, C-45.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.call import AdminCommand
from saturnmq.cli.mqadmin.options import Opt
from saturnmq.cli.mqadmin.since import HISTORY, SINCE

_GROUP: Final = Opt("g", "consumerGroup", "consumer group name", required=True)
_JSTACK: Final = Opt("s", "jstack", "Run jstack command in the consumer progress", value=False)

ROWS: Final = (
    AdminCommand(
        "updateSubGroup",
        "Update or create subscription group",
        "saturnmq admin updateSubGroup -c DefaultCluster -g billing -r 3",
        "groups:update_sub_group",
        (
            Opt("b", "brokerAddr", "create subscription group to which broker"),
            Opt("c", "clusterName", "create subscription group to which cluster"),
            Opt("g", "groupName", "consumer group name", required=True),
            Opt("s", "consumeEnable", "consume enable"),
            Opt("m", "consumeFromMinEnable", "from min offset"),
            Opt("d", "consumeBroadcastEnable", "broadcast"),
            Opt("q", "retryQueueNums", "retry queue nums"),
            Opt("r", "retryMaxTimes", "retry max times"),
            Opt("i", "brokerId", "consumer from which broker id"),
            Opt("w", "whichBrokerWhenConsumeSlowly", "which broker id when consume slowly"),
            Opt("a", "notifyConsumerIdsChanged", "notify consumerId changed"),
        ),
        changes=True,
    ),
    AdminCommand(
        "deleteSubGroup",
        "Delete subscription group from broker.",
        "saturnmq admin deleteSubGroup -c DefaultCluster -g billing",
        "groups:delete_sub_group",
        (
            Opt("b", "brokerAddr", "delete subscription group from which broker"),
            Opt("c", "clusterName", "delete subscription group from which cluster"),
            Opt("g", "groupName", "subscription group name", required=True),
            Opt("r", "removeOffset", "remove offset"),
        ),
        changes=True,
    ),
    AdminCommand(
        "getConsumerConfig",
        "Get consumer config by subscription group name!",
        "saturnmq admin getConsumerConfig -g billing",
        "groups:get_consumer_config",
        (Opt("g", "groupName", "subscription group name", required=True),),
        listing=True,
    ),
    AdminCommand(
        "consumerProgress",
        "Query consumers's progress, speed",
        "saturnmq admin consumerProgress -g billing",
        "groups:consumer_progress",
        (
            Opt("g", "groupName", "consumer group name"),
            Opt("s", "showClientIP", "Show Client IP per Queue"),
            SINCE,
            HISTORY,
        ),
        listing=True,
    ),
    AdminCommand(
        "consumerConnection",
        "Query consumer's socket connection, client version and subscription",
        "saturnmq admin consumerConnection -g billing",
        "clients:consumer_connection",
        (_GROUP, Opt("b", "brokerAddr", "broker address")),
        listing=True,
    ),
    AdminCommand(
        "producerConnection",
        "Query producer's socket connection and client version",
        "saturnmq admin producerConnection -g orders-p -t orders",
        "clients:producer_connection",
        (
            Opt("g", "producerGroup", "producer group name", required=True),
            Opt("t", "topic", "topic name", required=True),
        ),
        listing=True,
    ),
    AdminCommand(
        "producer",
        "Query producer's instances, connection, status, etc.",
        "saturnmq admin producer -b 127.0.0.1:10911",
        "clients:producer",
        (Opt("b", "broker", "broker address", required=True),),
        listing=True,
    ),
    AdminCommand(
        "consumerStatus",
        "Query consumer's internal data structure",
        "saturnmq admin consumerStatus -g billing",
        "status:consumer_status",
        (_GROUP, Opt("i", "clientId", "The consumer's client id"), Opt("b", "brokerAddr", "broker address"), _JSTACK),
    ),
    AdminCommand(
        "consumer",
        "Query consumer's connection, status, etc.",
        "saturnmq admin consumer -g billing",
        "status:consumer",
        (_GROUP, _JSTACK),
        is_extension=True,
    ),
    AdminCommand(
        "startMonitoring",
        "Start Monitoring",
        "saturnmq admin startMonitoring",
        "status:start_monitoring",
        (Opt("", "webhook", "address that every report is posted to as JSON", is_extension=True),),
    ),
)
