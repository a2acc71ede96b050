"""The transactional sink: tasks store half messages; the commit of a batch decides and ends them.

`write_halves` runs in tasks, `commit` and `abort` in processes that Spark starts beside its driver, and that may outlive it;
`answering` runs in the user's driver: brokers know only that process as a producer of the group, so they send it the check-backs
of halves whose end was lost. Spark calls `abort` after every failure, also of `commit` itself, and before tasks of the batch
have ended that still store halves. Only the decision log says what becomes of a half (decision 0028). Does not import pyspark.

Requirements: SNK-10, SNK-11, SNK-14, SNK-17..SNK-19.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from saturnmq.client.connection.transaction_checks import end_command
from saturnmq.client.message import Message
from saturnmq.client.receipt import Receipt, TransactionState
from saturnmq.errors import ConnectFailed
from saturnmq.protocol.codes import RequestCode, ResponseCode, SysFlag
from saturnmq.protocol.errors import ConfigError, SaturnError, StoreError
from saturnmq.protocol.frames.command import Command, Serialization
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.spark.connect import ConnectionOptions, Link, linked
from saturnmq.spark.decision_log import (
    END_TIMEOUT_MS,
    FENCE_PROPERTY,
    QUIET_MS,
    BatchDecision,
    DecisionLog,
    Fence,
    StoredHalf,
    is_repeatable,
    now_ms,
)
from saturnmq.spark.encode import EncodedRequest
from saturnmq.spark.sending import BUSY_CODES, PAUSE_S, Sender

logger = logging.getLogger(__name__)
GROUP_PREFIX: Final = "SPARK_"
ENDS_AT_ONCE: Final = 64
REACH_SECONDS: Final = 60.0  # how long a commit waits for an unreachable broker


@dataclass(frozen=True)
class Halves:
    """The half messages that one attempt of a task stored."""

    fence: Fence
    halves: tuple[StoredHalf, ...]


def group_of(configured: str | None, query: str) -> str:
    """Return the producer group: the option's, else one derived from the query."""
    return configured or GROUP_PREFIX + query


def fence_text(fence: Fence, group: str, immunity_s: int) -> str:
    """The properties of a half message beside its own: its fencing key and the age below which brokers send no check-back."""
    return (f"\x02TRAN_MSG\x01true\x02PGROUP\x01{group}\x02{FENCE_PROPERTY}\x01{fence}"
            f"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{immunity_s}")  # fmt: skip


def as_half(request: EncodedRequest, text: str) -> EncodedRequest:
    """Make the request that of a half message, with the properties of `fence_text`."""
    prepared = request.prepared
    prepared.properties += text
    prepared.sys_flag |= int(SysFlag.PREPARED)
    return request


