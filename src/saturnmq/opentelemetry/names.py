"""Names of attributes and metrics: OpenTelemetry's semantic conventions for messaging and RocketMQ. Pure.

The package opentelemetry-semantic-conventions has pre-releases only, so the names are here. Two sets exist: "old" is that of the
messaging page, which instrumentations of other languages emit; "new" is that of the attribute registry. They differ in the system
and in the prefix of attributes that are specific to RocketMQ.

Requirements: INT-10 (spec 08, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from saturnmq.protocol.codes import PropertyKey

Value: TypeAlias = str | int | Sequence[str]

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
SYSTEM: Final = "rocketmq"
OLD: Final = (
    "messaging.system",
    "messaging.rocketmq.",
)  # attribute of the system, prefix of attributes that are specific to RocketMQ
NEW: Final = ("messaging.system.name", "rocketmq.")

# equal in both sets
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
CLIENT_ID: Final = "messaging.client.id"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

# specific to RocketMQ, behind the prefix of the set
NAMESPACE: Final = "namespace"
CONSUMPTION_MODEL: Final = "consumption_model"
MESSAGE_TYPE: Final = "message.type"
MESSAGE_TAG: Final = "message.tag"
MESSAGE_KEYS: Final = "message.keys"
MESSAGE_GROUP: Final = "message.group"
DELAY_LEVEL: Final = "message.delay_time_level"
DELIVERY_TIMESTAMP: Final = "message.delivery_timestamp"

# metrics, equal in both sets
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"

SHARDING_KEY: Final = "__SHARDINGKEY"  # property in which some Java clients state the group of an ordered message


class Names:
    """The sets of names to emit. opt_in: value of the environment variable OPT_IN, a comma-separated list."""

    def __init__(self, opt_in: str) -> None:
        choices = {choice.strip() for choice in opt_in.split(",")}
        if "messaging/dup" in choices:
            self._sets: tuple[tuple[str, str], ...] = (OLD, NEW)
        else:
            self._sets = (NEW,) if "messaging" in choices else (OLD,)

    def system(self) -> dict[str, Value]:
        """The attribute that names the messaging system, in the chosen sets."""
        return {name: SYSTEM for name, _ in self._sets}

    def prefixed(self, values: Mapping[str, Value | None]) -> dict[str, Value]:
        """RocketMQ's specific attributes, in the chosen sets; without those that are None."""
        return {prefix + name: value for _, prefix in self._sets for name, value in values.items() if value is not None}


def message_attributes(
    properties: Mapping[str, str], now_ms: int, shard_by: str | int | None = None
) -> dict[str, Value | None]:
    """The specific attributes of one message. now_ms: Unix ms, to which a relative delay is added. shard_by: of its send."""
    group = properties.get(SHARDING_KEY) if shard_by is None else str(shard_by)
    level = _integer(properties.get(PropertyKey.DELAY))
    timestamp = _delivery_timestamp(properties, now_ms)
    if properties.get(PropertyKey.TRAN_MSG) == "true":
        kind = "transaction"
    elif level is not None or timestamp is not None:
        kind = "delay"
    else:
        kind = "normal" if group is None else "fifo"
    return {
        MESSAGE_TYPE: kind,
        MESSAGE_TAG: properties.get(PropertyKey.TAGS),
        MESSAGE_KEYS: (properties.get(PropertyKey.KEYS) or "").split() or None,
        MESSAGE_GROUP: group,
        DELAY_LEVEL: level,
        DELIVERY_TIMESTAMP: timestamp,
    }


def _delivery_timestamp(properties: Mapping[str, str], now_ms: int) -> int | None:
    """When a delayed message is due, Unix ms; None for one without a delay or with a delay level."""
    for name, unit_ms in ((PropertyKey.TIMER_DELAY_MS, 1), (PropertyKey.TIMER_DELAY_SEC, 1000)):
        if (delay := _integer(properties.get(name))) is not None:
            return now_ms + delay * unit_ms
    return _integer(properties.get(PropertyKey.TIMER_DELIVER_MS) or properties.get("__STARTDELIVERTIME"))


def _integer(text: str | None) -> int | None:
    """The number, None for what is none: properties may hold any text."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
