"""The commands in mqadmin's form, in the order of Apache's list, and after them those that Apache does not list.

Only names, options and the place of each function: the list, help and completion import no function, and no network.

Requirements: ADM-01, ADM-02, ADM-04, C-01..C-57, CLI-01.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.options import HELP, NAME_SERVERS, opt
from saturnmq.cli.table import CliCommand, Option

PROGRAM: Final = "saturnmq admin"

# ---- options of several commands; texts are Apache's

TOPIC: Final = opt("t", "topic", "topic name", required=True)
TOPIC_TO_SET: Final = opt("t", "topic", "set the topic", required=True)
TOPIC_NAME: Final = opt("t", "topic", "Topic name", required=True)
GROUP: Final = opt("g", "consumerGroup", "consumer group name", required=True)
GROUP_OPTIONAL: Final = opt("g", "consumerGroup", "consumer group name")
GROUP_TO_SET: Final = opt("g", "group", "set the consumer group", required=True)
GROUP_NAME: Final = opt("g", "groupName", "subscription group name", required=True)
BROKER: Final = opt("b", "brokerAddr", "Broker address")
BROKER_NAME: Final = opt("b", "brokerName", "Broker Name", required=True)
BROKER_OF_PERM: Final = opt("b", "brokerName", "broker name", required=True)
CLUSTER: Final = opt("c", "cluster", "clustername")
CLUSTER_TO_EXPORT: Final = opt("c", "clusterName", "choose a cluster to export", required=True)
MESSAGE: Final = opt("i", "msgId", "Message Id", required=True)
CLIENT: Final = opt("d", "clientId", "The consumer's client id")
CHARSET: Final = opt("c", "charsetName ", "CharsetName(eg: UTF-8,GBK)")
FILTER: Final = opt("s", "subExpression ", "Subscribe Expression(eg: TagA || TagB)")
BEGIN: Final = opt("b", "beginTimestamp ", "Begin timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]")
END: Final = opt("e", "endTimestamp ", "End timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]")
FORCE: Final = opt("f", "force", "set the force rollback by timestamp switch[true|false]")
JSTACK: Final = opt("s", "jstack", "Run jstack command in the consumer progress", value=False)
ROUNDS: Final = opt("", "rounds", "end after so many repetitions", is_extension=True)
NAMESPACE: Final = opt("s", "namespace", "set the namespace", required=True)
KEY_TO_SET: Final = opt("k", "key", "set the key name", required=True)
KEY: Final = opt("k", "key", "config key", required=True)
VALUE: Final = opt("v", "value", "config value", required=True)
AMOUNT: Final = opt("a", "amount", "message amount | default 100")
SIZE: Final = opt("s", "size", "message size | default 128 Byte")


def target(broker: str, cluster: str) -> tuple[Option, Option]:
    """The options of which exactly one names what a command works on, with their help texts."""
    return opt("b", "brokerAddr", broker, group="target"), opt("c", "clusterName", cluster, group="target")


def command(
    name: str,
    help_text: str,
    function: str,
    example: str,
    *options: Option,
    aliases: tuple[str, ...] = (),
    changes: bool = False,
    listing: bool = False,
    is_extension: bool = False,
) -> CliCommand:
    """One row. function: `module:function` of this package. example: its options. Common options come first, or are replaced."""
    all_options = {each.key: each for each in (HELP, NAME_SERVERS, *options)}
    return CliCommand(
        name,
        help_text,
        f"{PROGRAM} {name} {example}".rstrip(),
        f"{__package__}.{function}",
        tuple(all_options.values()),
        aliases=aliases,
        changes=changes,
        listing=listing,
        is_extension=is_extension,
    )


COMMANDS: Final = (
    command(
        "updateTopic", "Update or create topic", "topics:update_topic",
        "-n 127.0.0.1:9876 -c DefaultCluster -t orders -r 8 -w 8",
        *target("create topic to which broker", "create topic to which cluster"),
        TOPIC,
        opt("r", "readQueueNums", "set read queue nums"),
        opt("w", "writeQueueNums", "set write queue nums"),
        opt("p", "perm", "set topic's permission(2|4|6), intro[2:W 4:R; 6:RW]"),
        opt("o", "order", "set topic's order(true|false)"),
        opt("u", "unit", "is unit topic (true|false)"),
        opt("s", "hasUnitSub", "has unit sub (true|false)"),
        opt("", "keep", "keep what is not given of a topic that exists", value=False, is_extension=True),
        changes=True,
    ),
    command(
        "deleteTopic", "Delete topic from broker and NameServer.", "topics:delete_topic",
        "-n 127.0.0.1:9876 -c DefaultCluster -t orders",
        TOPIC,
        opt("c", "clusterName", "delete topic from which cluster", required=True),
        opt("", "broker", "delete it from this broker of the cluster only", is_extension=True),
        changes=True,
    ),
    command(
        "updateSubGroup", "Update or create subscription group", "groups:update_sub_group",
        "-c DefaultCluster -g billing -r 3",
        opt("b", "brokerAddr", "create subscription group to which broker"),
        opt("c", "clusterName", "create subscription group to which cluster"),
        opt("g", "groupName", "consumer group name", required=True),
        opt("s", "consumeEnable", "consume enable"),
        opt("m", "consumeFromMinEnable", "from min offset"),
        opt("d", "consumeBroadcastEnable", "broadcast"),
        opt("q", "retryQueueNums", "retry queue nums"),
        opt("r", "retryMaxTimes", "retry max times"),
        opt("i", "brokerId", "consumer from which broker id"),
        opt("w", "whichBrokerWhenConsumeSlowly", "which broker id when consume slowly"),
        opt("a", "notifyConsumerIdsChanged", "notify consumerId changed"),
        changes=True,
    ),
    command(
        "deleteSubGroup", "Delete subscription group from broker.", "groups:delete_sub_group",
        "-c DefaultCluster -g billing",
        opt("b", "brokerAddr", "delete subscription group from which broker"),
        opt("c", "clusterName", "delete subscription group from which cluster"),
        GROUP_NAME,
        opt("r", "removeOffset", "remove offset"),
        changes=True,
    ),
    command(
        "updateBrokerConfig", "Update broker's config", "brokers:update_broker_config",
        "-n 127.0.0.1:9876 -c DefaultCluster -k fileReservedTime -v 72",
        opt("b", "brokerAddr", "update which broker"),
        opt("c", "clusterName", "update which cluster"),
        KEY, VALUE, changes=True,
    ),
    command(
        "updateTopicPerm", "Update topic perm", "topics:update_topic_perm",
        "-n 127.0.0.1:9876 -c DefaultCluster -t orders -p 4",
        opt("b", "brokerAddr", "create topic to which broker"),
        opt("c", "clusterName", "create topic to which cluster"),
        TOPIC,
        opt("p", "perm", "set topic's permission(2|4|6), intro[2:W; 4:R; 6:RW]", required=True),
        changes=True,
    ),
    command(
        "topicRoute", "Examine topic route info", "topics:topic_route", "-n 127.0.0.1:9876 -t orders",
        TOPIC, opt("l", "list", "Use list format to print data", value=False), listing=True,
    ),
    command(
        "topicStatus", "Examine topic Status info", "topics:topic_status", "-n 127.0.0.1:9876 -t orders",
        TOPIC, listing=True,
    ),
    command(
        "topicClusterList", "get cluster info for topic", "topics:topic_cluster_list", "-n 127.0.0.1:9876 -t orders",
        TOPIC, listing=True,
    ),
    command(
        "brokerStatus", "Fetch broker runtime status data", "brokers:broker_status",
        "-n 127.0.0.1:9876 -b 127.0.0.1:10911",
        BROKER, opt("c", "clusterName", "which cluster"), listing=True,
    ),
    command(
        "queryMsgById", "Query Message by Id", "queries:by_id", "-i 7F00000100002A9F0000000000000000",
        MESSAGE, GROUP_OPTIONAL, CLIENT,
        opt("s", "sendMessage", "resend message"),
        opt("u", "unitName", "unit name"),
        changes=True,
    ),
    command(
        "queryMsgByKey", "Query Message by Key", "queries:by_key", "-t orders -k order-1",
        TOPIC, opt("k", "msgKey", "Message Key", required=True), listing=True,
    ),
    command(
        "queryMsgByUniqueKey", "Query Message by Unique key", "queries:by_unique_key",
        "-t orders -i 7F0000010155A0B1C2D30000000A0000",
        MESSAGE, GROUP_OPTIONAL, CLIENT,
        opt("t", "topic", "The topic of msg", required=True),
        opt("a", "showAll", "Print all message, the limit is 32", value=False),
        changes=True,
    ),
    command(
        "queryMsgByOffset", "Query Message by offset", "queries:by_offset", "-t orders -b broker-a -i 0 -o 0",
        TOPIC, BROKER_NAME,
        opt("i", "queueId", "Queue Id", required=True),
        opt("o", "offset", "Queue Offset", required=True),
    ),
    command(
        "queryMsgTraceById", "query a message trace", "queries:trace_by_id", "-i 7F0000010155A0B1C2D30000000A0000",
        MESSAGE, opt("t", "traceTopic", "The name value of message trace topic"),
    ),
    command(
        "printMsg", "Print Message Detail", "messages:print_topic", "-t orders",
        TOPIC, CHARSET, FILTER, BEGIN, END, opt("d", "printBody ", "print body"),
    ),
    command(
        "printMsgByQueue", "Print Message Detail", "messages:print_queue", "-t orders -a broker-a -i 0 -p true -d true",
        TOPIC,
        opt("a", "brokerName ", "broker name", required=True),
        opt("i", "queueId ", "queue id", required=True),
        CHARSET, FILTER, BEGIN, END,
        opt("p", "print msg", "print msg. eg: true | false(default)"),
        opt("d", "printBody ", "print body. eg: true | false(default)"),
        opt("f", "calculate", "calculate by tag. eg: true | false(default)"),
    ),
    command(
        "sendMsgStatus", "send msg to broker.", "brokers:send_msg_status", "-n 127.0.0.1:9876 -b broker-a -c 10",
        BROKER_NAME,
        opt("s", "messageSize", "Message Size, Default: 128"),
        opt("c", "count", "send message count, Default: 50"),
        changes=True,
    ),
    command(
        "brokerConsumeStats", "Fetch broker consume stats data", "brokers:broker_consume_stats",
        "-n 127.0.0.1:9876 -b 127.0.0.1:10911 -l 1000",
        opt("b", "brokerAddr", "Broker address", required=True),
        opt("t", "timeoutMillis", "request timeout Millis"),
        opt("l", "level", "threshold of print diff"),
        opt("o", "order", "order topic"),
        listing=True,
    ),
    command(
        "producerConnection", "Query producer's socket connection and client version", "clients:producer_connection",
        "-g orders-p -t orders",
        opt("g", "producerGroup", "producer group name", required=True), TOPIC, listing=True,
    ),
    command(
        "consumerConnection", "Query consumer's socket connection, client version and subscription",
        "clients:consumer_connection", "-g billing",
        GROUP, opt("b", "brokerAddr", "broker address"), listing=True,
    ),
    command(
        "consumerProgress", "Query consumers's progress, speed", "groups:consumer_progress", "-g billing",
        opt("g", "groupName", "consumer group name"),
        opt("s", "showClientIP", "Show Client IP per Queue"),
        opt("", "since", "DURATION such as 2h: also how lag and consumption changed since then", is_extension=True),
        opt("", "history", "FILE of saturnmq collect or of the console (default history.db)", is_extension=True),
        listing=True,
    ),
    command(
        "consumerStatus", "Query consumer's internal data structure", "status:consumer_status", "-g billing",
        GROUP, opt("i", "clientId", "The consumer's client id"), opt("b", "brokerAddr", "broker address"), JSTACK,
    ),
    command(
        "cloneGroupOffset", "clone offset from other group.", "offsets:clone", "-s billing -d billing-2 -t orders",
        opt("s", "srcGroup", "set source consumer group", required=True),
        opt("d", "destGroup", "set destination consumer group", required=True),
        TOPIC_TO_SET,
        opt("o", "offline", "the group or the topic is offline"),
        changes=True,
    ),
    command(
        "producer", "Query producer's instances, connection, status, etc.", "clients:producer", "-b 127.0.0.1:10911",
        opt("b", "broker", "broker address", required=True), listing=True,
    ),
    command(
        "clusterList", "List all of clusters", "brokers:cluster_list", "-n 127.0.0.1:9876",
        opt("m", "moreStats", "Print more stats", value=False),
        opt("i", "interval", "specify intervals numbers, it is in seconds"),
        ROUNDS, listing=True,
    ),
    command(
        "topicList", "Fetch all topic list from name server", "topics:topic_list", "-n 127.0.0.1:9876",
        opt("c", "clusterModel", "clusterModel", value=False), listing=True,
    ),
    command(
        "updateKvConfig", "Create or update KV config.", "name_servers:update_kv_config",
        "-n 127.0.0.1:9876 -s space -k name -v text",
        NAMESPACE, KEY_TO_SET, opt("v", "value", "set the key value", required=True), changes=True,
    ),
    command(
        "deleteKvConfig", "Delete KV config.", "name_servers:delete_kv_config", "-n 127.0.0.1:9876 -s space -k name",
        NAMESPACE, KEY_TO_SET, changes=True,
    ),
    command(
        "wipeWritePerm", "Wipe write perm of broker in all name server you defined in the -n param",
        "name_servers:wipe_write_perm", "-n 127.0.0.1:9876 -b broker-a",
        BROKER_OF_PERM, changes=True,
    ),
    command(
        "addWritePerm", "Add write perm of broker in all name server you defined in the -n param",
        "name_servers:add_write_perm", "-n 127.0.0.1:9876 -b broker-a",
        BROKER_OF_PERM, changes=True,
    ),
    command(
        "resetOffsetByTime", "Reset consumer offset by timestamp(without client restart).", "offsets:reset_by_time",
        "-g billing -t orders -s now",
        GROUP_TO_SET, TOPIC_TO_SET,
        opt("s", "timestamp", "set the timestamp[now|currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]", required=True),
        FORCE,
        opt("c", "cplus", "reset c++ client offset", value=False),
        changes=True,
    ),
    command(
        "skipAccumulatedMessage", "Skip all messages that are accumulated (not consumed) currently", "offsets:skip",
        "-g billing -t orders",
        GROUP_TO_SET, TOPIC_TO_SET, FORCE, changes=True,
    ),
    command(
        "updateOrderConf", "Create or update or delete order conf", "topics:update_order_conf",
        "-n 127.0.0.1:9876 -t orders -m put -v 'broker-a:4;broker-b:4'",
        TOPIC,
        opt("v", "orderConf", "set order conf [eg. brokerName1:num;brokerName2:num]"),
        opt("m", "method", "option type [eg. put|get|delete", required=True),
        changes=True,
    ),
    command(
        "cleanExpiredCQ", "Clean expired ConsumeQueue on broker.", "brokers:clean_expired_cq",
        "-n 127.0.0.1:9876 -c DefaultCluster",
        BROKER, CLUSTER, changes=True,
    ),
    command(
        "deleteExpiredCommitLog", "Delete expired CommitLog files", "brokers:delete_expired_commit_log",
        "-n 127.0.0.1:9876 -c DefaultCluster",
        opt("n", "namesrvAddr", "Name server address"), BROKER, CLUSTER, changes=True,
    ),
    command(
        "cleanUnusedTopic", "Clean unused topic on broker.", "brokers:clean_unused_topic",
        "-n 127.0.0.1:9876 -c DefaultCluster",
        BROKER, opt("c", "cluster", "cluster name"), changes=True,
    ),
    command(
        "startMonitoring", "Start Monitoring", "status:start_monitoring", "",
        opt("", "webhook", "address that every report is posted to as JSON", is_extension=True),
    ),
    command(
        "statsAll", "Topic and Consumer tps stats", "stats:stats_all", "-t orders",
        opt("a", "activeTopic", "print active topic only", value=False),
        opt("t", "topic", "print select topic only"),
        listing=True,
    ),
    command(
        "allocateMQ", "Allocate MQ", "topics:allocate_mq", "-n 127.0.0.1:9876 -t orders -i 10.0.0.1,10.0.0.2",
        TOPIC,
        opt("i", "ipList", "ipList", required=True),
        opt("", "strategy", "as clients of this strategy divide the queues: average, circle, hash", is_extension=True),
    ),
    command(
        "checkMsgSendRT", "check message send response time", "messages:check_send_time", "-t orders -a 10",
        TOPIC, AMOUNT, SIZE, changes=True,
    ),
    command(
        "clusterRT", "List All clusters Message Send RT", "brokers:cluster_rt",
        "-n 127.0.0.1:9876 -a 10 -i 5 --rounds 1",
        AMOUNT, SIZE,
        opt("c", "cluster", "cluster name | default display all cluster"),
        opt("p", "print log", "print as tlog | default false"),
        opt("m", "machine room", "machine room name | default noname"),
        opt("i", "interval", "print interval | default 10 seconds"),
        ROUNDS, changes=True,
    ),
    command("getNamesrvConfig", "Get configs of name server.", "name_servers:get_namesrv_config", "-n 127.0.0.1:9876"),
    command(
        "updateNamesrvConfig", "Update configs of name server.", "name_servers:update_namesrv_config",
        "-n 127.0.0.1:9876 -k logLevel -v DEBUG",
        KEY, VALUE, changes=True,
    ),
    command(
        "getBrokerConfig", "Get broker config by cluster or special broker!", "brokers:get_broker_config",
        "-n 127.0.0.1:9876 -b 127.0.0.1:10911",
        opt("b", "brokerAddr", "get which broker"), opt("c", "clusterName", "get which cluster"),
    ),
    command(
        "getConsumerConfig", "Get consumer config by subscription group name!", "groups:get_consumer_config",
        "-g billing",
        GROUP_NAME, listing=True,
    ),
    command(
        "queryCq", "Query cq command.", "brokers:query_cq", "-n 127.0.0.1:9876 -t orders -q 0 -i 0 -c 5",
        TOPIC,
        opt("q", "queue", "queue num, ie. 1", required=True),
        opt("i", "index", "start queue index.", required=True),
        opt("c", "count", "how many."),
        opt("b", "broker", "broker addr."),
        opt("g", "consumer", "consumer group."),
        listing=True,
    ),
    command(
        "sendMessage", "Send a message", "messages:send", "-t orders -p hello",
        TOPIC_NAME,
        opt("p", "body", "UTF-8 string format of the message body", required=True),
        opt("k", "key", "Message keys"),
        opt("c", "tags", "Message tags"),
        opt("b", "broker", "Send message to target broker"),
        opt("i", "qid", "Send message to target queue"),
        opt("m", "msgTraceEnable", "Message Trace Enable, Default: false"),
        changes=True,
    ),
    command(
        "consumeMessage", "Consume message", "messages:consume", "-t orders",
        TOPIC_NAME,
        opt("b", "brokerName", "Broker name"),
        opt("i", "queueId", "Queue Id"),
        opt("o", "offset", "Queue offset"),
        opt("g", "consumerGroup", "Consumer group name"),
        opt("s", "beginTimestamp ", "Begin timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"),
        END,
        opt("c", "MessageNumber", "Number of message to be consumed"),
    ),
    command(
        "updateAclConfig", "Update acl config yaml file in broker", "accounts:update_account",
        "-n 127.0.0.1:9876 -c DefaultCluster -a account -s secret-key -t orders=PUB",
        *target("update acl config file to which broker", "update acl config file to which cluster"),
        opt("a", "accessKey", "set accessKey in acl config file", required=True),
        opt("s", "secretKey", "set secretKey in acl config file", required=True),
        opt("w", "whiteRemoteAddress", "set white ip Address for account in acl config file"),
        opt("i", "defaultTopicPerm", "set default topicPerm in acl config file"),
        opt("u", "defaultGroupPerm", "set default GroupPerm in acl config file"),
        opt("t", "topicPerms", "set topicPerms list,eg: topicA=DENY,topicD=SUB"),
        opt("g", "groupPerms", "set groupPerms list,eg: groupD=DENY,groupD=SUB"),
        opt("m", "admin", "set admin flag in acl config file"),
        changes=True,
    ),
    command(
        "deleteAclConfig", "Delete Acl Config Account in broker", "accounts:delete_account",
        "-n 127.0.0.1:9876 -c DefaultCluster -a account",
        *target("delete acl config account from which broker", "delete acl config account from which cluster"),
        opt("a", "accessKey", "set accessKey in acl config file for deleting which account", required=True),
        aliases=("deleteAccessConfig",), changes=True,
    ),
    command(
        "clusterAclConfigVersion", "List all of acl config version information in cluster", "accounts:versions",
        "-n 127.0.0.1:9876 -c DefaultCluster",
        *target("query acl config version for which broker", "query acl config version for specified cluster"),
        listing=True,
    ),
    command(
        "updateGlobalWhiteAddr", "Update global white address for acl Config File in broker",
        "accounts:update_white_addresses", "-n 127.0.0.1:9876 -c DefaultCluster -g 10.10.103.*",
        *target("update global white address to which broker", "update global white address to which cluster"),
        opt("g", "globalWhiteRemoteAddresses", "set globalWhiteRemoteAddress list,eg: 10.10.103.*,192.168.0.*", required=True),
        opt("p", "aclFileFullPath", "update global white address of specified acl file,eg: /xxx/plain_test.yml"),
        changes=True,
    ),
    command(
        "getAclConfig", "List all of acl config information in cluster", "accounts:listing",
        "-n 127.0.0.1:9876 -c DefaultCluster",
        *target("query acl config version for which broker", "query acl config version for specified cluster"),
        opt("", "show-secrets", "print the secret keys that Apache's broker sends", value=False, is_extension=True),
        aliases=("getAccessConfigSubCommand",), listing=True,
    ),
    command(
        "exportMetadata", "export metadata", "export:metadata", "-n 127.0.0.1:9876 -c DefaultCluster -f ./export",
        opt("c", "clusterName", "choose a cluster to export"),
        opt("b", "brokerAddr", "choose a broker to export"),
        opt("f", "filePath", "export metadata.json path | default /tmp/rocketmq/export"),
        opt("t", "topic", "only export topic metadata", value=False),
        opt("g", "subscriptionGroup", "only export subscriptionGroup metadata", value=False),
        opt("s", "specialTopic", "need retryTopic and dlqTopic", value=False),
    ),
    command(
        "exportConfigs", "export configs", "export:configs", "-n 127.0.0.1:9876 -c DefaultCluster -f ./export",
        CLUSTER_TO_EXPORT, opt("f", "filePath", "export configs.json path | default /tmp/rocketmq/export"),
    ),
    command(
        "exportMetrics", "export metrics", "export:metrics", "-n 127.0.0.1:9876 -c DefaultCluster -f ./export",
        CLUSTER_TO_EXPORT, opt("f", "filePath", "export metrics.json path | default /tmp/rocketmq/export"),
    ),
    command(
        "DecodeMessageId", "decode unique message ID", "queries:decode_id", "-i 7F0000013D8BA0C023467588476201DC",
        opt("i", "messageId", "unique message ID"), is_extension=True,
    ),
    command(
        "consumer", "Query consumer's connection, status, etc.", "status:consumer", "-g billing",
        GROUP, JSTACK, is_extension=True,
    ),
    command(
        "getConsumerStatus", "get consumer status from client.", "offsets:consumer_status", "-g billing -t orders",
        GROUP_TO_SET, TOPIC_TO_SET,
        opt("i", "originClientId", "set the consumer clientId"),
        listing=True, is_extension=True,
    ),
    command(
        "resetOffsetByTimeOld", "Reset consumer offset by timestamp(execute this command required client restart).",
        "offsets:reset_by_time_old", "-g billing -t orders -s 0",
        GROUP_TO_SET, TOPIC_TO_SET,
        opt("s", "timestamp", "set the timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]", required=True),
        FORCE, changes=True, is_extension=True,
    ),
)  # fmt: skip
BY_NAME: Final = {name.lower(): row for row in COMMANDS for name in (row.name, *row.aliases)}


def find(name: str) -> CliCommand | None:
    """The command of a name or alias, in any case."""
    return BY_NAME.get(name.lower())
