"""Options of a producer and their validation. Pure.

Requirements: API-01, API-14, API-22, API-29, BAT-02, PR-04.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from saturnmq.client.checks import option_problems, producer_group_problem, range_problems
from saturnmq.client.connection.transaction_checks import Check
from saturnmq.client.hooks import SendHook, with_installed
from saturnmq.client.tracing import trace_topic_problem
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError

BATCH_BYTES: Final = 65_536
# Response codes that are retried: those of PR-16, and by API-29 also SYSTEM_BUSY (2) and FLOW_CONTROL (215).
RETRY_CODES: Final = frozenset(
    {
        int(ResponseCode.TOPIC_NOT_EXIST),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.SYSTEM_ERROR),
        int(ResponseCode.NO_PERMISSION),
        int(ResponseCode.NO_BUYER_ID),
        int(ResponseCode.NOT_IN_CURRENT_UNIT),
        int(ResponseCode.SYSTEM_BUSY),
        int(ResponseCode.FLOW_CONTROL),
    }
)
RANGES: Final[dict[str, tuple[float, float]]] = {
    "max_in_flight": (1, 65_535),
    "linger_ms": (0, 10_000),
    "batch_bytes": (0, 4_194_304),
}


class ProducerOptions(TypedDict, total=False):
    """The keyword options of `Client.producer`; ProducerSettings documents them."""

    max_in_flight: int
    linger_ms: float
    batch_bytes: int
    hooks: Sequence[SendHook]
    retry_codes: Iterable[int]
    check: Check | None
    check_executor: Executor | None
    trace: bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Validated options of one producer.

    max_in_flight: messages that are being sent; further ones wait.
    linger_ms: how long a send waits for others to share its request; with 0, only sends of the same event-loop iteration share one.
    batch_bytes: size of such a request; 0 sends every message by itself.
    hooks: called around every attempt; with hooks every message is sent by itself.
    retry_codes: response codes after which a send is tried again.
    check: returns the outcome of a transaction when a broker asks for it; required for transactions; a coroutine function, or a
    plain function, which runs in check_executor; 20 checks run at once and 2,000 wait.
    check_executor: threads of a plain `check`; None: those of asyncio.
    trace: whether, or to which topic, message trace records are sent; None takes the client's setting.

        out = client.producer("orders-p", max_in_flight=64, linger_ms=5)
    """

    max_in_flight: int = 1024
    linger_ms: float = 0.0
    batch_bytes: int = BATCH_BYTES
    hooks: Sequence[SendHook] = ()
    retry_codes: Iterable[int] = RETRY_CODES
    check: Check | None = None
    check_executor: Executor | None = None
    trace: bool | str | None = None

    def validate(self) -> list[str]:
        """All problems, one sentence each with the allowed range; empty if the options are valid."""
        problems = range_problems(self, RANGES)
        if problem := trace_topic_problem(self.trace):
            problems.append(problem)
        if self.check is not None and not callable(self.check):
            problems.append(f"check is {type(self.check).__name__}, must be a function of the message")
        return problems


def producer_settings(group: str, options: Mapping[str, Any]) -> ProducerSettings:
    """Validate the options of a producer of this group, and add the hooks installed for all producers. Raises ConfigError."""
    problems, valid = option_problems(options, ProducerOptions.__annotations__)
    settings = ProducerSettings(**{**valid, "hooks": with_installed(valid.get("hooks", ()), SendHook)})
    problems += settings.validate()
    if problem := producer_group_problem(group):
        problems.insert(0, problem)
    if problems:
        raise ConfigError(problems)
    return settings
