"""The table of admin commands, in the order of Apache's list.

Requirements: ADM-01, ADM-02, ADM-04, CLI-01.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin import (
    rows_accounts,
    rows_brokers,
    rows_export,
    rows_groups,
    rows_messages,
    rows_name_servers,
    rows_offsets,
    rows_topics,
)
from saturnmq.cli.mqadmin.call import AdminCommand

_ORDER: Final = (
    "updateTopic", "deleteTopic", "updateSubGroup", "deleteSubGroup", "updateBrokerConfig", "updateTopicPerm",
    "topicRoute", "topicStatus", "topicClusterList", "brokerStatus", "queryMsgById", "queryMsgByKey",
    "queryMsgByUniqueKey", "queryMsgByOffset", "queryMsgTraceById", "printMsg", "printMsgByQueue", "sendMsgStatus",
    "brokerConsumeStats", "producerConnection", "consumerConnection", "consumerProgress", "consumerStatus",
    "cloneGroupOffset", "producer", "clusterList", "topicList", "updateKvConfig", "deleteKvConfig", "wipeWritePerm",
    "addWritePerm", "resetOffsetByTime", "skipAccumulatedMessage", "updateOrderConf", "cleanExpiredCQ",
    "deleteExpiredCommitLog", "cleanUnusedTopic", "startMonitoring", "statsAll", "allocateMQ", "checkMsgSendRT",
    "clusterRT", "getNamesrvConfig", "updateNamesrvConfig", "getBrokerConfig", "getConsumerConfig", "queryCq",
    "sendMessage", "consumeMessage", "updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion",
    "updateGlobalWhiteAddr", "getAclConfig", "exportMetadata", "exportConfigs", "exportMetrics",
)  # fmt: skip
_ROWS: Final = (
    *rows_accounts.ROWS,
    *rows_export.ROWS,
    *rows_brokers.ROWS,
    *rows_groups.ROWS,
    *rows_messages.ROWS,
    *rows_name_servers.ROWS,
    *rows_offsets.ROWS,
    *rows_topics.ROWS,
)


def _apache_order(command: AdminCommand) -> tuple[int, str]:
    """Sorts commands as Apache lists them; those that it does not list come last, by name."""
    return (_ORDER.index(command.name) if command.name in _ORDER else len(_ORDER)), command.name


COMMANDS: Final[tuple[AdminCommand, ...]] = tuple(sorted(_ROWS, key=_apache_order))
BY_NAME: Final = {name.lower(): command for command in COMMANDS for name in (command.name, *command.aliases)}


def find(name: str) -> AdminCommand | None:
    """The command of a name or alias, in any case."""
    return BY_NAME.get(name.lower())
