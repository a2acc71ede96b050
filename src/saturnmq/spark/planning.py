"""Broker queries of planners: queues, bounds, positions of times and groups, record sizes.

All queries of a plan run in parallel; nothing here changes state on a broker. Does not import pyspark.

Requirements: SRC-02..SRC-06, SRC-15, SRC-16, SRC-19.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from saturnmq.errors import RouteNotFound
from saturnmq.protocol.bodies import MessageQueue, TopicList
from saturnmq.protocol.codes import AUTO_CREATE_TOPIC, DLQ_PREFIX, FORBIDDEN_SEND_TOPICS, RETRY_PREFIX, RequestCode
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_record
from saturnmq.spark.connect import Link, linked
from saturnmq.spark.fetch import BACKOFF_S, DataLoss, met_loss, where
from saturnmq.spark.index_lookup import narrowed_by_index
from saturnmq.spark.options import EARLIEST, Positions, SourceOptions
from saturnmq.spark.parallel import gathered
from saturnmq.spark.queue_state import queue_states, record_at
from saturnmq.spark.ranges import (
    Bounds,
    Key,
    Preceding,
    QueueRange,
    key_of,
    listed,
    named_queues,
    resolved_offsets,
    split,
)
from saturnmq.spark.source_puller import NoMaster

logger = logging.getLogger(__name__)

SIZE_SAMPLES: Final = 4
BRIEF_CHARS: Final = 300  # of an option's value in an error: JSON may name thousands of queues
QueueBounds = dict[MessageQueue, Bounds]
RangeOption = tuple[str, str | int | Positions]  # name and value
Missing = dict[str, ConfigError]  # by topic, or by pattern
R = TypeVar("R")


def is_system_topic(topic: str) -> bool:
    """Whether brokers create the topic for themselves or for groups."""
    return (
        topic in FORBIDDEN_SEND_TOPICS
        or topic in (AUTO_CREATE_TOPIC, "BenchmarkTest")
        or topic.upper().startswith(("RMQ_SYS_", RETRY_PREFIX, DLQ_PREFIX))
    )


async def _topic_list(link: Link, code: RequestCode) -> list[str]:
    answer = await link.core.name_servers.call(Command(code), link.core.settings.api_timeout_ms)
    return TopicList.decode(answer.body or b"{}").topic_list


async def topics_of(link: Link, options: SourceOptions, missing: Missing | None = None) -> list[str]:
    """Return the topics that the options name. A pattern matches no system, retry or dead-letter topic.

    missing: takes the error of a pattern that matches no topic. Raises ConfigError.
    """
    if options.assign is not None:
        # The same order in every plan.
        return sorted(options.assign)
    if options.pattern is None:
        return list(options.topics)
    names, system = await asyncio.gather(
        _topic_list(link, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        _topic_list(link, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS),  # cluster and broker names
    )
    matched = sorted(
        name
        for name in names
        # The NameServer's list does not name all system topics.
        if re.fullmatch(options.pattern, name) and name not in system and not is_system_topic(name)
    )
    if not matched:
        error = ConfigError(f"option subscribePattern={options.pattern!r} matches none of {len(names)} topics")
        if missing is None:
            raise error
        missing[options.pattern] = error
    return matched


# Asks no broker, which may be away.
def selects(options: SourceOptions, key: Key) -> bool:
    """Whether the options select the queue if it exists."""
    topic, broker, queue = key
    if options.queue_ids and queue not in options.queue_ids:
        return False
    if options.assign is not None:
        return queue in options.assign.get(topic, {}).get(broker, ())
    if options.pattern is not None:
        return re.fullmatch(options.pattern, topic) is not None and not is_system_topic(topic)
    return topic in options.topics


async def queues_of(link: Link, options: SourceOptions, missing: Missing | None = None) -> list[MessageQueue]:
    """Return every readable queue that the options select.

    missing: takes the error of each topic that has no route or not all queues of option assign, by topic, so that the other topics
    can be read. Raises ConfigError for an unknown topic or queue.
    """
    selected: list[MessageQueue] = []
    for topic in await topics_of(link, options, missing):
        try:
            queues = await link.puller.queues(topic)
        except SaturnError as cause:
            error = ConfigError(f"option topic: {topic!r} cannot be read from {options.name_server}: {cause}")
            # Only an unknown topic is left out; a NameServer that does not answer ends the plan.
            if missing is None or not isinstance(cause, RouteNotFound):
                raise error from cause
            missing[topic] = error
            continue
        if options.assign is not None:
            assigned = {(broker, queue) for broker, ids in options.assign[topic].items() for queue in ids}
            strange = sorted(assigned - {(q.broker_name, q.queue_id) for q in queues})
            if strange:
                error = ConfigError(f"option assign: topic {topic!r} has no queue {strange[0][1]} on {strange[0][0]!r}")
                if missing is None:
                    raise error
                missing[topic] = error
            # Those that exist are read, if the missing ones are only noted.
            queues = [q for q in queues if (q.broker_name, q.queue_id) in assigned]
        elif options.queue_ids:
            queues = [q for q in queues if q.queue_id in options.queue_ids]
        selected += queues
    # The order of the partitions.
    return sorted(selected, key=key_of)


async def bounds_of(link: Link, queues: Iterable[MessageQueue]) -> QueueBounds:
    """Return first and next offset of each queue, queried in parallel.

    Raises the error of the first broker that does not answer.
    """

    async def ask(queue: MessageQueue) -> Bounds:
        low, high = await asyncio.gather(link.puller.min_offset(queue), link.puller.max_offset(queue))
        # Asked at two moments: the beginning may have advanced past the end that was seen.
        return Bounds(low, max(low, high))

    # An iterable that is walked twice below.
    all_queues = list(queues)
    return dict(zip(all_queues, await gathered(ask, all_queues), strict=True))


async def bounds(link: Link, options: SourceOptions, missing: Missing | None = None) -> QueueBounds:
    """Return every selected queue with its bounds. missing: see `queues_of`."""
    return await bounds_of(link, await queues_of(link, options, missing))


async def records_at(link: Link, offsets: Mapping[Key, int]) -> dict[Key, Preceding]:
    """Return store time and position of the record at each offset; queues that do not return that record are omitted."""

    async def ask(item: tuple[Key, int]) -> Preceding | None:
        key, offset = item
        return record_at(await link.puller.pull(MessageQueue(*key), offset, max_count=1), offset)

    records = await gathered(ask, offsets.items())
    return {key: record for key, record in zip(offsets, records, strict=True) if record is not None}


def _behind(queue: MessageQueue, limits: Bounds, reason: str) -> NoMaster:
    """Return the error for offsets that a slave does not have, while its master does not answer."""
    return NoMaster(
        f"{where(queue)}: a slave has offsets {limits.low}..{limits.high}, not all that are to be read; {reason}",
        broker=queue.broker_name,
    )


async def checked(
    link: Link, queue_bounds: QueueBounds, offsets: dict[MessageQueue, int], options: SourceOptions, name: str
) -> dict[MessageQueue, int]:
    """Clamp offsets to the bounds; an offset outside is data loss: raised, or with failOnDataLoss=false recorded (SRC-15).

    Masters are asked about offsets outside, as a slave's bounds may be narrower (SRC-14). Raises NoMaster.
    """
    outside = {
        q: queue_bounds[q].low
        for q, offset in offsets.items()
        if not queue_bounds[q].low <= offset <= queue_bounds[q].high
    }
    # Only when it matters: most plans have nothing outside.
    states = await queue_states(link.core, link.puller.group, outside) if outside else {}
    for queue in outside:
        state = states[key_of(queue)]
        # No master can say whether the offsets exist: absence of an answer is not absence of data.
        if state.bounds is None:
            raise _behind(queue, queue_bounds[queue], state.reason)
        # The master's, for what follows too.
        queue_bounds[queue] = state.bounds
    moved = {}
    for queue, offset in offsets.items():
        limits = queue_bounds[queue]
        inside = min(max(offset, limits.low), limits.high)
        if inside != offset:
            reason = f"option {name}: offset {offset} of {where(queue)} is outside {limits.low}..{limits.high}"
            low, high = sorted((offset, inside))
            # Raises unless failOnDataLoss=false.
            met_loss(options, DataLoss(queue.topic, queue.broker_name, queue.queue_id, low, high, reason), name)
        moved[queue] = inside
    return moved


async def _committed(link: Link, queue_bounds: QueueBounds, options: SourceOptions) -> dict[MessageQueue, int]:
    """Return the group's committed offsets unchanged; groupOffsetFallback for queues without one (SRC-05)."""
    group = options.group or ""
    queues = list(queue_bounds)
    # In parallel: a plan may have thousands of queues.
    stored = await gathered(lambda queue: link.puller.committed(group, queue), queues)
    missing = [queue for queue, offset in zip(queues, stored, strict=True) if offset is None]
    if missing and options.group_fallback == "error":
        raise ConfigError(
            f"option startingOffsets=group: group {group!r} has no offset for {listed(missing)}; "
            "set groupOffsetFallback to earliest or latest"
        )
    # Only if needed: "error" is no position.
    fallback = resolved_offsets(queue_bounds, options.group_fallback, "groupOffsetFallback") if missing else {}
    return {q: fallback[q] if offset is None else offset for q, offset in zip(queues, stored, strict=True)}


