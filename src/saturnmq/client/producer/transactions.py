"""Transactions: a message that is delivered only if the application's local work succeeds.

The message is first stored as a half message, invisible to consumers; the end of the `async with` block commits it or rolls it
back with a one-way END_TRANSACTION (37). If that request is lost, the broker sends a check request (39) to any producer of the
group, whose `check` returns the outcome.

Requirements: TX-01, TX-02, TX-09, API-14.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from saturnmq.client import namespaces
from saturnmq.client.codecs import Codec
from saturnmq.client.errors import ClientError, TransactionRolledBack
from saturnmq.client.hooks import EndContext, SendHook, run_quietly
from saturnmq.client.message import Message, Receipt, SendStatus
from saturnmq.net import Connection
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PropertyKey, RequestCode, SysFlag
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import CheckTransactionState, EndTransaction, decode_header
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.message import decode_properties, decode_record

if TYPE_CHECKING:
    from saturnmq.client.connection.core import Core
    from saturnmq.client.producer.send_request import Prepared

T = TypeVar("T")
logger = logging.getLogger(__name__)

END_TIMEOUT_MS: Final = 3000
CHECKS_MAX: Final = 2000  # pending checks; further ones are dropped, and the broker repeats them
CHECKS_AT_ONCE: Final = 20


class TransactionState(Enum):
    """The outcome of a transaction, as returned by a producer's `check`. The values are those of the wire protocol.

    With UNKNOWN the broker asks again later.

    Example:
        async def was_saved(message: Message[bytes]) -> TransactionState:
            if await orders.contains(message.message_id):
                return TransactionState.COMMIT
            return TransactionState.ROLLBACK
    """

    COMMIT = int(SysFlag.COMMIT)
    ROLLBACK = int(SysFlag.ROLLBACK)
    UNKNOWN = 0


Check = Callable[[Message[Any]], TransactionState | Awaitable[TransactionState]]
SendHalf = Callable[["Prepared"], Awaitable[Receipt]]


class Transaction(Generic[T]):
    """A message and the `async with` block that decides over its delivery. Created by `Producer.transaction`.

    A normal end of the block commits, an exception rolls back. If the block is cancelled or the process dies, the broker asks
    the producer's `check`. message_id is known before the block runs: store it with the local work, so that `check` can find it.

    Example:
        async with out.transaction("orders", b"hello") as half:
            if not await save_locally(half.message_id):
                half.rollback()
    """

    def __init__(
        self,
        core: Core,
        group: str,
        prepared: Prepared,
        send: SendHalf,
        open_ids: set[str],
        hooks: Sequence[SendHook] = (),
    ) -> None:
        self._core = core
        self._group = group
        self._prepared = prepared
        self._send = send
        self._open_ids = open_ids
        self._hooks = hooks
        self._receipt: Receipt | None = None
        self.state = TransactionState.COMMIT  # the decision of a normal end of the block

    @property
    def message_id(self) -> str:
        """The unique id of the message, known before it is sent."""
        return self._prepared.ids[0]

    @property
    def receipt(self) -> Receipt:
        """The receipt of the half message, whose queue and offset it has. Raises ClientError before the block begins."""
        if self._receipt is None:
            raise ClientError("the transaction has not begun: use `async with`")
        return self._receipt

    def rollback(self) -> None:
        """Roll the message back when the block ends normally."""
        self.state = TransactionState.ROLLBACK

    def leave_open(self) -> None:
        """Decide nothing when the block ends normally: the broker asks `check`, for work that continues elsewhere."""
        self.state = TransactionState.UNKNOWN

    async def __aenter__(self) -> Transaction[T]:
        """Store the half message. Raises what `send` raises, and TransactionRolledBack if its durability is not confirmed."""
        if self._receipt is not None:
            raise ClientError("a transaction begins once; make another one")
        self._open_ids.add(self.message_id)
        try:
            self._receipt = await self._send(self._prepared)
        except BaseException:
            self._open_ids.discard(self.message_id)
            raise
        if self._receipt.status is not SendStatus.SEND_OK:
            await self._end(TransactionState.ROLLBACK)
            raise TransactionRolledBack(
                f"message {self.message_id} is stored, but its durability is not confirmed "
                f"({self._receipt.status.value}): the transaction is rolled back"
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._end(self.state)
        elif isinstance(error, Exception):
            await self._end(TransactionState.ROLLBACK, f"{type(error).__name__}: {error}")
        else:  # cancelled: the outcome is left to check
            self._open_ids.discard(self.message_id)

    async def _end(self, state: TransactionState, remark: str | None = None) -> None:
        """Send END_TRANSACTION. A failure is only logged, since the broker then asks `check` (TX-02)."""
        self._open_ids.discard(self.message_id)
        receipt, core = self.receipt, self._core
        if state is TransactionState.UNKNOWN and not self._hooks:
            return
        try:
            topic = self._prepared.topic
            address = await core.master_address(topic, receipt.queue.broker_name)
            self._told(state, address)
            if state is TransactionState.UNKNOWN:
                return
            _, physical = parse_offset_message_id(receipt.offset_message_id or self.message_id)
            command = end_command(self._group, receipt.offset, physical, state, self.message_id, asked=False)
            command.ext["bname"] = receipt.queue.broker_name
            command.remark = remark[:1024] if remark else None
            await core.remote.call_oneway(address, command, END_TIMEOUT_MS)
        except SaturnError as problem:
            logger.warning(
                "end of transaction not delivered, the broker will ask id=%s error=%s", self.message_id, problem
            )

    def _told(self, state: TransactionState, address: str) -> None:
        """Run the `ended` hooks."""
        if not self._hooks:
            return
        topic = namespaces.strip(self._core.settings.namespace, self._prepared.topic)
        properties = decode_properties(self._prepared.properties)
        context = EndContext(
            self._group, topic, self.message_id, properties, address, state, asked=False, receipt=self._receipt
        )
        run_quietly(self._hooks, "ended", context)


def end_command(
    group: str, half_offset: int, physical: int, state: TransactionState, message_id: str, *, asked: bool
) -> Command:
    """END_TRANSACTION (37). physical: commit log offset of the half message; asked: in response to a check by the broker."""
    header = EndTransaction(
        producer_group=group,
        tran_state_table_offset=half_offset,
        commit_log_offset=physical,
        commit_or_rollback=state.value,
        from_transaction_check=asked,
        msg_id=message_id,
        transaction_id=message_id,
    )
    return Command(RequestCode.END_TRANSACTION, ext=header.to_ext())


class Checker:
    """Runs the `check` function of one producer group."""

    def __init__(self, check: Check, codec: Codec[Any]) -> None:
        self.check = check
        self.codec = codec
        self.hooks: Sequence[SendHook] = ()
        self.open_ids: set[str] = set()  # message ids of transactions whose block is still running

    async def state_of(self, message: Message[Any]) -> tuple[TransactionState, str | None]:
        """The state, and a remark if it is UNKNOWN because `check` failed. UNKNOWN without calling it while the block runs."""
        if message.message_id in self.open_ids:
            return TransactionState.UNKNOWN, "the transaction is still open"
        try:
            if inspect.iscoroutinefunction(self.check):
                state = await self.check(message)
            else:
                state = await asyncio.to_thread(self.check, message)
                if inspect.isawaitable(state):
                    state = await state
        except Exception as error:
            logger.warning("check failed id=%s error=%s: %s", message.message_id, type(error).__name__, error)
            return TransactionState.UNKNOWN, f"checkLocalTransactionState Exception, {type(error).__name__}: {error}"
        if not isinstance(state, TransactionState):
            logger.warning("check returned %r, must be a TransactionState", state)
            return TransactionState.UNKNOWN, None
        return state, None


class Checks:
    """Handles the brokers' transaction checks for all producers of a client, CHECKS_AT_ONCE at a time."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._checkers: dict[str, Checker] = {}
        self._limit = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0

    def add(self, group: str, checker: Checker) -> None:
        self._checkers[group] = checker

    def remove(self, group: str) -> None:
        self._checkers.pop(group, None)

    def asked(self, connection: Connection, command: Command) -> None:
        """Handle CHECK_TRANSACTION_STATE (39), a one-way request; the outcome is sent as END_TRANSACTION (37)."""
        try:
            header = decode_header(CheckTransactionState, command.ext)
            record = decode_record(command.body or b"")
        except SaturnError as error:
            logger.warning("question about a transaction cannot be read peer=%s: %s", connection.remote_address, error)
            return
        group = record.properties.get(PropertyKey.PGROUP, "")
        checker = self._checkers.get(group)
        if checker is None or self._waiting >= CHECKS_MAX:
            why = "no such producer here" if checker is None else f"{self._waiting} wait already"
            logger.warning("question about a transaction not answered group=%s: %s", group, why)
            return
        namespace = self._core.settings.namespace
        queue = MessageQueue(namespaces.strip(namespace, record.topic), header.broker_name or "", record.queue_id)
        message = Message(record, queue, checker.codec, None, namespace)
        self._waiting += 1
        self._core.spawn(f"check {group}", self._answer(connection, group, checker, header, message), vital=False)

    async def _answer(
        self, connection: Connection, group: str, checker: Checker, header: CheckTransactionState, message: Message[Any]
    ) -> None:
        try:
            async with self._limit:
                state, remark = await checker.state_of(message)
            key = header.transaction_id or header.msg_id or message.message_id
            command = end_command(
                group, header.tran_state_table_offset, header.commit_log_offset, state, key, asked=True
            )
            command.remark = remark
            told = EndContext(
                group,
                message.topic,
                message.message_id,
                message.properties,
                connection.remote_address,
                state,
                asked=True,
            )
            run_quietly(checker.hooks, "ended", told)
            self._core.remote.answer_oneway(connection, command)
        except SaturnError as error:
            logger.warning("answer about a transaction not delivered id=%s error=%s", message.message_id, error)
        finally:
            self._waiting -= 1
