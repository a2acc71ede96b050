"""Messages as Apache's tools print them: the lines of a query, the one line of printMsg, and JSON.

Requirements: C-23, C-28.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from saturnmq.admin.messages import Track
from saturnmq.cli.mqadmin.java_forms import absent, host_text, map_text, signed_bytes
from saturnmq.cli.mqadmin.options import WrongOptions
from saturnmq.cli.mqadmin.output import Time
from saturnmq.client.message import Message
from saturnmq.protocol.errors import SaturnError

Bounds: TypeAlias = tuple[int, int]


def lines_of(message: Message[Any], body_path: str, *, with_offset_id: bool, bounds: Bounds | None = None) -> list[str]:
    """A message as queries print it, without its tracks. bounds: first and next offset of its queue, if it was pulled."""
    record = message.record
    pairs: list[tuple[str, object]] = [("OffsetID:", message.offset_message_id)] if with_offset_id else []
    pairs += [
        ("Topic:", record.topic),
        ("Tags:", f"[{absent(record.tags)}]"),
        ("Keys:", f"[{absent(record.keys)}]"),
        ("Queue ID:", record.queue_id),
        ("Queue Offset:", record.queue_offset),
        ("CommitLog Offset:", record.physical_offset),
        ("Reconsume Times:", record.reconsume_times),
        ("Born Timestamp:", Time(record.born_timestamp_ms)),
        ("Store Timestamp:", Time(record.store_timestamp_ms)),
        ("Born Host:", host_text(record.born_host)),
        ("Store Host:", host_text(record.store_host)),
        ("System Flag:", record.sys_flag),
        ("Properties:", map_text(_properties(message, bounds))),
        ("Message Body Path:", body_path),
    ]
    return [f"{name:<20} {value}" for name, value in pairs]


def track_text(track: Track) -> str:
    """The state of a message in a group."""
    return (
        f"MessageTrack [consumerGroup={track.group}, trackType={track.track_type.value}, "
        f"exceptionDesc={absent(track.description)}]"
    )


def fields_of(message: Message[Any]) -> dict[str, Any]:
    """A message as fields of JSON, without its body."""
    record = message.record
    return {
        "message_id": message.message_id,
        "offset_id": message.offset_message_id,
        "topic": record.topic,
        "tags": record.tags,
        "keys": record.keys,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "commit_log_offset": record.physical_offset,
        "reconsume_times": record.reconsume_times,
        "born_timestamp": Time(record.born_timestamp_ms),
        "store_timestamp": Time(record.store_timestamp_ms),
        "born_host": host_text(record.born_host),
        "store_host": host_text(record.store_host),
        "sys_flag": record.sys_flag,
        "properties": dict(record.properties),
    }


def _properties(message: Message[Any], bounds: Bounds | None) -> dict[str, str]:
    """The properties; a pull of Apache's client adds the bounds of the queue."""
    added = {} if bounds is None else {"MIN_OFFSET": str(bounds[0]), "MAX_OFFSET": str(bounds[1])}
    return {**message.record.properties, **added}


def one_line(message: Message[Any], broker_name: str, bounds: Bounds) -> str:
    """A pulled message as Java's `MessageExt.toString` prints it. bounds: first and next offset of its queue."""
    record = message.record
    prepared = record.properties.get("TRAN_MSG", "").lower() == "true"
    transaction = absent(record.properties.get("UNIQ_KEY") if prepared else None)
    body = signed_bytes(message.body) if record.body else "null"
    inner = (
        f"Message{{topic='{record.topic}', flag={record.flag}, properties={map_text(_properties(message, bounds))}, body={body}, "
        f"transactionId='{transaction}'}}"
    )
    return (
        f"MessageExt [brokerName={broker_name}, queueId={record.queue_id}, storeSize={record.store_bytes}, "
        f"queueOffset={record.queue_offset}, sysFlag={record.sys_flag}, bornTimestamp={record.born_timestamp_ms}, "
        f"bornHost=/{host_text(record.born_host)}, storeTimestamp={record.store_timestamp_ms}, "
        f"storeHost=/{host_text(record.store_host)}, msgId={message.offset_message_id}, "
        f"commitLogOffset={record.physical_offset}, bodyCRC={record.body_crc}, reconsumeTimes={record.reconsume_times}, "
        f"preparedTransactionOffset={record.prepared_transaction_offset}, toString()={inner}]"
    )


def checked_charset(name: str) -> str:
    """The name of a character set. Raises WrongOptions for an unknown one."""
    try:
        b"".decode(name)
        "".encode(name)
    except (LookupError, ValueError):
        raise WrongOptions(f"-c {name!r:.80} is no character set, such as UTF-8 or GBK") from None
    return name


def body_text(message: Message[Any], charset: str) -> str:
    """The body as text; bytes that are none are replaced. A damaged body is named instead."""
    try:
        return message.body.decode(charset, "replace")
    except SaturnError as error:
        return f"<{error.message}>"
