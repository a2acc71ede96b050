"""SaturnMQ: a message broker compatible with Apache RocketMQ 4.9.7, in Python.

This module exports the asyncio client. `saturnmq.sync` has the same names without `await`, `saturnmq.spark` the Spark source
and sink, `saturnmq.testing` a broker for tests.

Example:
    import asyncio
    from saturnmq import Client

    async def main() -> None:
        async with Client.from_url("rmq://127.0.0.1:9876") as client:
            async with client.producer("orders-p") as out, client.consumer("billing", start="first") as inbox:
                receipt = await out.send("orders", b"hello", tag="paid")
                print(receipt.message_id)
                await inbox.subscribe("orders")
                async for message in inbox:
                    print(message.body)
                    await message.ack()
                    break

    asyncio.run(main())

Names are imported lazily, on first access, so that `import saturnmq` is fast and imports no optional dependency.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from saturnmq.client.client import Client as Client
    from saturnmq.client.codecs import Codec as Codec
    from saturnmq.client.codecs import PropertyCodec as PropertyCodec
    from saturnmq.client.codecs import bytes_codec as bytes_codec
    from saturnmq.client.codecs import json_codec as json_codec
    from saturnmq.client.codecs import str_codec as str_codec
    from saturnmq.client.consumer.batch import Batch as Batch
    from saturnmq.client.consumer.consume_stats import ConsumerStats as ConsumerStats
    from saturnmq.client.consumer.consumer import Consumer as Consumer
    from saturnmq.client.consumer.listener import Retry as Retry
    from saturnmq.client.filters import Filter as Filter
    from saturnmq.client.filters import sql as sql
    from saturnmq.client.filters import tag as tag
    from saturnmq.client.hooks import ConsumeContext as ConsumeContext
    from saturnmq.client.hooks import ConsumeHook as ConsumeHook
    from saturnmq.client.hooks import EndContext as EndContext
    from saturnmq.client.hooks import SendContext as SendContext
    from saturnmq.client.hooks import SendHook as SendHook
    from saturnmq.client.hooks import install_hooks as install_hooks
    from saturnmq.client.hooks import remove_hooks as remove_hooks
    from saturnmq.client.message import Ack as Ack
    from saturnmq.client.message import Message as Message
    from saturnmq.client.message import Outgoing as Outgoing
    from saturnmq.client.metrics import ClientMetrics as ClientMetrics
    from saturnmq.client.outbox import OUTBOX_ID as OUTBOX_ID
    from saturnmq.client.outbox import Outbox as Outbox
    from saturnmq.client.outbox import OutboxStats as OutboxStats
    from saturnmq.client.producer.attempts import ProducerStats as ProducerStats
    from saturnmq.client.producer.producer import Producer as Producer
    from saturnmq.client.producer.transactions import Transaction as Transaction
    from saturnmq.client.puller.puller import Puller as Puller
    from saturnmq.client.puller.puller import PullResult as PullResult
    from saturnmq.client.puller.puller import PullStatus as PullStatus
    from saturnmq.client.queue_selectors import random_queue as random_queue
    from saturnmq.client.queue_selectors import same_site as same_site
    from saturnmq.client.receipt import Receipt as Receipt
    from saturnmq.client.receipt import SendStatus as SendStatus
    from saturnmq.client.receipt import TransactionState as TransactionState
    from saturnmq.client.trace.records import EndTransaction as EndTransaction
    from saturnmq.client.trace.records import Pub as Pub
    from saturnmq.client.trace.records import SubAfter as SubAfter
    from saturnmq.client.trace.records import SubBefore as SubBefore
    from saturnmq.client.trace.records import TraceRecord as TraceRecord
    from saturnmq.client.tracing import TraceStats as TraceStats
    from saturnmq.errors import AlreadySettled as AlreadySettled
    from saturnmq.errors import CallTimeout as CallTimeout
    from saturnmq.errors import ClientError as ClientError
    from saturnmq.errors import Closed as Closed
    from saturnmq.errors import ConnectFailed as ConnectFailed
    from saturnmq.errors import ConsumerStopped as ConsumerStopped
    from saturnmq.errors import DecodeError as DecodeError
    from saturnmq.errors import EncodeError as EncodeError
    from saturnmq.errors import ForkedClient as ForkedClient
    from saturnmq.errors import MessageRefused as MessageRefused
    from saturnmq.errors import NoNameServer as NoNameServer
    from saturnmq.errors import OffsetOutOfRange as OffsetOutOfRange
    from saturnmq.errors import PartialSend as PartialSend
    from saturnmq.errors import ProducerStopped as ProducerStopped
    from saturnmq.errors import RegistryError as RegistryError
    from saturnmq.errors import ReplyTimeout as ReplyTimeout
    from saturnmq.errors import RouteNotFound as RouteNotFound
    from saturnmq.errors import SendFailed as SendFailed
    from saturnmq.errors import TransactionRolledBack as TransactionRolledBack
    from saturnmq.errors import Unsupported as Unsupported
    from saturnmq.errors import WrongLoop as WrongLoop
    from saturnmq.protocol.bodies import MessageQueue as MessageQueue
    from saturnmq.protocol.codes import Confirmation as Confirmation
    from saturnmq.protocol.errors import ConfigError as ConfigError
    from saturnmq.protocol.errors import ResponseError as ResponseError
    from saturnmq.protocol.errors import SaturnError as SaturnError

__version__ = "0.1.0"

_HOME: Final = {
    "saturnmq.client.consumer.batch": ("Batch",),
    "saturnmq.client.client": ("Client",),
    "saturnmq.client.codecs": ("Codec", "PropertyCodec", "bytes_codec", "json_codec", "str_codec"),
    "saturnmq.client.consumer.consumer": ("Consumer",),
    "saturnmq.errors": (
        "AlreadySettled",
        "CallTimeout",
        "ClientError",
        "Closed",
        "ConnectFailed",
        "ConsumerStopped",
        "DecodeError",
        "EncodeError",
        "ForkedClient",
        "MessageRefused",
        "NoNameServer",
        "OffsetOutOfRange",
        "PartialSend",
        "ProducerStopped",
        "RegistryError",
        "ReplyTimeout",
        "RouteNotFound",
        "SendFailed",
        "TransactionRolledBack",
        "Unsupported",
        "WrongLoop",
    ),
    "saturnmq.client.hooks": (
        "ConsumeContext",
        "ConsumeHook",
        "EndContext",
        "SendContext",
        "SendHook",
        "install_hooks",
        "remove_hooks",
    ),
    "saturnmq.client.consumer.consume_stats": ("ConsumerStats",),
    "saturnmq.client.consumer.listener": ("Retry",),
    "saturnmq.client.producer.attempts": ("ProducerStats",),
    "saturnmq.client.metrics": ("ClientMetrics",),
    "saturnmq.client.message": ("Ack", "Message", "Outgoing"),
    "saturnmq.client.queue_selectors": ("random_queue", "same_site"),
    "saturnmq.client.receipt": ("Receipt", "SendStatus", "TransactionState"),
    "saturnmq.client.tracing": ("TraceStats",),
    "saturnmq.client.outbox": ("OUTBOX_ID", "Outbox", "OutboxStats"),
    "saturnmq.client.producer.producer": ("Producer",),
    "saturnmq.client.puller.puller": ("PullResult", "PullStatus", "Puller"),
    "saturnmq.client.filters": ("Filter", "sql", "tag"),
    "saturnmq.client.trace.records": (
        "EndTransaction",
        "Pub",
        "SubAfter",
        "SubBefore",
        "TraceRecord",
    ),
    "saturnmq.client.producer.transactions": ("Transaction",),
    "saturnmq.protocol.bodies": ("MessageQueue",),
    "saturnmq.protocol.codes": ("Confirmation",),
    "saturnmq.protocol.errors": ("ConfigError", "ResponseError", "SaturnError"),
}
_MODULE_OF: Final = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'saturnmq' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
