"""Transaction requests: commit or rollback (37), resume checks of a discarded half message (323).

Requirements: TX-04, TX-08.
"""

from __future__ import annotations

import logging
from typing import Final

from saturnmq.broker.requests.context import TransactionContext
from saturnmq.net import NO_RESPONSE, Connection
from saturnmq.protocol.codes import ResponseCode, SysFlag
from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.ids import parse_offset_message_id

log = logging.getLogger(__name__)

_UNDECIDED: Final = 0
_ENDS: Final = (int(SysFlag.COMMIT), int(SysFlag.ROLLBACK))


def end(ctx: TransactionContext, connection: Connection, request: Command, header: h.EndTransaction) -> Command | bytes:
    """Serve END_TRANSACTION (37), usually one-way. An undecided producer gets no response and is checked again."""
    if header.commit_or_rollback == _UNDECIDED:
        log.debug("transaction undecided by producer key=%s peer=%s", header.transaction_id, connection.remote_address)
        # As in Apache RocketMQ: an undecided end has no answer at all.
        return NO_RESPONSE
    if header.commit_or_rollback not in _ENDS:
        text = f"commitOrRollback={header.commit_or_rollback} must be 0, 8 or 12"
        return request.reply(ResponseCode.SYSTEM_ERROR, text)
    code, remark = ctx.master.transactions.end(header)
    # A wrong end is worth a line: it may be a forged or repeated one.
    if code != ResponseCode.SUCCESS:
        text = f"end of transaction, key={header.transaction_id!r:.80} group={header.producer_group!r:.80}: {remark}"
        ctx.rejections.note("end_transaction", connection.remote_address, text)
    return request.reply(code, remark)


def resume(
    ctx: TransactionContext, connection: Connection, request: Command, header: h.ResumeCheckHalfMessage
) -> Command:
    """Serve RESUME_CHECK_HALF_MESSAGE (323): move a message of TRANS_CHECK_MAX_TIME_TOPIC back to the half topic."""
    try:
        _, physical = parse_offset_message_id(header.msg_id or "")
    except MessageError as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, error.message)
    if not ctx.master.transactions.resume(physical):
        text = f"Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed: {header.msg_id} was not given up by this broker"
        return request.reply(ResponseCode.SYSTEM_ERROR, text)
    log.info("half message re-queued for check by=%s id=%s", connection.remote_address, header.msg_id)
    return request.reply()
