"""Transaction checks: a broker asks for the outcome of a half message whose end it has not received.

Requirements: TX-09, API-14, PRC-10.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any, Final, TypeAlias

from saturnmq.client import namespaces
from saturnmq.client.codecs import Codec
from saturnmq.client.hooks import EndContext, SendHook, run_quietly
from saturnmq.client.message import Message
from saturnmq.client.receipt import TransactionState
from saturnmq.net import Connection
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PropertyKey, RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import CheckTransactionState, EndTransaction, decode_header
from saturnmq.protocol.message import decode_record
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset

logger = logging.getLogger(__name__)

CHECKS_MAX: Final = 2000  # pending checks; further ones are dropped, and the broker repeats them
CHECK_BYTES_MAX: Final = 64 * 1024 * 1024  # their bodies
CHECKS_AT_ONCE: Final = 20

Check: TypeAlias = Callable[[Message[Any]], TransactionState | Awaitable[TransactionState]]


def end_command(
    group: str,
    half_offset: QueueOffset,
    physical: PhysicalOffset,
    state: TransactionState,
    message_id: str,
    *,
    from_check: bool,
) -> Command:
    """END_TRANSACTION (37). physical: commit log offset of the half message; from_check: in response to a check by the broker."""
    header = EndTransaction(
        producer_group=group,
        tran_state_table_offset=half_offset,
        commit_log_offset=physical,
        commit_or_rollback=state.value,
        from_transaction_check=from_check,
        msg_id=message_id,
        transaction_id=message_id,
    )
    return Command(RequestCode.END_TRANSACTION, ext=header.to_ext())


class Checker:
    """Runs the `check` function of one producer group; a plain function in executor, or in asyncio's threads if None."""

    def __init__(self, check: Check, codec: Codec[Any], executor: Executor | None = None) -> None:
        self.check = check
        self.codec = codec
        self.executor = executor
        self.hooks: Sequence[SendHook] = ()
        self.open_ids: set[str] = set()  # message ids of transactions whose block is still running

    async def state_of(self, message: Message[Any]) -> tuple[TransactionState, str | None]:
        """The state, and a remark if it is UNKNOWN because `check` failed. UNKNOWN without calling it while the block runs."""
        # The block still runs: its outcome is not known, and `check` might read half of its work.
        if message.message_id in self.open_ids:
            return TransactionState.UNKNOWN, "the transaction is still open"
        try:
            if inspect.iscoroutinefunction(self.check):
                state = await self.check(message)
            else:
                # Dropped checks are repeated by the broker; a plain function runs in a thread with this context.
                run = contextvars.copy_context().run
                state = await asyncio.get_running_loop().run_in_executor(self.executor, run, self.check, message)
                if inspect.isawaitable(state):
                    state = await state
        except Exception as error:
            logger.warning("check failed id=%s error=%r", message.message_id, error)
            return TransactionState.UNKNOWN, f"checkLocalTransactionState Exception, {type(error).__name__}: {error}"
        if not isinstance(state, TransactionState):
            logger.warning("check returned no TransactionState id=%s result=%r", message.message_id, state)
            return TransactionState.UNKNOWN, None
        return state, None


class Checks:
    """Handles the brokers' transaction checks for all producers of a client, CHECKS_AT_ONCE at a time.

    spawn: starts a task owned by the client. send: writes a one-way request on the connection of the check.
    """

    def __init__(
        self,
        namespace: str | None,
        spawn: Callable[[str, Coroutine[Any, Any, None]], object],
        send: Callable[[Connection, Command], None],
    ) -> None:
        self._namespace = namespace
        self._spawn = spawn
        self._send = send
        self._checkers: dict[str, Checker] = {}
        self._limit = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0
        self._waiting_bytes = 0

    def add(self, group: str, checker: Checker) -> None:
        self._checkers[group] = checker

    def remove(self, group: str) -> None:
        self._checkers.pop(group, None)

    def handle(self, connection: Connection, command: Command) -> None:
        """Handle CHECK_TRANSACTION_STATE (39), a one-way request; the outcome is sent as END_TRANSACTION (37)."""
        try:
            header = decode_header(CheckTransactionState, command.ext)
            record = decode_record(command.body or b"")
        except SaturnError as error:
            logger.warning("transaction check not decoded peer=%s error=%s", connection.remote_address, error)
            return
        group = record.properties.get(PropertyKey.PGROUP, "")
        checker = self._checkers.get(group)
        # Bounded by count and bytes: brokers decide how many checks arrive.
        full = self._waiting >= CHECKS_MAX or self._waiting_bytes + len(record.body) > CHECK_BYTES_MAX
        if checker is None or full:
            reason = "no such producer" if checker is None else f"{self._waiting} pending"
            logger.warning("transaction check ignored group=%s reason=%r", group, reason)
            return
        namespace = self._namespace
        queue = MessageQueue(namespaces.strip(namespace, record.topic), header.broker_name or "", record.queue_id)
        message = Message(record, queue, checker.codec, None, namespace)
        self._waiting += 1
        self._waiting_bytes += len(record.body)
        self._spawn(f"check {group}", self._answer(connection, group, checker, header, message))

    async def _answer(
        self, connection: Connection, group: str, checker: Checker, header: CheckTransactionState, message: Message[Any]
    ) -> None:
        try:
            async with self._limit:
                state, remark = await checker.state_of(message)
            key = header.transaction_id or header.msg_id or message.message_id
            half_offset = QueueOffset(header.tran_state_table_offset)
            physical = PhysicalOffset(header.commit_log_offset)
            command = end_command(group, half_offset, physical, state, key, from_check=True)
            command.remark = remark
            context = EndContext(
                group,
                message.topic,
                message.message_id,
                message.properties,
                connection.remote_address,
                state,
                asked=True,
            )
            run_quietly(checker.hooks, "ended", context)
            self._send(connection, command)
        except SaturnError as error:
            logger.warning("transaction check not answered id=%s error=%s", message.message_id, error)
        finally:
            self._waiting -= 1
            self._waiting_bytes -= len(message.record.body)