async def _store_ms(link: Link, queue: MessageQueue, offset: int) -> int | None:
    """Return when the message was stored, Unix ms; None if it cannot be read. Raises NoMaster for a slave that is behind it."""
    result = await link.puller.pull(queue, offset, max_count=1)
    # A slave that has not copied this far, while the queue is longer.
    if not result.body and result.max_offset <= offset:
        limits = Bounds(result.min_offset, result.max_offset)
        raise _behind(queue, limits, f"offset {offset} is needed to find a time")
    return decode_record(result.body).store_timestamp_ms if result.body else None


class TimeBound(NamedTuple):
    """Position of a store time in a queue. offset: the first message seen that was stored at that time or later.

    falls: store times decrease near it, as after a backward step of a broker's clock, so that messages before the offset may be
    later and messages after it earlier than the time (SRC-04).
    """

    offset: int
    falls: bool


async def offset_of_time(link: Link, queue: MessageQueue, limits: Bounds, time_ms: int) -> TimeBound:
    """Return the first offset stored at time_ms or later, the queue's end if there is none (SRC-03, SRC-04).

    The broker's answer is only a hint: it may be any of several equal times, and a broker whose files were copied picks the
    wrong file. The neighbours of the hint are read; if they contradict it, the queue is searched by single reads. Then messages
    at exponentially growing distances on both sides are read to detect decreasing store times; if only a few messages are
    affected, this may miss them.
    """
    low, high = limits
    if low >= high:
        return TimeBound(low, False)
    store_times: dict[int, int] = {}  # offset: store time
    # The answer may lie outside of the bounds that were asked before.
    hint = min(max(await link.puller.offset_by_time(queue, time_ms), low), high)
    crossing = await _crossing(link, queue, limits, time_ms, hint, store_times)
    # 1, 2, 4 ... up to the length of the queue.
    steps = [1 << n for n in range((high - low).bit_length())]
    around = [
        at for step in steps for at in (crossing - step, crossing + step) if low <= at < high and at not in store_times
    ]
    for at in around:  # sequential: many queues are searched in parallel
        if (stored := await _store_ms(link, queue, at)) is not None:
            store_times[at] = stored
    earliest = min((at for at, stored in store_times.items() if stored >= time_ms), default=high)
    late = max((at for at, stored in store_times.items() if stored < time_ms), default=low - 1)
    # No decrease was seen.
    if late < earliest:
        return TimeBound(crossing, False)
    # The stretch in which the first one must lie.
    before = max((at for at, stored in store_times.items() if at < earliest and stored < time_ms), default=low - 1)
    earliest = await _searched(link, queue, Bounds(before + 1, earliest), time_ms, store_times)
    logger.warning("store times decrease queue=%s from=%d to=%d; the bound of %d ms is not exact there",
                   where(queue), earliest, late, time_ms)  # fmt: skip
    return TimeBound(earliest, True)


