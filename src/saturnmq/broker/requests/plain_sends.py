"""The compiled code for plain sends (`hot/sends.py`), with the services of a broker.

Requirements: SND-01..SND-15.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from types import ModuleType
from typing import Protocol

from saturnmq.broker.requests.context import SendContext
from saturnmq.broker.requests.send import NOT_HOSTS, SMALL_BYTES, UNFLUSHED_BYTES, answer, born_host, complete
from saturnmq.broker.requests.send_answer import SendAnswers, confirmation_of
from saturnmq.broker.services.admission import Admission
from saturnmq.hot import hot_module
from saturnmq.hot.answer_frame import OpaqueFrame
from saturnmq.net import Connection, Later
from saturnmq.net.plain_reads import PlainSends
from saturnmq.protocol.codes import CommandFlag
from saturnmq.protocol.frames.command import Command, FrameLimits, Serialization, encode_frame
from saturnmq.protocol.message import Message
from saturnmq.store import PutResult, PutStatus


class SendHeader(Protocol):
    """What is used of `hot.send_header.SendHeader`."""

    code: int
    opaque: int
    flag: int
    queue_id: int
    sys_flag: int
    message_flag: int
    reconsume_times: int
    born_ms: int


class PlainRequest(Command):
    """A send whose header is not kept: only its properties take memory until it is answered."""

    __slots__ = ("properties_bytes",)
    properties_bytes: int

    @property
    def header_bytes(self) -> int:
        return self.properties_bytes


class GroupMember(Protocol):
    """What is used of `broker/dledger.DLedger`."""

    @property
    def takes_all(self) -> bool: ...
    @property
    def serves_pulls(self) -> bool: ...


@dataclass(frozen=True)
class PlainRules:
    """What decides whether a broker takes a plain request.

    member: of a DLedger group, whose role decides. limits: of frames. admits: with access control, `Grants.admits`.
    """

    admission: Admission
    member: GroupMember | None
    limits: FrameLimits
    admits: Callable[..., bool] | None = None

    def serves(self) -> bool:
        """Whether this broker takes sends and offset commits now."""
        # Only a leader that serves takes sends.
        return not self.admission.rejected and (self.member is None or self.member.takes_all)

    def serves_pulls(self) -> bool:
        """Whether this broker takes pulls now."""
        return not self.admission.rejected and (self.member is None or self.member.serves_pulls)


def success_frame() -> OpaqueFrame:
    """The response to a request that succeeded and has nothing else to say."""
    flag = int(CommandFlag.RESPONSE)
    return OpaqueFrame(*(encode_frame(Command(0, flag=flag, serialization=kind)) for kind in Serialization))


def plain_sends(
    context: SendContext,
    rules: PlainRules,
    module: ModuleType | None = None,
) -> PlainSends:
    """What takes plain sends for a broker: `hot/sends.py`, compiled unless a test passes the module."""
    module = module or hot_module("sends")
    store, in_flight, settings = context.store, context.in_flight, context.settings

    def put_soon(
        connection: Connection,
        header: SendHeader,
        serialization: Serialization,
        topic: str,
        body: bytes,
        properties: bytes,
        answers: SendAnswers,
    ) -> bool:
        """Add the message to those that this event-loop iteration appends; it is answered when it is confirmed."""
        message = Message(
            topic, body, properties, header.queue_id, header.message_flag, header.sys_flag & NOT_HOSTS, header.born_ms,
            born_host(connection), context.identity.store_host, header.reconsume_times,
        )  # fmt: skip
        request = PlainRequest(
            header.code, body=body, opaque=header.opaque, flag=header.flag, serialization=serialization
        )
        request.properties_bytes = len(properties)
        later, began_ns = Later(), perf_counter_ns()
        # Counted here; `complete` takes it back.
        in_flight.sends += 1

        def completed(status: PutStatus, reason: str) -> None:
            # 0: the message was refused before it was numbered.
            if message.store_bytes:
                context.stats.put(topic, 1, message.store_bytes, perf_counter_ns() - began_ns)
            reply: Command | bytes
            if status is PutStatus.PUT_OK:
                reply = answers.single_frame(
                    serialization, request.opaque, message.queue_id, message.queue_offset, message.physical_offset
                )
            else:
                # Stored but not confirmed: the sender gets its position with the code of the failure.
                failed = PutResult(status, reason=reason)
                if message.store_bytes:
                    failed.physical_offset, failed.queue_offset = message.physical_offset, message.queue_offset
                reply = answer(context, request, failed, status, message.queue_id)
            complete(context, later, reply)

        store.put_soon(message, completed)
        connection.respond(request, later)
        # The last send of this iteration that is taken without decoding.
        return not connection.limits.full and in_flight.sends < settings.send_queue_max

    sends: PlainSends = module.Sends(
        context,
        rules.serves,
        rules.limits,
        (SMALL_BYTES, UNFLUSHED_BYTES),
        lambda: confirmation_of(store, waits=True),
        put_soon,
        success_frame(),
        rules.admits,
    )
    return sends
