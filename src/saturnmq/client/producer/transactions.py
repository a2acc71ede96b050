"""Transactions: a message that is delivered only if the work around it succeeds.

The message is stored first, where no consumer sees it; the end of the `async with` block commits it or rolls it back. When
that word is lost, the broker asks any producer of the group (39), whose `check` says what became of the work.
Source: spec 03 TX-01, TX-02, TX-09; spec 08 API-14.
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
CHECKS_MAX: Final = 2000  # questions that wait for their answer; the broker asks again about those beyond
CHECKS_AT_ONCE: Final = 20


class TransactionState(Enum):
    """What became of a transaction; the values are the wire's."""

    COMMIT = int(SysFlag.COMMIT)
    ROLLBACK = int(SysFlag.ROLLBACK)
    UNKNOWN = 0


Check = Callable[[Message[Any]], TransactionState | Awaitable[TransactionState]]
SendHalf = Callable[["Prepared"], Awaitable[Receipt]]


class Transaction(Generic[T]):
    """One message and the block of work that decides over it. Made by `Producer.transaction`.

    A normal end of the block commits, an exception rolls back. Cancelled, or with the process dead, nothing is said: the
    broker asks `check`. message_id: known from the start, to be kept with the work so that `check` can find it.
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
        self.state = TransactionState.COMMIT  # how a normal end of the block ends it

    @property
    def message_id(self) -> str:
        return self._prepared.ids[0]

    @property
    def receipt(self) -> Receipt:
        """What the broker said of the stored message; its place is that of the half message."""
        if self._receipt is None:
            raise ClientError("the transaction has not begun: use `async with`")
        return self._receipt

    def rollback(self) -> None:
        """End the block normally, and have the message rolled back."""
        self.state = TransactionState.ROLLBACK

    def leave_open(self) -> None:
        """End the block normally and say nothing: the work goes on elsewhere, the broker asks `check` about it."""
        self.state = TransactionState.UNKNOWN

    async def __aenter__(self) -> Transaction[T]:
        """Store the message. Raises what `send` raises, and TransactionRolledBack when its durability is not confirmed (TX-02)."""
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
        else:  # cancelled: whether the work was done is for check to say
            self._open_ids.discard(self.message_id)

    async def _end(self, state: TransactionState, remark: str | None = None) -> None:
        """Tell the broker; a failure is only logged, it asks then."""
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
        """Hooks learn how it ends."""
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
    """END_TRANSACTION (37)."""
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
    """What one producer group answers a broker that asks."""

    def __init__(self, check: Check, codec: Codec[Any]) -> None:
        self.check = check
        self.codec = codec
        self.hooks: Sequence[SendHook] = ()
        self.open_ids: set[str] = set()  # whose block has not ended here

    async def state_of(self, message: Message[Any]) -> tuple[TransactionState, str | None]:
        """The answer, and why it is UNKNOWN if `check` failed. While the block runs it is UNKNOWN without asking."""
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
    """Questions of brokers about the transactions of this client's producers."""

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
        """39: one-way; answered with 37 when `check` has said something."""
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
