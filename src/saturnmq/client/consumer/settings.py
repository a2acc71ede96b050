"""Options of a consumer and their validation. Pure.

Requirements: CA-06, CA-T1, API-01, API-17, API-18, API-20, API-23, TR-02.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypedDict

from saturnmq.client.checks import consumer_group_problem, option_problems, range_problems
from saturnmq.client.consumer.rebalance_strategies import Strategy, average
from saturnmq.client.hooks import ConsumeHook
from saturnmq.client.tracing import trace_topic_problem
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError

Model = Literal["cluster", "broadcast"]
OnQueues = Callable[[list[MessageQueue]], Any]
NO_LIMIT: Final = 2**31 - 1
CONCURRENT_TIMES: Final = 16
RANGES: Final[dict[str, tuple[float, float]]] = {
    "prefetch": (1, 65_535),
    "prefetch_bytes": (1, 2**40),
    "pull_batch": (1, 1024),
    "ack_timeout": (0.01, 86_400.0),
    "suspend": (0.01, 30.0),
    "pull_interval": (0, 65.535),
}
# Thresholds per topic, which None turns off.
TOPIC_MAXIMA: Final = {"prefetch_per_topic": 6_553_500, "prefetch_bytes_per_topic": 102_400 * 2**20}


class ConsumerOptions(TypedDict, total=False):
    """The keyword options of `Client.consumer` and `Client.listener`; ConsumerSettings documents them."""

    prefetch: int
    prefetch_bytes: int
    prefetch_per_topic: int | None
    prefetch_bytes_per_topic: int | None
    start: str | datetime
    pull_batch: int
    pull_interval: float
    max_times: int | None
    ack_timeout: float
    strategy: Strategy
    ordered: bool
    suspend: float
    auto_commit: bool
    model: Model
    trace: bool | str | None
    hooks: Sequence[ConsumeHook]
    route_timeout: float | None
    on_assigned: OnQueues | None
    on_revoked: OnQueues | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Validated options of one consumer.

    prefetch: unsettled messages per queue at which pulling pauses; it resumes at half.
    prefetch_bytes: unsettled body bytes over all queues at which pulling pauses; it resumes at half.
    prefetch_per_topic: replaces `prefetch` by this number divided by this member's queues of the topic, at least 1, after each
    change of the assignment; can be exceeded by one pull.
    prefetch_bytes_per_topic: unsettled body bytes of a queue at which pulling pauses, divided likewise; `prefetch_bytes` still
    applies to all queues together; can be exceeded by one pull.
    start: "last", "first" or an aware datetime: where to begin in queues without a stored offset of the group. For a new group, a
    broker returns offset 0 for a queue whose first message is still in memory, regardless of this option.
    pull_batch: messages per pull request.
    pull_interval: seconds between a pull that found messages and the next one of its queue.
    max_times: redeliveries before a message goes to the dead-letter queue; None: 16, or unlimited if `ordered`.
    ack_timeout: seconds after which a message that was handed out but not settled is delivered again.
    strategy: how the members of the group divide the queues of a topic.
    ordered: one unsettled message per queue; a failed message blocks its queue for `suspend` seconds and is then repeated.
    suspend: how long a failed message blocks its queue if `ordered`.
    auto_commit: False, which needs `ordered`, holds acknowledged messages of a queue until one of it is settled by `commit`, which
    commits them all, or by `rollback`, which puts them all back. At most `prefetch` messages of a queue can be held.
    model: "cluster" divides the queues among the members; "broadcast" gives all of them to every member, and a failed message is
    dropped with a warning (if `ordered`, repeated).
    trace: whether, or to which topic, message trace records are sent; None takes the client's setting.
    hooks: called around the handling of every message.
    route_timeout: seconds for which a reader waits for a first subscription, or for one of the subscribed topics to exist, before
    it raises; None waits without limit. The default equals the interval at which routes are polled.
    on_assigned: a function or coroutine function that is called with the list of queues that this member has just acquired, without
    those of the retry topic; their position is fixed, messages may already wait, and it may seek.
    on_revoked: the same for queues that it is about to release, by a rebalance, `unsubscribe` or `stop`: what is settled before it
    returns is committed. Both hold up the rebalance until they return; an error of theirs is logged.

        consumer = client.consumer("billing", prefetch=64, start="first", ordered=True)
    """

    prefetch: int = 256
    prefetch_bytes: int = 64 * 1024 * 1024
    prefetch_per_topic: int | None = None
    prefetch_bytes_per_topic: int | None = None
    start: str | datetime = "last"
    pull_batch: int = 32
    pull_interval: float = 0.0
    max_times: int | None = None
    ack_timeout: float = 900.0
    strategy: Strategy = average
    ordered: bool = False
    suspend: float = 1.0
    auto_commit: bool = True
    model: Model = "cluster"
    trace: bool | str | None = None
    hooks: Sequence[ConsumeHook] = ()
    route_timeout: float | None = 30.0
    on_assigned: OnQueues | None = None
    on_revoked: OnQueues | None = None

    @property
    def times_max(self) -> int:
        """Redeliveries before a message goes to the dead-letter queue."""
        if self.max_times is not None:
            return self.max_times
        return NO_LIMIT if self.ordered else CONCURRENT_TIMES

    def validate(self) -> list[str]:
        """All problems, one sentence each with the allowed range; empty if the options are valid."""
        problems = range_problems(self, RANGES)
        for name, high in TOPIC_MAXIMA.items():
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (is_whole and 1 <= value <= high):
                problems.append(f"{name} is {value!r:.40}, must be 1..{high} or None")
        limit = self.route_timeout
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= 86_400
        ):
            problems.append(f"route_timeout is {limit!r:.40}, must be above 0, at most 86400, or None")
        times = self.times_max
        if isinstance(times, bool) or not isinstance(times, int) or not 0 <= times <= NO_LIMIT:
            problems.append(f"max_times is {times!r:.40}, must be 0..{NO_LIMIT} or None")
        if isinstance(self.start, datetime):
            if self.start.tzinfo is None:
                problems.append("start is a datetime without time zone, must be aware")
        elif self.start not in ("last", "first"):
            problems.append(f"start is {self.start!r:.60}, must be 'last', 'first' or an aware datetime")
        if not isinstance(self.auto_commit, bool):
            problems.append(f"auto_commit is {self.auto_commit!r:.40}, must be True or False")
        elif not self.auto_commit and not self.ordered:
            problems.append("auto_commit is False, which needs ordered=True")
        if self.model not in ("cluster", "broadcast"):
            problems.append(f"model is {self.model!r:.40}, must be 'cluster' or 'broadcast'")
        for name in ("on_assigned", "on_revoked"):
            if (callback := getattr(self, name)) is not None and not callable(callback):
                problems.append(f"{name} is {type(callback).__name__}, must be a function of a list of queues")
        if problem := trace_topic_problem(self.trace):
            problems.append(problem)
        return problems


def consumer_settings(group: str, options: Mapping[str, Any], instance: str | None) -> ConsumerSettings:
    """Validate the options of a consumer of this group.

    instance: the instance name of the client; broadcast consumers need it, because it is part of their offset file's path (API-06).
    Raises ConfigError listing every problem.
    """
    problems, valid = option_problems(options, ConsumerOptions.__annotations__)
    settings = ConsumerSettings(**valid)
    problems += settings.validate()
    if problem := consumer_group_problem(group):
        problems.insert(0, problem)
    if settings.model == "broadcast" and not instance:
        problems.append("model 'broadcast' needs Client(instance=...): it names the file in which the offsets are kept")
    if problems:
        raise ConfigError(problems)
    return settings