def write_halves(sender: Sender, requests: Sequence[EncodedRequest], fence: Fence) -> Halves:
    """Store half messages, each durable or an error. Raises StoreError; what was stored by then is rolled back by check-backs."""
    group = sender.options.producer_group
    stored: list[StoredHalf] = []

    def took(request: EncodedRequest, receipts: list[Receipt]) -> None:
        receipt, uniq = receipts[0], request.prepared.ids[0]
        where = receipt.queue.broker_name, receipt.offset, receipt.offset_message_id or uniq
        stored.append(StoredHalf(uniq, request.target.topic, *where))

    sender.took = took
    text = fence_text(fence, group, sender.options.check_after_ms // 1000)
    sender.link.run(sender.send([as_half(request, text) for request in requests]))
    return Halves(fence, tuple(stored))


def commit(connection: ConnectionOptions, log: DecisionLog, group: str, written: Sequence[Halves], batch: str) -> int:
    """Decide the batch, then end its halves; return how many ends a broker acknowledged.

    For a batch decided before, the new halves are rolled back and decided ones whose end was not sent yet are committed. An end
    whose response was lost is not repeated, because an Apache broker would store the message twice: the check-back settles it.

    Raises OSError or StoreError when the decision cannot be recorded; nothing is committed then. Raises StoreError for a decided
    batch when a broker is unreachable or rejects an end; the next run of the batch sends the ends that were not sent.
    """
    proposed = BatchDecision(written[0].fence.query if written else "-", batch, frozenset(w.fence.token for w in written),
                             tuple(half for w in written for half in w.halves))  # fmt: skip
    if not proposed.pending and log.read(batch) is None:
        return 0
    decision = log.decide(proposed)
    rolled_back = [half for w in written if w.fence.token not in decision.tokens for half in w.halves]
    with linked(connection) as link:
        link.run(end(link, group, rolled_back, TransactionState.ROLLBACK))
        if decision.tokens != proposed.tokens and not is_repeatable(batch):
            raise StoreError(f"write {batch} was aborted before its commit: its half messages are rolled back")
        if log.is_finished(batch):
            return 0
        count, failures = _end_decided(link, log, group, decision)
    unacknowledged = len(decision.pending) - len(log.noted(batch)[1])
    if not unacknowledged:
        log.finish(batch)
    elif log.is_finished(batch):
        pass  # by another driver, which deleted the journals meanwhile
    elif failures:
        raise StoreError(
            f"batch {batch} is decided, but {unacknowledged} of its {len(decision.pending)} messages are not committed: "
            f"{'; '.join(failures)}. Ends that were not sent are sent when the batch runs again, the others need "
            "saturnmq.spark.transactional.answering around the query"
        )
    else:
        logger.warning(
            "transaction ends not acknowledged batch=%s count=%d; brokers check them with the process that runs "
            "saturnmq.spark.transactional.answering",
            batch,
            unacknowledged,
        )
    return count


def _end_decided(link: Link, log: DecisionLog, group: str, decision: BatchDecision) -> tuple[int, list[str]]:
    """Commit the decided halves that no driver has claimed; return how many ends were acknowledged, and what failed.

    Broker by broker, and none is claimed while its broker is unreachable: such halves are left to the next run of the batch.
    """
    brokers: dict[str, list[StoredHalf]] = {}
    claimed, _ = log.noted(decision.batch)
    for half in decision.pending:
        if half.uniq not in claimed:
            brokers.setdefault(half.broker, []).append(half)
    count, failures = 0, []
    for broker, halves in brokers.items():
        unclaimed, rejections = iter(halves), Counter[str]()
        error = link.run(_unreachable(link, halves[0].topic, broker))
        while error is None and (claim := log.claim(decision.batch, unclaimed, ENDS_AT_ONCE * 4)) is not None:
            ends = link.run(end(link, group, claim.halves, TransactionState.COMMIT, claim.since_ms + QUIET_MS // 2))
            log.acknowledge(decision.batch, claim, ends.acknowledged)
            rejections.update(ends.rejections)
            count += len(ends.acknowledged)
            if ends.unsent is not None:
                failures.append(f"broker {broker} accepts no ends: {ends.unsent}")
                break
            if len(ends.acknowledged) < len(claim.halves):
                error = link.run(_unreachable(link, halves[0].topic, broker))
        failures += [f"broker {broker} is unreachable: {error}"] if error is not None else []
        failures += [f"broker {broker} rejected {number}: {remark}" for remark, number in rejections.items()]
    return count, failures


async def _unreachable(link: Link, topic: str, broker: str) -> SaturnError | None:
    """Return why the broker's master does not answer, None as soon as it does; tries for REACH_SECONDS."""
    until, pause = time.monotonic() + REACH_SECONDS, PAUSE_S[0]
    while True:
        try:
            address = await link.core.master_address(topic, broker)
            await link.core.remote.call(address, Command(RequestCode.GET_BROKER_CONFIG), END_TIMEOUT_MS)
            return None
        except SaturnError as error:
            if time.monotonic() > until:
                return error
        await asyncio.sleep(pause)
        pause = min(pause * 2, PAUSE_S[1])


def abort(
    connection: ConnectionOptions, log: DecisionLog, group: str, written: Sequence[Halves], query: str, batch: str
) -> int:
    """Roll back the halves that tasks reported, except decided ones; return how many rollbacks a broker acknowledged.

    The abort is recorded first, so that these attempts cannot be decided later. Decided halves are left to the next run of the
    batch, or to check-backs. Halves of tasks that did not report, or have not ended yet, are rolled back by check-backs.
    Raises OSError when the abort cannot be recorded; nothing is rolled back then.
    """
    decision = log.abort(query, batch, frozenset(w.fence.token for w in written))
    if decision is not None and not is_repeatable(batch) and not decision.pending:
        log.finish(batch)  # nothing is left to end: its files may be deleted
    tokens = decision.tokens if decision is not None else frozenset()
    halves = [half for w in written if w.fence.token not in tokens for half in w.halves]
    if len(halves) < sum(len(w.halves) for w in written):
        logger.warning("abort of a decided batch batch=%s: its messages are committed, not rolled back", batch)
    with linked(connection) as link:
        return len(link.run(end(link, group, halves, TransactionState.ROLLBACK)).acknowledged)


@dataclass(frozen=True)
class Ends:
    """Responses to END_TRANSACTION: the halves acknowledged, and the remarks of brokers that rejected one.

    unsent: why an end was not sent, or rejected as busy, until its claim expired.
    """

    acknowledged: tuple[StoredHalf, ...]
    rejections: tuple[str, ...]
    unsent: str | None = None


async def end(
    link: Link, group: str, halves: Sequence[StoredHalf], state: TransactionState, until_ms: int | None = None
) -> Ends:
    """Send END_TRANSACTION (37) two-way for each half; those without a response are logged.

    until_ms: an end that certainly did not reach its broker, or that the broker rejected as busy, is sent again until this Unix
    time, and none is sent after it; None: each is sent once, and none to a broker that was unreachable before. An end whose
    response was lost is never sent again.
    """
    ids, remarks, expired = set[str](), list[str](), list[str]()
    unreachable = Counter[str]()  # ends not sent, by broker

    def lost(half: StoredHalf, cause: str) -> None:
        logger.warning("half message end not acknowledged id=%s error=%s", half.uniq, cause)

    async def end_some(waiting: list[StoredHalf]) -> None:
        """Send the ends for one topic of one broker, ENDS_AT_ONCE together."""
        pause, cause = PAUSE_S[0], "its claim has expired"
        while waiting:
            if until_ms is not None and now_ms() >= until_ms:
                expired.append(cause)
                for half in waiting:
                    lost(half, cause)
                return
            if waiting[0].broker in unreachable:
                unreachable[waiting[0].broker] += len(waiting)
                return
            window, waiting = waiting[:ENDS_AT_ONCE], waiting[ENDS_AT_ONCE:]
            again: list[StoredHalf] = []
            for half, outcome in zip(window, await _end_window(link, group, window, state), strict=True):
                if isinstance(outcome, SaturnError):
                    cause = str(outcome)
                    if until_ms is not None and isinstance(outcome, ConnectFailed) and not outcome.sent:
                        again.append(half)
                        continue
                    lost(half, cause)
                    if until_ms is None:
                        unreachable[half.broker] += 0
                elif outcome.code in BUSY_CODES and until_ms is not None:
                    cause = f"{outcome.code} {outcome.remark}"
                    again.append(half)
                elif outcome.code == ResponseCode.SUCCESS:
                    ids.add(half.uniq)
                else:
                    logger.warning(
                        "half message end rejected id=%s code=%s remark=%s", half.uniq, outcome.code, outcome.remark
                    )
                    remarks.append(f"code {outcome.code} {outcome.remark}")
            if not again:
                pause = PAUSE_S[0]
                continue
            waiting = again + waiting
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_S[1])

    parts: dict[tuple[str, str], list[StoredHalf]] = {}
    for half in halves:
        parts.setdefault((half.broker, half.topic), []).append(half)
    await asyncio.gather(*map(end_some, parts.values()))
    for broker, count in (+unreachable).items():
        logger.warning("half message ends not sent broker=%s count=%d; the broker will check them", broker, count)
    acknowledged = tuple(half for half in halves if half.uniq in ids)
    return Ends(acknowledged, tuple(remarks), expired[0] if expired else None)


async def _end_window(
    link: Link, group: str, halves: Sequence[StoredHalf], state: TransactionState
) -> list[Command | SaturnError]:
    """The outcomes of ends for a topic of a broker; ConnectFailed with `sent` false for those that were certainly not sent."""
    try:
        address = await link.core.master_address(halves[0].topic, halves[0].broker)
    except SaturnError as error:
        return [ConnectFailed(str(error), broker=halves[0].broker)] * len(halves)
    commands = []
    for half in halves:
        _, physical = parse_offset_message_id(half.offset_id)
        command = end_command(group, half.offset, physical, state, half.uniq, from_check=False)
        command.ext["bname"] = half.broker
        command.serialization = Serialization.ROCKETMQ
        commands.append(command)
    return await link.core.remote.call_all(address, commands, END_TIMEOUT_MS)


def verdict(log: DecisionLog, message: Message[bytes]) -> TransactionState:
    """Return the answer to a check-back; UNKNOWN for a half message without our fencing key."""
    fence = Fence.parse(message.properties.get(FENCE_PROPERTY, ""))
    if fence is None:
        return TransactionState.UNKNOWN
    return log.verdict(fence, message.message_id)


@contextmanager
def answering(
    name_servers: str,
    decision_log: str,
    group: str,
    **access: Any,
) -> Iterator[None]:
    """Answer brokers' check-backs about half messages of the group while the block runs: wrap the query with it, in the driver.

        with answering("localhost:9876", "/shared/decisions", "orders-sink"):
            query = writer.start()
            query.awaitTermination()

    decision_log and group: options decisionLog and producerGroup of the write. Brokers discard halves that stay unanswered for
    about 15 checks, a minute apart. Halves that are decided and not acknowledged are logged at the start.
    access: credentials and TLS, fields of `ClusterAccess` such as access_key="..." or tls=True.
    """
    log = DecisionLog(decision_log)
    waiting = log.open_ends() if log.folder.exists() else []
    if waiting:
        some = ", ".join(half.uniq for _, half in waiting[:10])
        logger.warning("decided half messages not acknowledged count=%d ids=%s; brokers will check them, or have moved them "
                       "to TRANS_CHECK_MAX_TIME_TOPIC", len(waiting), some)  # fmt: skip
    connection = ConnectionOptions(name_servers, **access)
    client = connection.make_client()
    with linked(connection) as link:
        link.run(client.start())
        producer = client.producer(group, check=lambda message: verdict(log, message))
        try:
            link.run(producer.start())
            yield
        finally:
            link.run(client.stop())


def check_brokers(connection: ConnectionOptions, topic: str) -> None:
    """Raise ConfigError naming brokers of the topic that reject transactions, before anything is read or sent (SNK-19).

    A broker whose configuration is unreadable or that is away is left to the tasks, which wait for it or fail with its error.
    """
    try:
        with linked(connection) as link:
            rejecting = link.run(_rejecting(link, topic))
    except SaturnError as error:
        logger.warning("transaction support unknown topic=%s error=%s", topic, error)
        return
    if rejecting:
        raise ConfigError(
            f"option delivery=transactional: topic {topic} lies on {', '.join(rejecting)}, where rejectTransactionMessage=true; "
            "use delivery=at_least_once, or change that broker's file"
        )


async def _rejecting(link: Link, topic: str) -> list[str]:
    """Return the names of the topic's writable brokers that reject half messages."""

    async def rejects(broker: str) -> bool:
        address = await link.core.master_address(topic, broker)
        answer = await link.core.remote.call(address, Command(RequestCode.GET_BROKER_CONFIG), END_TIMEOUT_MS)
        lines = (answer.body or b"").decode("utf-8", "replace").splitlines()
        return answer.code == ResponseCode.SUCCESS and "rejectTransactionMessage=true" in map(str.strip, lines)

    route = await link.core.write_route(topic)
    names = sorted({queue.broker_name for queue in route.write_queues})
    answers = await asyncio.gather(*map(rejects, names), return_exceptions=True)
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, SaturnError):
            logger.warning("transaction support unknown broker=%s error=%s", name, answer)
        elif isinstance(answer, BaseException):
            raise answer
    return [name for name, answer in zip(names, answers, strict=True) if answer is True]


def check_count(rows: int, limit: int) -> None:
    """Raise StoreError for a task with more messages than transactionMaxMessages; nothing was sent (SNK-19)."""
    if rows > limit:
        raise StoreError(
            f"a task has {rows} or more messages, option transactionMaxMessages={limit} allows fewer: nothing was sent"
        )
