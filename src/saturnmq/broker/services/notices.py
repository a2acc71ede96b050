"""Notifies the members of a consumer group of changes, so that they rebalance (HB-04).

A change is notified after NOTIFY_SECONDS, together with all others of the group until then: when many consumers start at once, each
would otherwise notify all others. After that, a group has at most one round per ROUND_SECONDS, however often a member joins and
leaves; a change during a round or soon after it causes the next one, so that the last change is always notified.

The rounds of all groups use at most SLICE_SECONDS of every SLICE_SECONDS + PAUSE_SECONDS; the groups take turns, so that a large
one does not delay the others. Runs on the event loop.

Requirements: HB-04, LIM-13.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from time import thread_time
from typing import Final

from saturnmq.broker.state.clients import Clients, ConsumerGroup
from saturnmq.net import ConnectFailed, Connection
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command

NOTIFY_SECONDS: Final = 0.02
ROUND_SECONDS: Final = 1.0
SLICE_SECONDS: Final = 0.003
PAUSE_SECONDS: Final = 0.009
TIMER_SECONDS: Final = 0.001  # timers of the event loop may run this much early
TURN: Final = 32  # members of one group that are notified before the next group
NOTICES_MAX: Final = 1000  # in one slice


class MemberNotices:
    """The rounds of all groups. notifies: whether the members of a group are notified at all."""

    def __init__(self, clients: Clients, notifies: Callable[[str], bool]) -> None:
        self._clients = clients
        self._notifies = notifies
        self._waiting: set[str] = set()  # groups with a change whose round has not begun
        self._soon: deque[tuple[float, str]] = deque()  # those of them that had no round lately, and when it begins
        self._later: deque[tuple[float, str]] = deque()  # the others; both in order of time
        self._began: dict[str, float] = {}  # when the last rounds began, oldest first; those of the last ROUND_SECONDS
        self._rounds: dict[str, deque[Connection]] = {}  # members that a round has not reached yet, in order of turns
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> bool:
        """Whether a member is still to be notified."""
        return bool(self._waiting or self._rounds)

    def changed(self, group: ConsumerGroup) -> None:
        """Schedule a round for a group whose members or topics changed."""
        name = group.name
        # A change while a round is planned is part of it.
        if name in self._waiting or not self._notifies(name):
            return
        now = asyncio.get_running_loop().time()
        self._forget(now)
        self._waiting.add(name)
        # A round began less than a second ago: the next one waits.
        if name in self._began:
            self._later.append((now + ROUND_SECONDS, name))
        else:
            self._soon.append((now + NOTIFY_SECONDS, name))
        self._schedule(now)

    def stop(self) -> None:
        """Notify no more members."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget(self, now: float) -> None:
        """Forget rounds that began more than ROUND_SECONDS ago."""
        while self._began:
            name, began = next(iter(self._began.items()))
            if now - began < ROUND_SECONDS:
                return
            del self._began[name]

    def _schedule(self, now: float) -> None:
        if self._timer is not None:
            return
        times = [queue[0][0] for queue in (self._soon, self._later) if queue]
        if self._rounds:
            times.append(now + PAUSE_SECONDS)
        if times:
            self._timer = asyncio.get_running_loop().call_at(min(times), self._slice)

    def _slice(self) -> None:
        """Notify members for one slice. Congested ones are skipped, as clients also rebalance by themselves every 20 s."""
        self._timer = None
        # CPU time: other work of the machine must not stretch the slice.
        now, until, remaining_notices = asyncio.get_running_loop().time(), thread_time() + SLICE_SECONDS, NOTICES_MAX
        while remaining_notices > 0 and thread_time() < until:
            self._begin(now)
            if not self._rounds:
                break
            name = next(iter(self._rounds))
            members = self._rounds.pop(name)
            for _ in range(min(len(members), TURN, remaining_notices)):
                _notify(members.popleft(), name)
                remaining_notices -= 1
            if members:
                self._rounds[name] = members
        self._schedule(now)

    def _begin(self, now: float) -> None:
        """Begin one round that is due."""
        for queue in (self._soon, self._later):
            # A timer may fire a little early.
            if not queue or queue[0][0] > now + TIMER_SECONDS:
                continue
            _, name = queue.popleft()
            # The last round of this group is still going on.
            if name in self._rounds:
                self._later.append((now + ROUND_SECONDS, name))
                continue
            self._waiting.discard(name)
            group = self._clients.consumers.get(name)
            if group is not None:
                # Put back at the end, so that the order is that of their begins.
                self._began.pop(name, None)
                self._began[name] = now
                self._rounds[name] = deque(group.members)
            return


def _notify(member: Connection, group: str) -> None:
    # It does not read: the notice would wait in its output, and it rebalances by itself.
    if not member.congested:
        with contextlib.suppress(ConnectFailed):
            member.invoke_oneway(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": group}))
