"""Rows of the commands that export.

Requirements: C-55..C-57.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.call import AdminCommand
from saturnmq.cli.mqadmin.options import Opt

CLUSTER: Final = Opt("c", "clusterName", "choose a cluster to export", required=True)

ROWS: Final = (
    AdminCommand(
        "exportMetadata",
        "export metadata",
        "saturnmq admin exportMetadata -n 127.0.0.1:9876 -c DefaultCluster -f ./export",
        "export:metadata",
        (
            Opt("c", "clusterName", "choose a cluster to export"),
            Opt("b", "brokerAddr", "choose a broker to export"),
            Opt("f", "filePath", "export metadata.json path | default /tmp/rocketmq/export"),
            Opt("t", "topic", "only export topic metadata", value=False),
            Opt("g", "subscriptionGroup", "only export subscriptionGroup metadata", value=False),
            Opt("s", "specialTopic", "need retryTopic and dlqTopic", value=False),
        ),
    ),
    AdminCommand(
        "exportConfigs",
        "export configs",
        "saturnmq admin exportConfigs -n 127.0.0.1:9876 -c DefaultCluster -f ./export",
        "export:configs",
        (CLUSTER, Opt("f", "filePath", "export configs.json path | default /tmp/rocketmq/export")),
    ),
    AdminCommand(
        "exportMetrics",
        "export metrics",
        "saturnmq admin exportMetrics -n 127.0.0.1:9876 -c DefaultCluster -f ./export",
        "export:metrics",
        (CLUSTER, Opt("f", "filePath", "export metrics.json path | default /tmp/rocketmq/export")),
    ),
)
