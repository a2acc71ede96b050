"""Transactions: a message that is delivered only if the application's local work succeeds.

The message is first stored as a half message, invisible to consumers; the end of the `async with` block commits it or rolls it
back with a one-way END_TRANSACTION (37). If that request is lost, the broker sends a check request (39) to any producer of the
group, whose `check` returns the outcome.

Requirements: TX-01, TX-02, TX-09, API-14.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Generic, TypeVar

from saturnmq.client import namespaces
from saturnmq.client.connection.core import Core
from saturnmq.client.connection.transaction_checks import end_command
from saturnmq.client.hooks import EndContext, SendHook, run_quietly
from saturnmq.client.producer.send_request import Prepared
from saturnmq.client.receipt import Receipt, SendStatus, TransactionState
from saturnmq.errors import ClientError, TransactionRolledBack
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.message import decode_properties

T = TypeVar("T")
logger = logging.getLogger(__name__)

END_TIMEOUT_MS: Final = 3000

SendHalf = Callable[[Prepared], Awaitable[Receipt]]


class Transaction(Generic[T]):
    """A message and the `async with` block that decides over its delivery. Created by `Producer.transaction`.

    A normal end of the block commits, an exception rolls back, or with on_error UNKNOWN leaves the outcome to `check`. If the
    block is cancelled or the process dies, the broker asks `check`, too. message_id is known before the block runs: store it with
    the local work, so that `check` can find it.

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
        on_error: TransactionState = TransactionState.ROLLBACK,
    ) -> None:
        self._core = core
        self._group = group
        self._prepared = prepared
        self._send = send
        self._open_ids = open_ids
        self._hooks = hooks
        self._on_error = on_error
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
        """Roll the message back when the block ends normally.

        Example:
            async with out.transaction("payments", b"paid") as half:
                if not await book(half.message_id):
                    half.rollback()
        """
        self.state = TransactionState.ROLLBACK

    def leave_open(self) -> None:
        """Decide nothing when the block ends normally: the broker asks `check`, for work that continues elsewhere."""
        self.state = TransactionState.UNKNOWN

    async def __aenter__(self) -> Transaction[T]:
        """Store the half message. Raises what `send` raises, and TransactionRolledBack if its durability is not confirmed."""
        if self._receipt is not None:
            raise ClientError("a transaction begins once; make another one")
        # Before the send: a check may come before the answer.
        self._open_ids.add(self.message_id)
        try:
            self._receipt = await self._send(self._prepared)
        # Cancelled too: `check` decides over what may be stored.
        except BaseException:
            self._open_ids.discard(self.message_id)
            raise
        # A half message that a crash may take must not begin local work.
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
        # The block has failed; it may have done its work with on_error UNKNOWN.
        elif isinstance(error, Exception):
            if self._on_error is TransactionState.UNKNOWN:
                logger.warning("transaction left open, the broker will check id=%s error=%r", self.message_id, error)
            await self._end(self._on_error, f"{type(error).__name__}: {error}")
        else:  # cancelled: the outcome is left to check
            self._open_ids.discard(self.message_id)

    async def _end(self, state: TransactionState, remark: str | None = None) -> None:
        """Send END_TRANSACTION. A failure is only logged, since the broker then asks `check` (TX-02)."""
        # From here on `check` may be asked.
        self._open_ids.discard(self.message_id)
        receipt, core = self.receipt, self._core
        # No request is needed: the broker asks by itself.
        if state is TransactionState.UNKNOWN and not self._hooks:
            return
        try:
            topic = self._prepared.topic
            # The broker of the half message, whatever its master is now.
            address = await core.master_address(topic, receipt.queue.broker_name)
            self._run_hooks(state, address)
            if state is TransactionState.UNKNOWN:
                return
            # The position in the log names the half message.
            _, physical = parse_offset_message_id(receipt.offset_message_id or self.message_id)
            command = end_command(self._group, receipt.offset, physical, state, self.message_id, from_check=False)
            command.ext["bname"] = receipt.queue.broker_name
            command.remark = remark[:1024] if remark else None
            await core.remote.call_oneway(address, command, END_TIMEOUT_MS)
        # The block's work is done: an error would make the caller repeat it.
        except SaturnError as problem:
            logger.warning(
                "end of transaction not sent, the broker will check id=%s error=%s", self.message_id, problem
            )

    def _run_hooks(self, state: TransactionState, address: str) -> None:
        """Run the `ended` hooks."""
        if not self._hooks:
            return
        topic = namespaces.strip(self._core.settings.namespace, self._prepared.topic)
        properties = decode_properties(self._prepared.properties)
        context = EndContext(
            self._group, topic, self.message_id, properties, address, state, asked=False, receipt=self._receipt
        )
        run_quietly(self._hooks, "ended", context)
