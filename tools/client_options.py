"""The text of docs/client-options.md, the reference of every option of a client, which make_keys.py writes.

Defaults, types and meanings are those of the settings classes, whose docstrings have a line `name: meaning` for each field.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from saturnmq.client.connection import url
from saturnmq.client.consumer import settings as consumer
from saturnmq.client.producer import settings as producer

HEAD: Final = """# Client options

Generated from the settings classes by `python tools/make_keys.py`.

Options are keywords, which editors complete and type checkers compare. An unknown one is named with the nearest known one; all
wrong values are reported at once, with their ranges. `saturnmq.sync` has the same options. Last column: the name in Apache
RocketMQ's client, where it has the option; Java counts `retryTimesWhenSendFailed` without the first attempt, and its
`consumeTimeout` is in minutes.
"""
KINDS: Final = (
    ("Client", "`Client(...)`, `Client.from_url`, `Client.from_env`; the keys of a URL.", url.ClientSettings, url.RANGES),
    ("Producers", "`client.producer(group, ...)`, and `codec`.", producer.ProducerSettings, producer.RANGES),
    ("Consumers", "`client.consumer(group, ...)` and `client.listener(topic, group=..., ...)`, and `codec`.",
     consumer.ConsumerSettings,
     consumer.RANGES | {name: (1, high) for name, high in consumer.TOPIC_MAXIMA.items()}),
)  # fmt: skip
UNITS: Final = {
    "timeout": "s", "ack_timeout": "s", "suspend": "s", "pull_interval": "s", "route_timeout": "s", "max_in_flight": "messages",
    "prefetch": "messages", "prefetch_per_topic": "messages", "pull_batch": "messages",
}  # fmt: skip
APACHE: Final = {
    "name_servers": "namesrvAddr", "timeout": "sendMsgTimeout", "attempts": "retryTimesWhenSendFailed", "namespace": "namespace",
    "address_server": "rocketmq.namesrv.domain", "instance": "instanceName", "unit": "unitName", "vip_channel": "vipChannelEnabled",
    "latency_fault": "sendLatencyFaultEnable", "retry_not_stored": "retryAnotherBrokerWhenNotStoreOK",
    "create_topic_key": "createTopicKey", "default_queues": "defaultTopicQueueNums", "tls": "useTLS",
    "smart_send": "org.apache.rocketmq.client.sendSmartMsg", "body_bytes_max": "maxMessageSize",
    "compress_from_bytes": "compressMsgBodyOverHowmuch", "compress_type": "rocketmq.message.compressType",
    "compress_level": "rocketmq.message.compressLevel", "route_poll_ms": "pollNameServerInterval",
    "heartbeat_ms": "heartbeatBrokerInterval", "persist_offsets_ms": "persistConsumerOffsetInterval",
    "rebalance_ms": "rocketmq.client.rebalance.waitInterval", "api_timeout_ms": "mqClientApiTimeout",
    "offsets_dir": "rocketmq.client.localOffsetStoreDir", "trace": "enableMsgTrace, customizedTraceTopic",
    "access_channel": "accessChannel", "access_key": "accessKey", "secret_key": "secretKey", "security_token": "securityToken",
    "key_file": "rocketmq.client.keyFile", "tls_verify": "tls.client.authServer", "tls_ca": "tls.client.trustCertPath",
    "tls_cert": "tls.client.certPath", "tls_key": "tls.client.keyPath", "tls_key_password": "tls.client.keyPassword",
    "check": "transactionListener", "check_executor": "executorService", "prefetch": "pullThresholdForQueue",
    "prefetch_per_topic": "pullThresholdForTopic", "prefetch_bytes_per_topic": "pullThresholdSizeForTopic",
    "start": "consumeFromWhere, consumeTimestamp", "pull_batch": "pullBatchSize", "pull_interval": "pullInterval",
    "max_times": "maxReconsumeTimes", "ack_timeout": "consumeTimeout", "strategy": "allocateMessageQueueStrategy",
    "suspend": "suspendCurrentQueueTimeMillis", "auto_commit": "autoCommit", "model": "messageModel",
}  # fmt: skip


def meanings(cls: type[Any]) -> dict[str, str]:
    """What the docstrings of a class and its bases say behind each field's name and a colon."""
    names = "|".join(field.name for field in dataclasses.fields(cls))
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        body = inspect.cleandoc(base.__doc__ or "").partition("\n\n")[2].partition("\n\n    ")[0]
        parts = re.split(rf"(?:^|\n| )({names}): ", body)
        texts |= {name: " ".join(text.split()).rstrip(".") for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    return texts


def unit(name: str) -> str:
    """The unit of a number."""
    if name.endswith("_ms") or "_ms_" in name:
        return "ms"
    return "bytes" if "bytes" in name else UNITS.get(name, "")


def shown(value: Any) -> str:
    """A default."""
    if value is dataclasses.MISSING:
        return "required"
    if isinstance(value, frozenset):
        return f"`{' '.join(map(str, sorted(value)))}`"
    return f"`{getattr(value, '__name__', None) or repr(value)}`"


def rows(cls: type[Any], ranges: dict[str, tuple[float, float]]) -> Iterator[str]:
    """The table of one class."""
    texts, hints = meanings(cls), get_type_hints(cls)
    yield from ("| option | default | allowed | unit | meaning | Apache RocketMQ |", "|---|---|---|---|---|---|")
    for field in dataclasses.fields(cls):
        name, kind = field.name, hints[field.name]
        if name in ranges:
            low, high = ranges[name]
            allowed = f"{low:g}..{high:.15g}" + (" or None" if type(None) in get_args(kind) else "")
        elif get_origin(kind) is Literal:
            allowed = ", ".join(map(repr, get_args(kind)))
        else:
            allowed = ""
        apache = f"`{APACHE[name]}`" if name in APACHE else ""
        cells = (f"`{name}`", shown(field.default), allowed, unit(name), texts[name], apache)
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for title, where, cls, ranges in KINDS:
        lines += [f"## {title}", "", where, "", *rows(cls, dict(ranges)), ""]
    return "\n".join(lines)
