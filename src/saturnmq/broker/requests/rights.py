"""The rights that each request needs, resolved to resources: strict ones from the request table, or those of 4.9.7.

Some resources are not in the header: the groups and topics of a heartbeat or a lock request are in the body, and those that read
or move one message name it by its offset. The topic of that message is what counts then, for internal topics the topic that
the message is for.

Requirements: ACL-09, ACL-10, ACL-13, SEC-12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from saturnmq.acl.accounts import PUB, SUB, group_resource, shown_resource
from saturnmq.acl.rules import AccessDenied, RequiredRights
from saturnmq.broker.requests.message_queries import record_at
from saturnmq.broker.requests.table import TABLE
from saturnmq.broker.requests.table_row import Effect, Need, Resource, Right, decode_body
from saturnmq.protocol.bodies import HeartbeatData, LockBatchRequest
from saturnmq.protocol.codes import FORBIDDEN_SEND_TOPICS, REPLY_TOPIC_SUFFIX, RETRY_PREFIX, PropertyKey
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.errors import MessageError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.message import decode_record
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store import MessageStore

_BITS: Final = {Right.PUB: PUB, Right.SUB: SUB}
_ADMIN: Final = (Need(Right.ADMIN, Resource.CLUSTER),)
_TOPIC: Final = Need(Right.SUB, Resource.TOPIC, "topic")
_GROUP: Final = Need(Right.SUB, Resource.GROUP, "consumerGroup")
_REPLIES: Final = frozenset({Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2})
_OFFSET_DIGITS_MAX: Final = 19
_NO_RESOURCE: Final = ""  # no account has a right on it

# What 4.9.7 checks; every other code needs a valid signature only. Code 10 has no field `group`, so that 4.9.7 checks nothing for
# a retry topic there.
COMPAT_NEEDS: Final[dict[int, tuple[Need, ...]]] = {
    Code.SEND_MESSAGE: (Need(Right.PUB, Resource.TOPIC, "topic", "group"),),
    Code.SEND_MESSAGE_V2: (Need(Right.PUB, Resource.TOPIC, "b", "a"),),
    Code.CONSUMER_SEND_MSG_BACK: (Need(Right.SUB, Resource.GROUP, "group"),),
    Code.PULL_MESSAGE: (_TOPIC, _GROUP),
    Code.LITE_PULL_MESSAGE: (_TOPIC, _GROUP),
    Code.QUERY_MESSAGE: (_TOPIC,),
    Code.HEART_BEAT: (Need(Right.SUB, Resource.GROUP), Need(Right.SUB, Resource.TOPIC)),
    Code.UNREGISTER_CLIENT: (_GROUP,),
    Code.GET_CONSUMER_LIST_BY_GROUP: (_GROUP,),
    Code.UPDATE_CONSUMER_OFFSET: (_GROUP, _TOPIC),
    Code.UPDATE_AND_CREATE_TOPIC: _ADMIN,
    Code.UPDATE_BROKER_CONFIG: _ADMIN,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _ADMIN,
    Code.DELETE_SUBSCRIPTIONGROUP: _ADMIN,
    Code.DELETE_TOPIC_IN_BROKER: _ADMIN,
}
# Fields that may be absent: a client without consumers unregisters without a group; the others narrow what is read.
_OPTIONAL: Final = frozenset(
    {
        (Code.UNREGISTER_CLIENT, "consumerGroup"),
        (Code.GET_CONSUME_STATS, "topic"),
        (Code.QUERY_CONSUME_QUEUE, "consumerGroup"),
    }
)
# Of these 4.9.7 decodes the header, and refuses the request when the field is absent.
_COMPAT_REQUIRED: Final = frozenset({Code.GET_CONSUMER_LIST_BY_GROUP, Code.UPDATE_CONSUMER_OFFSET})


class Rights:
    """Rights that requests to one broker need. cluster: its name, for the topic of replies. compat: as in 4.9.7."""

    def __init__(self, store: MessageStore, cluster: str, *, compat: bool) -> None:
        self._store = store
        # The only topic to which a reply may be addressed.
        self._reply_topic = f"{cluster}_{REPLY_TOPIC_SUFFIX}"
        self._compat = compat
        self._needs = COMPAT_NEEDS if compat else {code: route.needs for code, route in TABLE.items()}
        self._admin = {code for code, needs in self._needs.items() if any(need.right is Right.ADMIN for need in needs)}
        self._changes = {code for code, route in TABLE.items() if route.effect is Effect.CHANGE}
        self._changes.add(Code.UPDATE_BROKER_CONFIG)

    def required(self, command: Command) -> RequiredRights:
        """Rights that a request needs. Raises AccessDenied when a field or body that names a resource is missing or malformed."""
        code = command.code
        needs = self._needs.get(code, ())
        if not needs:
            return RequiredRights()
        admin = code in self._admin
        try:
            # Evaluated here, so that a malformed body is found before the handler runs.
            resources = tuple(self._resources(command, needs))
        except SaturnError as error:
            if isinstance(error, AccessDenied):
                raise
            raise AccessDenied(error.message, "parse") from error
        return RequiredRights(admin, resources, code in self._changes)

    def _resources(self, command: Command, needs: tuple[Need, ...]) -> Iterator[tuple[str, int]]:
        for need in needs:
            if need.right is Right.ADMIN:
                continue
            if not need.field:
                if need.resource is Resource.GROUP:
                    yield from _in_body(command)  # all of them
                continue
            text = command.ext.get(need.field)
            # 4.9.7 accepts an empty name and checks nothing for it.
            if text is None or (not text and not self._compat):
                if not self._may_lack(command.code, need.field):
                    raise AccessDenied(f"the custom field <{need.field}> is null", "parse")
                continue
            yield from self._named(command, need, text)

    def _may_lack(self, code: int, field: str) -> bool:
        if self._compat:
            return code not in _COMPAT_REQUIRED
        return (code, field) in _OPTIONAL

    def _named(self, command: Command, need: Need, text: str) -> Iterator[tuple[str, int]]:
        """The resource of a need that a field names."""
        bits = _BITS[need.right]
        if need.resource is Resource.GROUP:
            yield group_resource(text), bits
        elif command.code in _REPLIES and not self._compat and text != self._reply_topic:
            # The broker pushes a reply to a client, whatever its topic is.
            raise AccessDenied(f"replies are sent to topic:{self._reply_topic}, not to {shown_resource(text)}")
        elif need.resource is Resource.MESSAGE:
            yield self._topic_at(text), bits
        # A consumer that sends a message back writes to its own retry topic.
        elif bits == PUB and text.startswith(RETRY_PREFIX):
            if not need.retry_group:
                yield text, SUB  # only a consumer of the group writes to its retry topic
            elif (group := command.ext.get(need.retry_group)) is not None:
                yield group_resource(group), SUB
        else:
            yield text, bits

    def _topic_at(self, text: str) -> str:
        """The topic of the message at a physical offset or with an offset message id; _NO_RESOURCE if there is none now."""
        try:
            # An offset has at most 19 digits; anything longer is a message id.
            if len(text) > _OFFSET_DIGITS_MAX:
                offset = parse_offset_message_id(text)[1]
            elif text.isascii() and text.isdigit():
                offset = PhysicalOffset(int(text))
            else:
                return _NO_RESOURCE
            record = record_at(self._store, offset)
            if record is None:
                return _NO_RESOURCE
            message = decode_record(record)
        except MessageError:
            return _NO_RESOURCE
        # An internal message belongs to the topic in its property.
        if message.topic in FORBIDDEN_SEND_TOPICS:
            return message.properties.get(PropertyKey.REAL_TOPIC, message.topic)
        return message.topic


def _heartbeat(command: Command) -> Iterator[str]:
    for consumer in decode_body(HeartbeatData, command).consumer_data_set:
        yield group_resource(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            yield subscription.topic


def _locks(command: Command) -> Iterator[str]:
    request = decode_body(LockBatchRequest, command)
    yield group_resource(request.consumer_group)
    for queue in request.mq_set:
        yield queue.topic


_BODIES: Final[dict[int, Callable[[Command], Iterator[str]]]] = {
    Code.HEART_BEAT: _heartbeat,
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
}


def _in_body(command: Command) -> Iterator[tuple[str, int]]:
    """The groups and topics that a body names, each once, with the right SUB. Raises BodyError."""
    for resource in dict.fromkeys(_BODIES[command.code](command)):
        yield resource, SUB
