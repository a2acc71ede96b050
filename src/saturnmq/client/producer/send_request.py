"""Send requests (codes 10, 310, 320, 324, 325), their responses, and the division of messages into batches. Pure.

Requirements: PR-23..PR-29, BAT-01..BAT-03, BAT-05, API-10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from saturnmq.client.delays import Delay
from saturnmq.client.receipt import STATUS_BY_CODE, Receipt, SendStatus
from saturnmq.errors import MessageRefused
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import CONFIRMATION_FIELD, RETRY_PREFIX, Confirmation, PropertyKey, RequestCode, SysFlag
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.numbers import int32_or, int64_or
from saturnmq.protocol.headers.send_fields import SEND_V1_BY_V2
from saturnmq.protocol.message import BATCH_FIXED_BYTES, BATCH_MESSAGES_MAX, BatchItem, encode_batch
from saturnmq.protocol.offsets import QueueOffset

_TRUE: Final = "true"
_NAME, _PAIR = "\x01", "\x02"
_CONFIRMATIONS: Final[dict[str | None, Confirmation]] = {item.value: item for item in Confirmation}
_REPLY_MARK: Final = f"{PropertyKey.MSG_TYPE}{_NAME}reply"


@dataclass(slots=True)
class Prepared:
    """A message or batch ready to be sent: everything that is the same for all attempts. topic is the name on the wire.

    ids: unique ids, one per message of a batch. properties: the encoded property string as text.
    timer: a delay that only some brokers support, None for a delay level or no delay. asks_confirmation: SaturnMQ's brokers state
    in the answer how the message is confirmed; Apache's ignore the field. shard_by: that of the send, for hooks.
    """

    topic: str
    body: bytes
    ids: tuple[str, ...]
    properties: str
    flag: int = 0
    sys_flag: int = 0
    batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    timer: Delay | None = None
    asks_confirmation: bool = False
    shard_by: str | int | None = None


def encode_property_text(
    unique_id: str,
    *,
    tag: str | None,
    keys: str,
    properties: Sequence[tuple[str, str]] = (),
    wait_stored: bool = True,
    delay: Delay | None = None,
    instance: str | None = None,
) -> str:
    """The property string: the user's pairs, KEYS, UNIQ_KEY, WAIT, TAGS, DELAY, INSTANCE_ID (PR-01, PR-23, PR-32)."""
    # Concatenated without a dict of properties: this runs for every message.
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties) if properties else ""
    if keys:
        text += f"KEYS\x01{keys}\x02"
    text += f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{'true' if wait_stored else 'false'}"
    if tag:
        text += f"\x02TAGS\x01{tag}"
    if delay is not None:
        text += f"\x02{delay.name}\x01{delay.value}"
    if instance:
        text += f"\x02INSTANCE_ID\x01{instance}"
    return text


def request_code(prepared: Prepared, *, smart: bool) -> int:
    """The request code: 320 for a batch; 325 for a reply, 310 otherwise; without smart, 324 and 10 (PR-28)."""
    if prepared.batch:
        return int(RequestCode.SEND_BATCH_MESSAGE)
    # The search is the cheap test; a user's value may contain the text.
    if _REPLY_MARK in prepared.properties and _REPLY_MARK in prepared.properties.split(_PAIR):
        return int(RequestCode.SEND_REPLY_MESSAGE_V2 if smart else RequestCode.SEND_REPLY_MESSAGE)
    return int(RequestCode.SEND_MESSAGE_V2 if smart else RequestCode.SEND_MESSAGE)


def send_command(
    prepared: Prepared,
    queue: MessageQueue,
    *,
    group: str,
    default_topic: str,
    default_queues: str,
    now_ms: int,
    smart: bool = True,
) -> Command:
    """The request of one attempt. now_ms: the born timestamp, Unix ms."""
    ext = {
        # One letter per field: V2, the short form.
        "a": group,
        "b": prepared.topic,
        "c": default_topic,
        "d": default_queues,
        "e": str(queue.queue_id),
        "f": str(prepared.sys_flag),
        "g": str(now_ms),
        "h": str(prepared.flag),
        "i": prepared.properties,
        "j": str(prepared.reconsume_times),
        # unitMode: units (sets) of brokers, which this client does not use.
        "k": "false",
        "m": _TRUE if prepared.batch else "false",
        "n": queue.broker_name,
    }
    if prepared.max_reconsume_times is not None:
        ext["l"] = str(prepared.max_reconsume_times)
    code = request_code(prepared, smart=smart)
    if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        ext = {SEND_V1_BY_V2[name]: value for name, value in ext.items()}
    if prepared.asks_confirmation:
        # Apache's brokers ignore an unknown field.
        ext[CONFIRMATION_FIELD] = "ask"
    return Command(code, ext=ext, body=prepared.body)


def move_retry_counts(prepared: Prepared) -> None:
    """Move RECONSUME_TIME and MAX_RECONSUME_TIMES of a message to a retry topic from the properties to the header (PR-27)."""
    if not prepared.topic.startswith(RETRY_PREFIX):
        return
    remaining_pairs: list[str] = []
    # The properties are text already: decoding them all would cost more.
    for pair in prepared.properties.split(_PAIR):
        name, _, value = pair.partition(_NAME)
        if name == PropertyKey.RECONSUME_TIME:
            prepared.reconsume_times = int(value)
        elif name == PropertyKey.MAX_RECONSUME_TIMES:
            prepared.max_reconsume_times = int(value)
        else:
            remaining_pairs.append(pair)
    prepared.properties = _PAIR.join(remaining_pairs)