async def _crossing(
    link: Link, queue: MessageQueue, limits: Bounds, time_ms: int, hint: int, store_times: dict[int, int]
) -> int:
    """Return a first message stored at time_ms or later: the broker's hint or the one after it, else by search."""
    low, high = limits
    # Brokers may return the last message before the time.
    for guess in (hint, min(hint + 1, high)):
        for at in (guess - 1, guess):
            if low <= at < high and at not in store_times and (stored := await _store_ms(link, queue, at)) is not None:
                store_times[at] = stored
        # A first one: its predecessor is earlier, and it is late enough. A message that cannot be read is no proof.
        if (guess == low or store_times.get(guess - 1, time_ms) < time_ms) and (
            guess == high or store_times.get(guess, time_ms - 1) >= time_ms
        ):
            return guess
    return await _searched(link, queue, limits, time_ms, store_times)


async def _searched(link: Link, queue: MessageQueue, limits: Bounds, time_ms: int, store_times: dict[int, int]) -> int:
    """Binary search by single reads; a message that cannot be read counts as earlier."""
    low, high = limits
    while low < high:
        middle = (low + high) // 2
        # What was read before is not read again.
        if middle not in store_times and (stored := await _store_ms(link, queue, middle)) is not None:
            store_times[middle] = stored
        if store_times.get(middle, time_ms - 1) >= time_ms:
            high = middle
        else:
            low = middle + 1
    return low


