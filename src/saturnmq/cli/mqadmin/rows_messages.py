"""Rows of the commands on messages.

Requirements: C-23..C-32.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.call import AdminCommand
from saturnmq.cli.mqadmin.options import Opt

_TOPIC: Final = Opt("t", "topic", "topic name", required=True)
_MESSAGE: Final = Opt("i", "msgId", "Message Id", required=True)
_GROUP: Final = Opt("g", "consumerGroup", "consumer group name")
_CLIENT: Final = Opt("d", "clientId", "The consumer's client id")
_CHARSET: Final = Opt("c", "charsetName ", "CharsetName(eg: UTF-8,GBK)")
_FILTER: Final = Opt("s", "subExpression ", "Subscribe Expression(eg: TagA || TagB)")
_BEGIN: Final = Opt("b", "beginTimestamp ", "Begin timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]")
_END: Final = Opt("e", "endTimestamp ", "End timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]")

ROWS: Final = (
    AdminCommand(
        "queryMsgById",
        "Query Message by Id",
        "saturnmq admin queryMsgById -i 7F00000100002A9F0000000000000000",
        "queries:by_id",
        (
            _MESSAGE,
            _GROUP,
            _CLIENT,
            Opt("s", "sendMessage", "resend message"),
            Opt("u", "unitName", "unit name"),
        ),
        changes=True,
    ),
    AdminCommand(
        "queryMsgByKey",
        "Query Message by Key",
        "saturnmq admin queryMsgByKey -t orders -k order-1",
        "queries:by_key",
        (_TOPIC, Opt("k", "msgKey", "Message Key", required=True)),
        listing=True,
    ),
    AdminCommand(
        "queryMsgByUniqueKey",
        "Query Message by Unique key",
        "saturnmq admin queryMsgByUniqueKey -t orders -i 7F0000010155A0B1C2D30000000A0000",
        "queries:by_unique_key",
        (
            _MESSAGE,
            _GROUP,
            _CLIENT,
            Opt("t", "topic", "The topic of msg", required=True),
            Opt("a", "showAll", "Print all message, the limit is 32", value=False),
        ),
        changes=True,
    ),
    AdminCommand(
        "queryMsgByOffset",
        "Query Message by offset",
        "saturnmq admin queryMsgByOffset -t orders -b broker-a -i 0 -o 0",
        "queries:by_offset",
        (
            _TOPIC,
            Opt("b", "brokerName", "Broker Name", required=True),
            Opt("i", "queueId", "Queue Id", required=True),
            Opt("o", "offset", "Queue Offset", required=True),
        ),
    ),
    AdminCommand(
        "queryMsgTraceById",
        "query a message trace",
        "saturnmq admin queryMsgTraceById -i 7F0000010155A0B1C2D30000000A0000",
        "queries:trace_by_id",
        (_MESSAGE, Opt("t", "traceTopic", "The name value of message trace topic")),
    ),
    AdminCommand(
        "printMsg",
        "Print Message Detail",
        "saturnmq admin printMsg -t orders",
        "messages:print_topic",
        (_TOPIC, _CHARSET, _FILTER, _BEGIN, _END, Opt("d", "printBody ", "print body")),
    ),
    AdminCommand(
        "printMsgByQueue",
        "Print Message Detail",
        "saturnmq admin printMsgByQueue -t orders -a broker-a -i 0 -p true -d true",
        "messages:print_queue",
        (
            _TOPIC,
            Opt("a", "brokerName ", "broker name", required=True),
            Opt("i", "queueId ", "queue id", required=True),
            _CHARSET,
            _FILTER,
            _BEGIN,
            _END,
            Opt("p", "print msg", "print msg. eg: true | false(default)"),
            Opt("d", "printBody ", "print body. eg: true | false(default)"),
            Opt("f", "calculate", "calculate by tag. eg: true | false(default)"),
        ),
    ),
    AdminCommand(
        "sendMessage",
        "Send a message",
        "saturnmq admin sendMessage -t orders -p hello",
        "messages:send",
        (
            Opt("t", "topic", "Topic name", required=True),
            Opt("p", "body", "UTF-8 string format of the message body", required=True),
            Opt("k", "key", "Message keys"),
            Opt("c", "tags", "Message tags"),
            Opt("b", "broker", "Send message to target broker"),
            Opt("i", "qid", "Send message to target queue"),
            Opt("m", "msgTraceEnable", "Message Trace Enable, Default: false"),
        ),
        changes=True,
    ),
    AdminCommand(
        "consumeMessage",
        "Consume message",
        "saturnmq admin consumeMessage -t orders",
        "messages:consume",
        (
            Opt("t", "topic", "Topic name", required=True),
            Opt("b", "brokerName", "Broker name"),
            Opt("i", "queueId", "Queue Id"),
            Opt("o", "offset", "Queue offset"),
            Opt("g", "consumerGroup", "Consumer group name"),
            Opt("s", "beginTimestamp ", "Begin timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"),
            Opt("e", "endTimestamp ", "End timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"),
            Opt("c", "MessageNumber", "Number of message to be consumed"),
        ),
    ),
    AdminCommand(
        "checkMsgSendRT",
        "check message send response time",
        "saturnmq admin checkMsgSendRT -t orders -a 10",
        "messages:check_send_time",
        (
            _TOPIC,
            Opt("a", "amount", "message amount | default 100"),
            Opt("s", "size", "message size | default 128 Byte"),
        ),
        changes=True,
    ),
    AdminCommand(
        "DecodeMessageId",
        "decode unique message ID",
        "saturnmq admin DecodeMessageId -i 7F0000013D8BA0C023467588476201DC",
        "queries:decode_id",
        (Opt("i", "messageId", "unique message ID"),),
        is_extension=True,
    ),
)