def transaction_flag(properties: str) -> int:
    """sysFlag 4 (prepared) if TRAN_MSG=true, else 0 (PR-25)."""
    mark = f"{PropertyKey.TRAN_MSG}{_NAME}{_TRUE}"
    # The cheap test first, as above.
    return int(SysFlag.PREPARED) if mark in properties and mark in properties.split(_PAIR) else 0


def receipts(prepared: Prepared, queue: MessageQueue, answer: Command) -> list[Receipt]:
    """The receipts of a success response, one per message, in order (PR-29, BAT-05)."""
    ext = answer.ext
    status = STATUS_BY_CODE[answer.code]
    confirmation: Confirmation | None = None
    # False: flush or replication did not end in time.
    durable: bool | None = False
    if status is SendStatus.SEND_OK:
        confirmation = _CONFIRMATIONS.get(ext.get(CONFIRMATION_FIELD))
        # Apache's brokers do not say.
        durable = None if confirmation is None else confirmation.durable
    # Of a batch, the offset of its first message.
    first = int64_or(ext, "queueOffset", 0)
    queue_id = int32_or(ext, "queueId", queue.queue_id)
    if queue_id != queue.queue_id:  # the broker chose, as for a queue id below 0
        queue = MessageQueue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue_id)
    region = ext.get("MSG_REGION") or "DefaultRegion"
    # Absent means true, as in Java.
    trace_on = ext.get("TRACE_ON") != "false"
    transaction_id = ext.get("transactionId") or None
    offset_ids = (ext.get("msgId") or "").split(",")
    # A broker may answer fewer ids than messages.
    if len(offset_ids) < len(prepared.ids):
        offset_ids += [""] * (len(prepared.ids) - len(offset_ids))
    return [
        Receipt(
            status,
            unique_id,
            offset_ids[n],
            queue,
            QueueOffset(first + n),
            durable,
            region,
            trace_on,
            transaction_id,
            confirmation,
        )
        for n, unique_id in enumerate(prepared.ids)
    ]


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """One message to be batched. topic is the name on the wire."""

    topic: str
    unique_id: str
    item: BatchItem
    wait_stored: bool = True
    delay_level: int = 0

    @property
    def encoded_bytes(self) -> int:
        return BATCH_FIXED_BYTES + len(self.item.body) + len(self.item.properties_raw)


def prepare_batch(messages: Sequence[BatchMessage], bytes_max: int) -> Prepared:
    """The content of one batch request. Raises MessageRefused for what BAT-01 and BAT-02 forbid."""
    if not messages:
        raise MessageRefused("a batch must hold at least one message")
    first = messages[0]
    # The texts are those of Java's client.
    for message in messages:
        if message.delay_level > 0:
            raise MessageRefused("TimeDelayLevel is not supported for batching")
        if message.topic.startswith(RETRY_PREFIX):
            raise MessageRefused("Retry Group is not supported for batching")
        if message.topic != first.topic:
            raise MessageRefused("The topic of the messages in one batch should be the same")
        if message.wait_stored != first.wait_stored:
            raise MessageRefused("The waitStoreMsgOK of the messages in one batch should be the same")
    if len(messages) > BATCH_MESSAGES_MAX:
        raise MessageRefused(f"the batch has {len(messages)} messages, at most {BATCH_MESSAGES_MAX} are allowed")
    ids = tuple(message.unique_id for message in messages)
    batch = batch_of(first.topic, (message.item for message in messages), ids, wait_stored=first.wait_stored)
    if len(batch.body) > bytes_max:
        raise MessageRefused(f"the batch has {len(batch.body)} bytes, more than body_bytes_max {bytes_max}")
    return batch


def batch_of(topic: str, items: Iterable[BatchItem], ids: tuple[str, ...], *, wait_stored: bool) -> Prepared:
    """The content of one batch request."""
    properties = f"{PropertyKey.WAIT}{_NAME}{'true' if wait_stored else 'false'}"
    return Prepared(topic, encode_batch(items), ids, properties, batch=True)


def split_batches(messages: Sequence[BatchMessage], bytes_max: int) -> list[list[int]]:
    """Indexes of the messages of each batch: by topic and wait_stored, in order, within bytes_max and BATCH_MESSAGES_MAX (API-11).

    A single message over the limit gets a batch of its own, which prepare_batch refuses.
    """
    batches: list[list[int]] = []
    open_batches: dict[tuple[str, bool], tuple[list[int], int]] = {}
    for index, message in enumerate(messages):
        key = (message.topic, message.wait_stored)
        # Several topics may alternate.
        batch, used = open_batches.get(key, ([], 0))
        if batch and (used + message.encoded_bytes > bytes_max or len(batch) >= BATCH_MESSAGES_MAX):
            batch, used = [], 0
        if not batch:
            batches.append(batch)
        batch.append(index)
        open_batches[key] = (batch, used + message.encoded_bytes)
    return batches
