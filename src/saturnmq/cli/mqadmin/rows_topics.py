"""Rows of the commands on topics."""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.call import AdminCommand
from saturnmq.cli.mqadmin.options import Opt

ROWS: Final = (
    AdminCommand(
        "topicList",
        "Fetch all topic list from name server",
        "saturnmq admin topicList -n 127.0.0.1:9876",
        "topics:topic_list",
        (Opt("c", "clusterModel", "clusterModel", value=False),),
        listing=True,
    ),
)
