"""What a consumer can be told, and whether it makes sense. Pure.

Source: spec 03 CA-06, CA-T1; spec 08 API-01, API-17, API-18, API-20, API-23.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal, TypedDict

from saturnmq.client.checks import consumer_group_problem
from saturnmq.client.consumer.rebalance import Strategy, average
from saturnmq.client.hooks import ConsumeHook
from saturnmq.client.trace.records import trace_topic_problem
from saturnmq.protocol.errors import ConfigError

Model = Literal["cluster", "broadcast"]
NO_LIMIT: Final = 2**31 - 1
CONCURRENT_TIMES: Final = 16
_RANGES: Final[dict[str, tuple[float, float]]] = {
    "prefetch": (1, 65_535),
    "prefetch_bytes": (1, 2**40),
    "pull_batch": (1, 1024),
    "ack_timeout": (0.01, 86_400.0),
    "suspend": (0.01, 30.0),
}


class ConsumerOptions(TypedDict, total=False):
    """The keywords of `Client.consumer` and `Client.listener`; what they mean is told at ConsumerSettings."""

    prefetch: int
    prefetch_bytes: int
    start: str | datetime
    pull_batch: int
    max_times: int | None
    ack_timeout: float
    strategy: Strategy
    ordered: bool
    suspend: float
    model: Model
    trace: bool | str | None
    hooks: Sequence[ConsumeHook]
    route_timeout: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Checked options of one consumer.

    prefetch: unsettled messages per queue, prefetch_bytes: of all queues; pulling pauses there (API-23).
    start: "last", "first" or an aware datetime, for queues of which the group has no stored offset (RB-05). Brokers give a new
    group offset 0 of a queue whose first message is still in memory (OF-04), whatever this says.
    pull_batch: messages per request. max_times: redeliveries before the dead letters; None: 16, ordered without limit.
    ack_timeout: seconds after which a message that was handed out and not settled comes again (API-20).
    strategy: how the members of the group share the queues.
    ordered: one unsettled message per queue; a failed one holds its queue for `suspend` seconds (API-17).
    model: "cluster" shares the queues in the group, "broadcast" gives all of them to every member (API-18).
    trace: whether and to which topic what happens to messages is told; None takes the client's setting (TR-02).
    hooks: called around the handling of every message.
    route_timeout: seconds for which a reader waits for a first subscription, or for one of the subscribed topics to exist,
    before it raises; None waits without limit. The default is the interval at which routes are polled (PR-11).
    """

    prefetch: int = 256
    prefetch_bytes: int = 64 * 1024 * 1024
    start: str | datetime = "last"
    pull_batch: int = 32
    max_times: int | None = None
    ack_timeout: float = 900.0
    strategy: Strategy = average
    ordered: bool = False
    suspend: float = 1.0
    model: Model = "cluster"
    trace: bool | str | None = None
    hooks: Sequence[ConsumeHook] = ()
    route_timeout: float | None = 30.0

    @property
    def times_max(self) -> int:
        """Redeliveries before the dead letters (CA-T1, OR-08)."""
        if self.max_times is not None:
            return self.max_times
        return NO_LIMIT if self.ordered else CONCURRENT_TIMES

    def validate(self) -> list[str]:
        """Every problem, one sentence with the allowed range each."""
        problems = []
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                problems.append(f"{name} is {value!r}, must be {low}..{high}")
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
        if self.model not in ("cluster", "broadcast"):
            problems.append(f"model is {self.model!r:.40}, must be 'cluster' or 'broadcast'")
        if problem := trace_topic_problem(self.trace):
            problems.append(problem)
        return problems


_NAMES: Final = tuple(item.name for item in fields(ConsumerSettings))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, _NAMES, 1, 0.5)
    return f"unknown option {name[:60]!r}, " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_NAMES)}")


def consumer_settings(group: str, options: Mapping[str, Any], instance: str | None) -> ConsumerSettings:
    """Checked settings of a consumer of this group. instance: of the client, which a broadcast consumer needs (API-06).

    Raises ConfigError naming every problem.
    """
    settings = ConsumerSettings(**{name: value for name, value in options.items() if name in _NAMES})
    problems = [_unknown(name) for name in options if name not in _NAMES] + settings.validate()
    if problem := consumer_group_problem(group):
        problems.insert(0, problem)
    if settings.model == "broadcast" and not instance:
        problems.append("model 'broadcast' needs Client(instance=...): it names the file in which the offsets are kept")
    if problems:
        raise ConfigError(problems)
    return settings
