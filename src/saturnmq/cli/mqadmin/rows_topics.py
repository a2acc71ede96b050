"""Rows of the commands on topics.

Requirements: C-01..C-09.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.call import AdminCommand
from saturnmq.cli.mqadmin.options import Opt

TOPIC: Final = Opt("t", "topic", "topic name", required=True)

ROWS: Final = (
    AdminCommand(
        "updateTopic",
        "Update or create topic",
        "saturnmq admin updateTopic -n 127.0.0.1:9876 -c DefaultCluster -t orders -r 8 -w 8",
        "topics:update_topic",
        (
            Opt("b", "brokerAddr", "create topic to which broker", group="target"),
            Opt("c", "clusterName", "create topic to which cluster", group="target"),
            TOPIC,
            Opt("r", "readQueueNums", "set read queue nums"),
            Opt("w", "writeQueueNums", "set write queue nums"),
            Opt("p", "perm", "set topic's permission(2|4|6), intro[2:W 4:R; 6:RW]"),
            Opt("o", "order", "set topic's order(true|false)"),
            Opt("u", "unit", "is unit topic (true|false)"),
            Opt("s", "hasUnitSub", "has unit sub (true|false)"),
            Opt("", "keep", "keep what is not given of a topic that exists", value=False, is_extension=True),
        ),
        changes=True,
    ),
    AdminCommand(
        "deleteTopic",
        "Delete topic from broker and NameServer.",
        "saturnmq admin deleteTopic -n 127.0.0.1:9876 -c DefaultCluster -t orders",
        "topics:delete_topic",
        (
            TOPIC,
            Opt("c", "clusterName", "delete topic from which cluster", required=True),
            Opt("", "broker", "delete it from this broker of the cluster only", is_extension=True),
        ),
        changes=True,
    ),
    AdminCommand(
        "updateTopicPerm",
        "Update topic perm",
        "saturnmq admin updateTopicPerm -n 127.0.0.1:9876 -c DefaultCluster -t orders -p 4",
        "topics:update_topic_perm",
        (
            Opt("b", "brokerAddr", "create topic to which broker"),
            Opt("c", "clusterName", "create topic to which cluster"),
            TOPIC,
            Opt("p", "perm", "set topic's permission(2|4|6), intro[2:W; 4:R; 6:RW]", required=True),
        ),
        changes=True,
    ),
    AdminCommand(
        "topicRoute",
        "Examine topic route info",
        "saturnmq admin topicRoute -n 127.0.0.1:9876 -t orders",
        "topics:topic_route",
        (TOPIC, Opt("l", "list", "Use list format to print data", value=False)),
        listing=True,
    ),
    AdminCommand(
        "topicStatus",
        "Examine topic Status info",
        "saturnmq admin topicStatus -n 127.0.0.1:9876 -t orders",
        "topics:topic_status",
        (TOPIC,),
        listing=True,
    ),
    AdminCommand(
        "topicClusterList",
        "get cluster info for topic",
        "saturnmq admin topicClusterList -n 127.0.0.1:9876 -t orders",
        "topics:topic_cluster_list",
        (TOPIC,),
        listing=True,
    ),
    AdminCommand(
        "topicList",
        "Fetch all topic list from name server",
        "saturnmq admin topicList -n 127.0.0.1:9876",
        "topics:topic_list",
        (Opt("c", "clusterModel", "clusterModel", value=False),),
        listing=True,
    ),
    AdminCommand(
        "updateOrderConf",
        "Create or update or delete order conf",
        "saturnmq admin updateOrderConf -n 127.0.0.1:9876 -t orders -m put -v 'broker-a:4;broker-b:4'",
        "topics:update_order_conf",
        (
            TOPIC,
            Opt("v", "orderConf", "set order conf [eg. brokerName1:num;brokerName2:num]"),
            Opt("m", "method", "option type [eg. put|get|delete", required=True),
        ),
        changes=True,
    ),
    AdminCommand(
        "allocateMQ",
        "Allocate MQ",
        "saturnmq admin allocateMQ -n 127.0.0.1:9876 -t orders -i 10.0.0.1,10.0.0.2",
        "topics:allocate_mq",
        (
            TOPIC,
            Opt("i", "ipList", "ipList", required=True),
            Opt(
                "",
                "strategy",
                "as clients of this strategy divide the queues: average, circle, hash",
                is_extension=True,
            ),
        ),
    ),
)
