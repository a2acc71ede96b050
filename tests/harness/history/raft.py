"""The history of a simulated Raft group: proposals, responses, and the entries that each member holds.

Requirements: SIM-09.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from harness.history.operations import FAIL, OK, UNKNOWN, History
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import AppendResponse, Code

LOG: Final = "log"
# Rejected before anything was appended.
REFUSALS: Final = frozenset(
    {Code.NOT_LEADER, Code.DISK_FULL, Code.LEADER_PENDING_FULL, Code.LEADER_NOT_READY, Code.LEADER_TRANSFERRING}
)


def value_of(body: bytes) -> str:
    """The unique word at the start of a body."""
    return body.partition(b" ")[0].decode()


def record_send(history: History, target: str, now_ms: float, bodies: Sequence[bytes]) -> None:
    """Record a proposal; without a response its outcome stays unknown."""
    messages: list[list[Any]] = [[value_of(body), None] for body in bodies]
    process = f"to {target} {value_of(bodies[0])}"
    more = {"result": UNKNOWN, "attempt": 1, "messages": messages, "queue": LOG}
    history.add("send", process, now_ms, float("inf"), **more)


def record_answer(history: History, now_ms: float, bodies: Sequence[bytes], response: AppendResponse) -> None:
    """Record the response to a proposal."""
    first = value_of(bodies[0])
    for at in range(len(history.operations) - 1, -1, -1):
        operation = history.operations[at]
        if operation["op"] == "send" and operation["messages"][0][0] == first:
            break
    else:
        return
    messages: list[list[Any]] = [[value_of(body), None] for body in bodies]
    result = OK if response.code == Code.SUCCESS else FAIL if response.code in REFUSALS else UNKNOWN
    if result == OK:
        for number, message in enumerate(messages):
            message[1] = response.index - len(bodies) + 1 + number
    history.operations[at] = {**operation, "end": now_ms, "result": result, "messages": messages}


def record_log(history: History, member: str, now_ms: float, entries: Iterable[Entry], noop: bytes | None) -> None:
    """Record the entries that a member holds at the end."""
    found = [[entry.index, value_of(entry.body), 1] for entry in entries if entry.body != noop]
    more = {"group": "final", "mode": "final", "queue": LOG, "messages": found}
    history.add("poll", f"final {member}", now_ms, now_ms, **more)
