"""What the endpoints of a broker take before it is decoded: plain sends and, with the services of the broker, plain pulls.

Requirements: BP-01..BP-08.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import cast

from saturnmq.broker.requests.context import PullContext, SendContext
from saturnmq.broker.requests.plain_sends import GroupMember, plain_sends
from saturnmq.broker.requests.pull import COUNT_MAX, READ_AHEAD, checked, count_pull
from saturnmq.broker.requests.pull_answer import encoded
from saturnmq.broker.requests.table import BoundRoute
from saturnmq.broker.services.admission import Admission
from saturnmq.broker.services.transactions import GROUP as TRANSACTION_GROUP
from saturnmq.hot import compiled
from saturnmq.net import RemotingServer
from saturnmq.net.plain_reads import PlainReader, PlainSends
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import FrameLimits, Serialization
from saturnmq.store import GetStatus


class PlainRequests:
    """Plain pulls, and plain sends after them, as `PlainReads` takes them.

    A pull that follows a send of its connection is left until that is visible.
    """

    def __init__(self, sends: PlainSends, pulls: PlainSends) -> None:
        self._sends, self._pulls = sends, pulls

    def feed(self, data: bytes, until: float, reader: PlainReader) -> int:
        """Take the requests of one kind at the start of data; returns the position of the first frame that is left."""
        return self._pulls.feed(data, until, reader) or self._sends.feed(data, until, reader)

    def finish(self) -> dict[int, int]:
        """Make what was sent visible; returns the number of requests by code."""
        return self._sends.finish() | self._pulls.finish()


def take_plain(
    ports: tuple[RemotingServer, RemotingServer],
    routes: Mapping[int, BoundRoute],
    admission: Admission,
    member: GroupMember | None,
    admits: Callable[..., bool] | None,
) -> None:
    """Let compiled code, if there is any, take the plain sends of both ports and the plain pulls of the main port.

    ports: the main and the fast one. routes: with the services of the broker. member: of a DLedger group, whose pulls depend on its
    role. admits: with access control, `Grants.admits`.
    """
    main, fast = ports
    send_context = cast("SendContext", routes[RequestCode.SEND_MESSAGE_V2].context)
    pull_context = cast("PullContext", routes[RequestCode.PULL_MESSAGE].context)
    sends = plain_sends(send_context, admission, member, main.frame_limits, admits)
    pulls = plain_pulls(pull_context, admission, main.frame_limits, admits) if member is None else None
    main.take_plain(PlainRequests(sends, pulls) if sends is not None and pulls is not None else sends)
    fast.take_plain(sends)


def plain_pulls(
    context: PullContext,
    admission: Admission,
    limits: FrameLimits,
    admits: Callable[..., bool] | None = None,
    module: ModuleType | None = None,
) -> PlainSends | None:
    """The compiled code for plain pulls (`hot/pulls.py`) of a broker without group; None without such code."""
    module = module or compiled("pulls")
    if module is None:
        return None
    pulls: PlainSends = module.Pulls(
        context,
        admission,
        limits,
        (COUNT_MAX, READ_AHEAD),
        TRANSACTION_GROUP,
        checked,
        count_pull,
        _with_messages,
        admits,
    )
    return pulls


def _with_messages(
    serialization: Serialization, opaque: int, offsets: tuple[int, int, int], buffers: list[memoryview]
) -> bytes:
    """The answer with messages to a client that goes on pulling from this broker."""
    return encoded(serialization, opaque, ResponseCode.SUCCESS, GetStatus.FOUND, 0, offsets, buffers)
