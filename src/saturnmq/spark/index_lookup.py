"""Narrows queue ranges by the broker's key index, for options keys and uniqKeys.

The index returns a capped number of records with matching hashes (IX-03, IX-06), and may cover less than the queues at either end.
Its answer is therefore used only when it is shorter than the cap and the oldest and newest records of the ranges are in the index;
otherwise the ranges are read whole. In both cases rows are compared again when they are read. Does not import pyspark.

Requirements: SRC-19.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PropertyKey, RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Message, decode_record, decode_records
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.spark.connect import Link
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.ranges import QueueRange

logger = logging.getLogger(__name__)

ANSWER_MAX: Final = 64  # records per response, the broker's limit
ANSWER_BYTES: Final = 1024 * 1024  # a longer response may have been truncated by size
KEYS_MAX: Final = 8
RANGE_MIN: Final = 1000  # below this number of messages reading them is faster than a lookup
NEAR: Final = 256  # offsets closer than this are read as one range
PIECES_MAX: Final = 128
_FOREVER: Final = str(2**63 - 1)


async def narrowed_by_index(link: Link, ranges: Iterable[QueueRange], options: SourceOptions) -> list[QueueRange]:
    """Return the ranges, narrowed to the offsets of the keys for brokers whose index covers them; others unchanged."""
    keys = index_keys(options)
    whole = list(ranges)
    if keys is None:
        return whole
    groups: dict[tuple[str, str], list[QueueRange]] = {}
    for r in whole:
        groups.setdefault((r.topic, r.broker), []).append(r)
    narrowed = await asyncio.gather(
        *(_of_broker(link, *name, broker_ranges, keys) for name, broker_ranges in groups.items())
    )
    return [
        r
        for broker_ranges, better in zip(groups.values(), narrowed, strict=True)
        for r in (broker_ranges if better is None else better)
    ]


def index_keys(options: SourceOptions) -> list[str] | None:
    """Return the keys to look up; None when there are none, or so many that reading the ranges is faster."""
    keys = sorted(options.uniq_keys or options.keys)
    return keys if 0 < len(keys) <= KEYS_MAX else None


async def _of_broker(
    link: Link, topic: str, broker: str, ranges: Sequence[QueueRange], keys: Sequence[str]
) -> list[QueueRange] | None:
    live = [r for r in ranges if r.end > r.begin]
    if sum(r.end - r.begin for r in live) < RANGE_MIN:
        return None
    try:
        if not await _covers(link, topic, broker, live):
            return None
        answers = await asyncio.gather(*(_query(link, topic, broker, key) for key in keys))
    except SaturnError as error:
        logger.info("key index not used topic=%s broker=%s reason=%s", topic, broker, error)
        return None
    if any(answer is None for answer in answers):
        return None
    positions = {(m.queue_id, m.queue_offset) for answer in answers for m in answer or ()}
    pieces = [piece for r in live for piece in _pieces(r, positions)]
    return pieces if len(pieces) <= PIECES_MAX else None


def _pieces(r: QueueRange, positions: set[tuple[int, QueueOffset]]) -> list[QueueRange]:
    """Return the parts of a range around these positions; positions close together share one."""
    parts: list[QueueRange] = []
    for offset in sorted(at for queue_id, at in positions if queue_id == r.queue_id and r.begin <= at < r.end):
        if parts and offset - parts[-1].end < NEAR:
            parts[-1] = parts[-1]._replace(end=offset + 1)
        else:
            parts.append(r._replace(begin=offset, end=offset + 1))
    return parts


async def _covers(link: Link, topic: str, broker: str, ranges: Sequence[QueueRange]) -> bool:
    """Whether the oldest and the newest record of the ranges are in the index, which is built in log order."""
    positions = [(r.queue_id, at) for r in ranges for at in sorted({r.begin, r.end - 1})]
    pulled = await asyncio.gather(
        *(link.puller.pull(MessageQueue(topic, broker, queue_id), at, max_count=1) for queue_id, at in positions)
    )
    if not all(result.body for result in pulled):
        return False
    records = sorted((decode_record(result.body) for result in pulled), key=lambda m: m.physical_offset)
    for record in (records[0], records[-1]):
        uniq = record.properties.get(PropertyKey.UNIQ_KEY)
        answer = await _query(link, topic, broker, uniq, capped=True) if uniq else None
        if answer is None or all(m.physical_offset != record.physical_offset for m in answer):
            return False
    return True


async def _query(link: Link, topic: str, broker: str, key: str, *, capped: bool = False) -> list[Message] | None:
    """Return the records with a matching hash; None when there may be more than returned, unless `capped`. Raises SaturnError."""
    address = await link.core.master_address(topic, broker)
    ext = {"topic": topic, "key": key, "maxNum": str(ANSWER_MAX), "beginTimestamp": "0", "endTimestamp": _FOREVER,
           "_UNIQUE_KEY_QUERY": "false"}  # fmt: skip
    answer = await link.core.remote.call(
        address, Command(RequestCode.QUERY_MESSAGE, ext=ext), link.core.settings.api_timeout_ms
    )
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise link.core.answer_error(answer, address, topic=topic)
    body = answer.body or b""
    records = list(decode_records(body))
    return records if capped or (len(records) < ANSWER_MAX and len(body) < ANSWER_BYTES) else None
