"""The page of messages that brokers hold back: undecided transactions, delayed messages, and messages with a delivery time.

Requirements: UX-14.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from saturnmq.admin.connection import answered, failed
from saturnmq.admin.waiting import TIMED_MAX, DelayLevel, Timed, UndecidedTransactions
from saturnmq.console.asking import within
from saturnmq.console.context import Page, paged
from saturnmq.console.state import View


async def show(request: Request, page: Page, view: View) -> Response:
    """Undecided half messages of all masters, oldest first, their delay levels, and timed messages, next first."""
    waiting = page.services.admin.waiting
    names = {master.address: master.name for master in view.masters}
    silent = {master.address: master.problem for master in view.masters if master.problem}
    reachable = [address for address in names if address not in silent]

    async def ask(address: str) -> tuple[UndecidedTransactions, list[DelayLevel], Timed]:
        name = names[address]
        return await waiting.transactions(name), await waiting.delays(address, name), await waiting.timed(address)

    answers = await within(reachable, ask)
    problems: dict[str, str] = silent | {address: error.message for address, error in failed(answers).items()}
    parts = answered(answers)
    halves = sorted(
        (half for transactions, _, _ in parts.values() for half in transactions.halves), key=lambda half: half.stored_ms
    )
    timed = [
        (names[address], message)
        for address, (_, _, timed_messages) in parts.items()
        for message in timed_messages.messages
    ]
    timed.sort(key=lambda row: row[1].due_ms)
    return page.render(
        "waiting.html",
        rows=paged(halves, request.query_params.get("page")),
        cut=any(transactions.cut for transactions, _, _ in parts.values()),
        exact=all(transactions.exact for transactions, _, _ in parts.values()),
        levels=[(names[address], level) for address, (_, delay_levels, _) in parts.items() for level in delay_levels],
        timed=timed[:TIMED_MAX],
        timed_count=sum(timed_messages.count for _, _, timed_messages in parts.values()),
        timed_cut=any(timed_messages.cut for _, _, timed_messages in parts.values()),
        problems=problems,
        now_ms=time.time_ns() // 1_000_000,
        seconds=seconds,
    )


def seconds(ms: int) -> str:
    """A duration such as 2 h 5 min, or 14 s."""
    whole = max(ms, 0) // 1000
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
