"""The commands of Apache RocketMQ 4.9.7's mqadmin and their options, from docs/spec/05 rows C-01 to C-57.

An option is a letter; a colon after it says that it takes a value. Every command also has -h and -n NAMESRV.
"""

from __future__ import annotations

from typing import Final

COMMANDS: Final = {
    "updateTopic": "b:c:t:r:w:p:o:u:s:",
    "deleteTopic": "t:c:",
    "updateTopicPerm": "b:c:t:p:",
    "topicRoute": "t:l",
    "topicStatus": "t:",
    "topicClusterList": "t:",
    "topicList": "c",
    "allocateMQ": "t:i:",
    "updateOrderConf": "t:m:v:",
    "updateBrokerConfig": "b:c:k:v:",
    "getBrokerConfig": "b:c:",
    "brokerStatus": "b:c:",
    "brokerConsumeStats": "b:t:l:o:",
    "sendMsgStatus": "b:s:c:",
    "cleanExpiredCQ": "b:c:",
    "deleteExpiredCommitLog": "b:c:",
    "cleanUnusedTopic": "b:c:",
    "queryCq": "t:q:i:c:b:g:",
    "clusterList": "mi:",
    "clusterRT": "a:s:c:p:m:i:",
    "wipeWritePerm": "b:",
    "addWritePerm": "b:",
    "queryMsgById": "i:g:d:s:u:",
    "queryMsgByKey": "t:k:",
    "queryMsgByUniqueKey": "i:t:g:d:a",
    "queryMsgByOffset": "t:b:i:o:",
    "queryMsgTraceById": "i:t:",
    "printMsg": "t:c:s:b:e:d:",
    "printMsgByQueue": "t:a:i:c:s:b:e:p:d:f:",
    "sendMessage": "t:p:k:c:b:i:m:",
    "consumeMessage": "t:b:i:o:g:s:e:c:",
    "checkMsgSendRT": "t:a:s:",
    "updateSubGroup": "b:c:g:s:m:d:q:r:i:w:a:",
    "deleteSubGroup": "b:c:g:r:",
    "getConsumerConfig": "g:",
    "consumerConnection": "g:b:",
    "consumerProgress": "g:s:",
    "consumerStatus": "g:i:b:s",
    "producerConnection": "g:t:",
    "producer": "b:",
    "resetOffsetByTime": "g:t:s:f:c",
    "skipAccumulatedMessage": "g:t:f:",
    "cloneGroupOffset": "s:d:t:o:",
    "statsAll": "at:",
    "startMonitoring": "",
    "getNamesrvConfig": "",
    "updateNamesrvConfig": "k:v:",
    "updateKvConfig": "s:k:v:",
    "deleteKvConfig": "s:k:",
    "updateAclConfig": "b:c:a:s:w:i:u:t:g:m:",
    "deleteAclConfig": "b:c:a:",
    "clusterAclConfigVersion": "b:c:",
    "updateGlobalWhiteAddr": "b:c:g:p:",
    "getAclConfig": "b:c:",
    "exportMetadata": "c:b:f:tgs",
    "exportConfigs": "c:f:",
    "exportMetrics": "c:f:",
}


def problem(words: list[str]) -> str | None:
    """What is wrong with a command line, without `mqadmin` itself; None if nothing is. Required options may be missing."""
    name, *rest = words
    if name not in COMMANDS:
        return f"mqadmin has no command {name}"
    known = COMMANDS[name] + "hn:"
    while rest:
        word = rest.pop(0)
        letter = word.removeprefix("-")
        if len(word) != 2 or word[0] != "-" or letter not in known:
            return f"mqadmin {name} has no option {word}"
        if known[known.index(letter) + 1 : known.index(letter) + 2] == ":":
            if not rest:
                return f"option {word} of mqadmin {name} needs a value"
            rest.pop(0)
    return None