async def _by_times(
    link: Link, queue_bounds: QueueBounds, times: Positions | int, name: str
) -> tuple[dict[MessageQueue, TimeBound], dict[MessageQueue, int]]:
    """Return (time bounds, times) by queue."""
    # One time for all queues, or one for each.
    times_by_queue = (
        dict.fromkeys(queue_bounds, times) if isinstance(times, int) else named_queues(queue_bounds, times, name)
    )
    time_bounds = await gathered(
        lambda item: offset_of_time(link, item[0], queue_bounds[item[0]], item[1]), times_by_queue.items()
    )
    return dict(zip(times_by_queue, time_bounds, strict=True)), times_by_queue


async def starts(
    link: Link, queue_bounds: QueueBounds, options: SourceOptions, *, compared: bool = True
) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
    """Return (first offset of each queue, store time from which on rows count). Times override offsets.

    A batch compares rows with the time when they are read, so where store times decrease the queue is read from its beginning
    and no row is missed. A stream (compared=False) does not compare, and begins at the first message seen that is late enough
    (SRC-04). Raises ConfigError, DataLossError.
    """
    absent = set(options.queue_ids) - {q.queue_id for q in queue_bounds}
    if absent:  # checked where a query begins; later a broker that is away may hide its queues
        raise ConfigError(
            f"option queues: no topic of the query has queue {min(absent)}; `saturnmq admin topicRoute` lists them"
        )
    times = options.starting_times if options.starting_times is not None else options.starting_ms
    if times is not None:
        name = "startingOffsetsByTimestamp" if options.starting_times is not None else "startingTimestamp"
        time_bounds, times_by_queue = await _by_times(link, queue_bounds, times, name)
        offsets = {
            q: queue_bounds[q].low if bound.falls and compared else bound.offset for q, bound in time_bounds.items()
        }
        # Nothing is that late, although the queue holds messages.
        empty = [q for q, offset in offsets.items() if offset >= queue_bounds[q].high > queue_bounds[q].low]
        if empty and options.starting_times is not None and options.time_strategy == "error":
            raise ConfigError(
                f"option {name}: nothing was stored at {times_by_queue[empty[0]]} or later in {listed(empty)}; "
                "set startingOffsetsByTimestampStrategy=latest to begin at the end"
            )
        return offsets, times_by_queue
    if options.starting == "group":
        return await checked(
            link, queue_bounds, await _committed(link, queue_bounds, options), options, "startingOffsets=group"
        ), {}
    return await checked(
        link,
        queue_bounds,
        resolved_offsets(queue_bounds, options.starting, "startingOffsets"),
        options,
        "startingOffsets",
    ), {}


async def _ends(
    link: Link, queue_bounds: QueueBounds, options: SourceOptions
) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
    times = options.ending_times if options.ending_times is not None else options.ending_ms
    if times is not None:
        name = "endingOffsetsByTimestamp" if options.ending_times is not None else "endingTimestamp"
        time_bounds, times_by_queue = await _by_times(link, queue_bounds, times, name)
        # To the end of the queue: rows are compared with the time.
        return {
            q: queue_bounds[q].high if bound.falls else bound.offset for q, bound in time_bounds.items()
        }, times_by_queue
    return await checked(
        link, queue_bounds, resolved_offsets(queue_bounds, options.ending, "endingOffsets"), options, "endingOffsets"
    ), {}


