"""The transactional sink: tasks store half messages; the commit of a batch decides and ends them.

`write_halves` runs in tasks, `commit` and `abort` in the process that commits a batch, `answering` in the user's driver: brokers
know only that process as a producer of the group, so they send it the check-backs of halves whose end was lost. Does not import
pyspark.

Requirements: SNK-10, SNK-11, SNK-14, SNK-17..SNK-19.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from saturnmq.client.connection.transaction_checks import end_command
from saturnmq.client.message import Message
from saturnmq.client.receipt import Receipt, TransactionState
from saturnmq.protocol.codes import RequestCode, ResponseCode, SysFlag
from saturnmq.protocol.errors import ConfigError, SaturnError, StoreError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.spark.connect import Connection, Link, linked
from saturnmq.spark.decision_log import END_TIMEOUT_MS, FENCE_PROPERTY, Decision, DecisionLog, Fence, Half
from saturnmq.spark.encode import Request
from saturnmq.spark.sending import Sender

logger = logging.getLogger(__name__)
GROUP_PREFIX: Final = "SPARK_"
ENDS_AT_ONCE: Final = 64


@dataclass(frozen=True)
class Halves:
    """The half messages that one attempt of a task stored."""

    fence: Fence
    halves: tuple[Half, ...]


def group_of(given: str | None, query: str) -> str:
    """Return the producer group: the option's, else one derived from the query."""
    return given or GROUP_PREFIX + query


def fenced(request: Request, fence: Fence, group: str, immunity_s: int) -> Request:
    """Return the request as a half message with its fencing key and the age below which brokers send no check-back."""
    prepared = request.prepared
    text = (f"{prepared.properties}\x02TRAN_MSG\x01true\x02PGROUP\x01{group}\x02{FENCE_PROPERTY}\x01{fence}"
            f"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{immunity_s}")  # fmt: skip
    made = replace(prepared, properties=text, sys_flag=prepared.sys_flag | int(SysFlag.PREPARED))
    return replace(request, prepared=made)


def write_halves(sender: Sender, requests: Sequence[Request], fence: Fence) -> Halves:
    """Store half messages, each durable or an error. Raises StoreError; what was stored by then is rolled back by check-backs."""
    group = sender.options.producer_group
    stored: list[Half] = []

    def took(request: Request, receipts: list[Receipt]) -> None:
        receipt, uniq = receipts[0], request.prepared.ids[0]
        where = receipt.queue.broker_name, receipt.offset, receipt.offset_message_id or uniq
        stored.append(Half(uniq, request.target.topic, *where))

    sender.took = took
    immunity_s = sender.options.check_after_ms // 1000
    sender.link.run(sender.send([fenced(request, fence, group, immunity_s) for request in requests]))
    return Halves(fence, tuple(stored))


def commit(connection: Connection, log: DecisionLog, group: str, written: Sequence[Halves], batch: str) -> int:
    """Decide the batch, then end its halves; return how many ends a broker acknowledged.

    For a batch decided before, the new halves are rolled back and decided ones whose end was not sent yet are committed. An end
    whose response was lost is not repeated, because an Apache broker would store the message twice: the check-back settles it.
    Raises OSError when the decision cannot be recorded; nothing is committed then.
    """
    mine = Decision(written[0].fence.query if written else "-", batch, frozenset(w.fence.token for w in written),
                    tuple(half for w in written for half in w.halves))  # fmt: skip
    if not mine.pending and log.read(batch) is None:
        return 0
    decision = log.decide(mine)
    stale = [half for w in written if w.fence.token not in decision.tokens for half in w.halves]
    tried, done = log.noted(batch)
    todo = [half for half in decision.pending if half.uniq not in tried and half.uniq not in done]
    count = 0
    with linked(connection) as link:
        for at in range(0, len(todo), ENDS_AT_ONCE * 4):
            part = todo[at : at + ENDS_AT_ONCE * 4]
            log.note(batch, "T", part)
            ended = link.run(end(link, group, part, TransactionState.COMMIT))
            log.note(batch, "D", ended)
            count += len(ended)
        link.run(end(link, group, stale, TransactionState.ROLLBACK))
    if len(done) + count == len(decision.pending):
        log.finish(batch)
    else:
        logger.warning(
            "transaction ends not acknowledged batch=%s count=%d; brokers will check them",
            batch,
            len(decision.pending) - len(done) - count,
        )
    return count


def abort(connection: Connection, group: str, written: Sequence[Halves]) -> None:
    """Roll back the halves that tasks reported; those of failed tasks are rolled back by check-backs."""
    with linked(connection) as link:
        link.run(end(link, group, [half for w in written for half in w.halves], TransactionState.ROLLBACK))


async def end(link: Link, group: str, halves: Sequence[Half], state: TransactionState) -> list[Half]:
    """Send END_TRANSACTION (37) two-way for each half; return those that a broker acknowledged. The others are logged."""
    gate = asyncio.Semaphore(ENDS_AT_ONCE)

    async def one(half: Half) -> bool:
        _, physical = parse_offset_message_id(half.offset_id)
        command = end_command(group, half.offset, physical, state, half.uniq, asked=False)
        command.ext["bname"] = half.broker
        try:
            async with gate:
                address = await link.core.master_address(half.topic, half.broker)
                answer = await link.core.remote.call(address, command, END_TIMEOUT_MS)
        except SaturnError as error:
            logger.warning("half message end not acknowledged id=%s error=%s", half.uniq, error)
            return False
        if answer.code != ResponseCode.SUCCESS:
            logger.warning("half message end rejected id=%s code=%s remark=%s", half.uniq, answer.code, answer.remark)
        return answer.code == ResponseCode.SUCCESS

    results = await asyncio.gather(*map(one, halves))
    return [half for half, ok in zip(halves, results, strict=True) if ok]


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
    *,
    access_key: str | None = None,
    secret_key: str | None = None,
    security_token: str | None = None,
    tls: bool = False,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_verify: bool = True,
) -> Iterator[None]:
    """Answer brokers' check-backs about half messages of the group while the block runs: wrap the query with it, in the driver.

        with answering("localhost:9876", "/shared/decisions", "orders-sink"):
            query = writer.start()
            query.awaitTermination()

    decision_log and group: options decisionLog and producerGroup of the write. Brokers discard halves that stay unanswered for
    about 15 checks, a minute apart. Halves that are decided and not acknowledged are logged at the start.
    """
    log = DecisionLog(decision_log)
    waiting = log.open_ends() if log.folder.exists() else []
    if waiting:
        some = ", ".join(half.uniq for _, half in waiting[:10])
        logger.warning("decided half messages not acknowledged count=%d ids=%s; brokers will check them, or have moved them "
                       "to TRANS_CHECK_MAX_TIME_TOPIC", len(waiting), some)  # fmt: skip
    connection = Connection(name_servers, access_key=access_key, secret_key=secret_key, security_token=security_token,
                            tls=tls, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, tls_verify=tls_verify)  # fmt: skip
    client = connection.make_client()
    with linked(connection) as link:
        link.run(client.start())
        producer = client.producer(group, check=lambda message: verdict(log, message))
        try:
            link.run(producer.start())
            yield
        finally:
            link.run(client.stop())


def check_brokers(connection: Connection, topic: str) -> None:
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
