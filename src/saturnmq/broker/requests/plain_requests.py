"""What the endpoints of a broker take before it is decoded: plain sends, pulls and offset commits, with its services.

Requirements: BP-01..BP-08.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from types import ModuleType
from typing import cast

from saturnmq.broker.requests.context import OffsetContext, PullContext, SendContext
from saturnmq.broker.requests.offsets import check_commit
from saturnmq.broker.requests.plain_sends import GroupMember, PlainRules, plain_sends, success_frame
from saturnmq.broker.requests.pull import COUNT_MAX, READ_AHEAD, checked, count_pull, next_broker
from saturnmq.broker.requests.pull_answer import frame_head
from saturnmq.broker.requests.table import BoundRoute
from saturnmq.broker.services.admission import Admission
from saturnmq.broker.services.transactions import GROUP as TRANSACTION_GROUP
from saturnmq.hot import compiled, hot_module
from saturnmq.net import RemotingServer
from saturnmq.net.plain_reads import PlainReader, PlainSends
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Serialization
from saturnmq.store import GetStatus


class PlainRequests:
    """Plain requests of several kinds, as `PlainReads` takes them.

    Nothing is taken after a send of the same connection: a pull must wait until that is visible. sends: None on a slave. kinds: of
    all others. Sends are tried first after a read that began with one: most clients either send or pull.
    """

    def __init__(self, sends: PlainSends | None, kinds: tuple[PlainSends, ...]) -> None:
        self._sends, self._kinds = sends, kinds
        self._sends_first = False

    def feed(self, data: bytes, until: float, reader: PlainReader) -> int:
        """Take the plain requests at the start of data; returns the position of the first frame that is left."""
        # A client that sent before most likely sends again.
        if self._sends_first and self._sends is not None:
            if count := self._sends.feed(data, until, reader):
                return count
            self._sends_first = False
        at = 0
        while at < len(data):
            unread = data[at:]
            count = 0
            for kind in self._kinds:
                if count := kind.feed(unread, until, reader):
                    break
            # Nothing after a send: a pull of the same read must see it, and it is visible only after `finish`.
            if not count and self._sends is not None:
                count = self._sends.feed(unread, until, reader)
                self._sends_first = at == 0 and count > 0
                return at + count
            at += count
            if not count or monotonic() > until:
                break
        return at

    def finish(self) -> dict[int, int]:
        """Make what was sent visible; returns the number of requests by code."""
        counts = self._sends.finish() if self._sends is not None else {}
        for kind in self._kinds:
            counts = {**counts, **kind.finish()}
        return counts


def take_plain(
    ports: tuple[RemotingServer, RemotingServer],
    routes: Mapping[int, BoundRoute],
    admission: Admission,
    member: GroupMember | None,
    admits: Callable[..., bool] | None,
) -> None:
    """Let compiled code, if there is any, take the plain sends and commits of both ports and the plain pulls of the main port.

    ports: the main and the fast one. routes: with the services of the broker. member: of a DLedger group, whose role decides.
    admits: with access control, `Grants.admits`.
    """
    if compiled("sends") is None:
        return
    main, fast = ports
    send_context = cast("SendContext", routes[RequestCode.SEND_MESSAGE_V2].context)
    pull_context = cast("PullContext", routes[RequestCode.PULL_MESSAGE].context)
    offset_context = cast("OffsetContext", routes[RequestCode.UPDATE_CONSUMER_OFFSET].context)
    rules = PlainRules(admission, member, main.frame_limits, admits)
    # Decided once: without a group the role does not change while the broker runs.
    is_slave = member is None and pull_context.role.slave
    sends = None if is_slave else plain_sends(send_context, rules)
    pulls = plain_pulls(pull_context, rules)
    commits = plain_commits(offset_context, rules)
    main.take_plain(PlainRequests(sends, (pulls, commits)))
    # Pulls are not served on the fast port (REM-28).
    fast.take_plain(PlainRequests(sends, (commits,)))


def plain_commits(
    context: OffsetContext,
    rules: PlainRules,
    module: ModuleType | None = None,
) -> PlainSends:
    """What takes plain offset commits: `hot/commits.py`, compiled unless a test passes the module."""
    module = module or hot_module("commits")
    commits: PlainSends = module.Commits(
        context,
        rules.serves,
        rules.limits,
        check_commit,
        success_frame(),
        rules.admits,
    )
    return commits


def plain_pulls(
    context: PullContext,
    rules: PlainRules,
    module: ModuleType | None = None,
) -> PlainSends:
    """What takes plain pulls: `hot/pulls.py`, compiled unless a test passes the module."""
    module = module or hot_module("pulls")

    def head_of(
        serialization: Serialization,
        opaque: int,
        group: str,
        is_behind: bool,
        offsets: tuple[int, int, int],
        body_bytes: int,
    ) -> bytes:
        broker_id = next_broker(context, group, is_behind=is_behind)
        return frame_head(serialization, opaque, ResponseCode.SUCCESS, GetStatus.FOUND, broker_id, offsets, body_bytes)

    pulls: PlainSends = module.Pulls(
        context,
        rules.serves_pulls,
        rules.limits,
        (COUNT_MAX, READ_AHEAD),
        TRANSACTION_GROUP,
        checked,
        count_pull,
        head_of,
        rules.admits,
    )
    return pulls