async def record_bytes(link: Link, queue_bounds: QueueBounds) -> dict[Key, float]:
    """Return the average record size in bytes by queue, from a few spaced samples; empty queues are omitted (SRC-06)."""

    async def average_bytes(queue: MessageQueue, limits: Bounds) -> float:
        length = limits.high - limits.low
        # Spaced evenly: sizes may change with time.
        sample_offsets = sorted({limits.low + length * n // SIZE_SAMPLES for n in range(SIZE_SAMPLES)})
        results = await asyncio.gather(*(link.puller.pull(queue, at, max_count=1) for at in sample_offsets))
        # The first field of a record is its size.
        sizes = [int.from_bytes(result.body[:4], "big") for result in results if result.body]
        return sum(sizes) / len(sizes) if sizes else 0.0

    nonempty = {q: b for q, b in queue_bounds.items() if b.high > b.low}
    averages = await gathered(lambda item: average_bytes(*item), nonempty.items())
    return {key_of(q): size for q, size in zip(nonempty, averages, strict=True) if size}


def _check_values(queue_bounds: QueueBounds, options: SourceOptions) -> None:
    """Compare starts and ends of the same kind as they are given, before offsets are clamped. Raises ConfigError."""
    (first, start), (last, stop) = _range_options(options)
    # An offset and a time cannot be compared here.
    if ("Timestamp" in first) != ("Timestamp" in last):
        return
    for queue in queue_bounds:
        begin, end = _number(start, queue), _number(stop, queue)
        if begin is not None and end is not None and begin > end:
            raise ConfigError(f"option {first}: {begin} of {where(queue)} is behind {end} of option {last}")


def _number(value: str | int | Positions, queue: MessageQueue) -> int | None:
    """Return the offset or time that an option gives a queue, None for a word or a special offset."""
    if isinstance(value, dict):
        # A queue that the option does not name has no number.
        value = value.get(queue.topic, {}).get(queue.broker_name, {}).get(queue.queue_id, EARLIEST)
    # Negative numbers are special offsets.
    return value if isinstance(value, int) and value >= 0 else None


def _check_order(begin: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], options: SourceOptions) -> None:
    """Raise ConfigError when a queue begins behind its end: such a read would be empty without a reason."""
    (first, start), (last, stop) = _range_options(options)
    for queue, offset in begin.items():
        if offset > end[queue]:
            raise ConfigError(
                f"option {first}={_brief(start)} begins at offset {offset} of {where(queue)}, behind offset {end[queue]}, where "
                f"option {last}={_brief(stop)} ends"
            )


def _range_options(options: SourceOptions) -> tuple[RangeOption, RangeOption]:
    """Return names and values of the options that decide where a batch begins and ends."""
    start: RangeOption = ("startingOffsets", options.starting)
    end: RangeOption = ("endingOffsets", options.ending)
    # Times win over offsets, and a time per queue over one for all.
    if options.starting_times is not None:
        start = ("startingOffsetsByTimestamp", options.starting_times)
    elif options.starting_ms is not None:
        start = ("startingTimestamp", options.starting_ms)
    if options.ending_times is not None:
        end = ("endingOffsetsByTimestamp", options.ending_times)
    elif options.ending_ms is not None:
        end = ("endingTimestamp", options.ending_ms)
    return start, end


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= BRIEF_CHARS else f"{text[:BRIEF_CHARS]}... ({len(text)} characters)"


async def with_masters(plan: Callable[[Link, SourceOptions], Awaitable[R]], link: Link, options: SourceOptions) -> R:
    """Return the result of a plan that asks masters only, as a slave may be behind; with readFrom=slave that asks either.

    While a broker name has slaves only, as during the election of a DLedger leader, it waits up to readTimeoutMs. Raises NoMaster.
    """
    is_slave_permitted = options.read_from == "slave"
    until, pause = time.monotonic() + options.read_timeout_ms / 1000, BACKOFF_S[0]
    while True:
        try:
            # A plan from a slave that is behind would leave out rows.
            return await plan(link if is_slave_permitted else link.masters(), options)
        except NoMaster as error:
            # Checked after the attempt, so that there is at least one.
            if time.monotonic() > until:
                if not is_slave_permitted:
                    error.hint = "Its slave may be behind; readFrom=slave plans with what the slave has."
                raise
            logger.warning("waiting for a master error=%s", error)
        await asyncio.sleep(pause)
        pause = min(pause * 2, BACKOFF_S[1])


async def _plan(link: Link, options: SourceOptions) -> list[QueueRange]:
    # Once: all queries of the plan use the same bounds.
    queue_bounds = await bounds(link, options)
    _check_values(queue_bounds, options)
    begin, since = await starts(link, queue_bounds, options)
    end, until = await _ends(link, queue_bounds, options)
    if not (since and until):  # where store times decrease, the offsets of two times in order need not be
        _check_order(begin, end, options)
    whole = [
        QueueRange(*key_of(q), begin[q], end[q], since.get(q), until.get(q)) for q in sorted(queue_bounds, key=key_of)
    ]
    if options.keys or options.uniq_keys:
        whole = await narrowed_by_index(link, whole, options)
    # Only asked if the option needs them.
    sizes = await record_bytes(link, queue_bounds) if options.bytes_per_partition else {}
    return split(whole, options.min_partitions, options.records_per_partition, options.bytes_per_partition, sizes)


def batch_ranges(options: SourceOptions) -> list[QueueRange]:
    """Return the ranges of a batch read, fixed and split (SRC-02, SRC-06). Raises ConfigError, DataLossError."""
    with linked(options) as link:
        return link.run(with_masters(_plan, link, options))
