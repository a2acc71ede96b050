"""Rows of the commands on brokers and clusters.

Requirements: C-10..C-20.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.call import AdminCommand
from saturnmq.cli.mqadmin.options import Opt

ROUNDS: Final = Opt("", "rounds", "end after so many repetitions", is_extension=True)
BROKER: Final = Opt("b", "brokerAddr", "Broker address")

ROWS: Final = (
    AdminCommand(
        "updateBrokerConfig",
        "Update broker's config",
        "saturnmq admin updateBrokerConfig -n 127.0.0.1:9876 -c DefaultCluster -k fileReservedTime -v 72",
        "brokers:update_broker_config",
        (
            Opt("b", "brokerAddr", "update which broker"),
            Opt("c", "clusterName", "update which cluster"),
            Opt("k", "key", "config key", required=True),
            Opt("v", "value", "config value", required=True),
        ),
        changes=True,
    ),
    AdminCommand(
        "getBrokerConfig",
        "Get broker config by cluster or special broker!",
        "saturnmq admin getBrokerConfig -n 127.0.0.1:9876 -b 127.0.0.1:10911",
        "brokers:get_broker_config",
        (Opt("b", "brokerAddr", "get which broker"), Opt("c", "clusterName", "get which cluster")),
    ),
    AdminCommand(
        "brokerStatus",
        "Fetch broker runtime status data",
        "saturnmq admin brokerStatus -n 127.0.0.1:9876 -b 127.0.0.1:10911",
        "brokers:broker_status",
        (BROKER, Opt("c", "clusterName", "which cluster")),
        listing=True,
    ),
    AdminCommand(
        "brokerConsumeStats",
        "Fetch broker consume stats data",
        "saturnmq admin brokerConsumeStats -n 127.0.0.1:9876 -b 127.0.0.1:10911 -l 1000",
        "brokers:broker_consume_stats",
        (
            Opt("b", "brokerAddr", "Broker address", required=True),
            Opt("t", "timeoutMillis", "request timeout Millis"),
            Opt("l", "level", "threshold of print diff"),
            Opt("o", "order", "order topic"),
        ),
        listing=True,
    ),
    AdminCommand(
        "sendMsgStatus",
        "send msg to broker.",
        "saturnmq admin sendMsgStatus -n 127.0.0.1:9876 -b broker-a -c 10",
        "brokers:send_msg_status",
        (
            Opt("b", "brokerName", "Broker Name", required=True),
            Opt("s", "messageSize", "Message Size, Default: 128"),
            Opt("c", "count", "send message count, Default: 50"),
        ),
        changes=True,
    ),
    AdminCommand(
        "cleanExpiredCQ",
        "Clean expired ConsumeQueue on broker.",
        "saturnmq admin cleanExpiredCQ -n 127.0.0.1:9876 -c DefaultCluster",
        "brokers:clean_expired_cq",
        (BROKER, Opt("c", "cluster", "clustername")),
        changes=True,
    ),
    AdminCommand(
        "deleteExpiredCommitLog",
        "Delete expired CommitLog files",
        "saturnmq admin deleteExpiredCommitLog -n 127.0.0.1:9876 -c DefaultCluster",
        "brokers:delete_expired_commit_log",
        (Opt("n", "namesrvAddr", "Name server address"), BROKER, Opt("c", "cluster", "clustername")),
        changes=True,
    ),
    AdminCommand(
        "cleanUnusedTopic",
        "Clean unused topic on broker.",
        "saturnmq admin cleanUnusedTopic -n 127.0.0.1:9876 -c DefaultCluster",
        "brokers:clean_unused_topic",
        (BROKER, Opt("c", "cluster", "cluster name")),
        changes=True,
    ),
    AdminCommand(
        "queryCq",
        "Query cq command.",
        "saturnmq admin queryCq -n 127.0.0.1:9876 -t orders -q 0 -i 0 -c 5",
        "brokers:query_cq",
        (
            Opt("t", "topic", "topic name", required=True),
            Opt("q", "queue", "queue num, ie. 1", required=True),
            Opt("i", "index", "start queue index.", required=True),
            Opt("c", "count", "how many."),
            Opt("b", "broker", "broker addr."),
            Opt("g", "consumer", "consumer group."),
        ),
        listing=True,
    ),
    AdminCommand(
        "clusterList",
        "List all of clusters",
        "saturnmq admin clusterList -n 127.0.0.1:9876",
        "brokers:cluster_list",
        (
            Opt("m", "moreStats", "Print more stats", value=False),
            Opt("i", "interval", "specify intervals numbers, it is in seconds"),
            ROUNDS,
        ),
        listing=True,
    ),
    AdminCommand(
        "clusterRT",
        "List All clusters Message Send RT",
        "saturnmq admin clusterRT -n 127.0.0.1:9876 -a 10 -i 5 --rounds 1",
        "brokers:cluster_rt",
        (
            Opt("a", "amount", "message amount | default 100"),
            Opt("s", "size", "message size | default 128 Byte"),
            Opt("c", "cluster", "cluster name | default display all cluster"),
            Opt("p", "print log", "print as tlog | default false"),
            Opt("m", "machine room", "machine room name | default noname"),
            Opt("i", "interval", "print interval | default 10 seconds"),
            ROUNDS,
        ),
        changes=True,
    ),
)
