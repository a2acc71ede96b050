"""The page of messages that brokers hold back: undecided transactions and delayed messages.

Requirements: UX-14.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from saturnmq.admin.connection import MASTER_ID, answered, failed
from saturnmq.admin.waiting import DelayLevel, Undecided
from saturnmq.console.asking import within
from saturnmq.console.context import Page, paged
from saturnmq.console.state import View


async def show(request: Request, page: Page, view: View) -> Response:
    """Undecided half messages of all masters, oldest first, and their delay levels."""
    waiting = page.services.admin.waiting
    names = {one.address: one.name for one in view.survey.brokers if one.number == MASTER_ID}
    silent = {one.address: one.problem for one in view.survey.brokers if one.number == MASTER_ID and one.problem}
    asked = [address for address in names if address not in silent]

    async def both(address: str) -> tuple[Undecided, list[DelayLevel]]:
        return await waiting.transactions(names[address]), await waiting.delays(address, names[address])

    found = await within(asked, both)
    problems: dict[str, str] = silent | {address: one.message for address, one in failed(found).items()}
    parts = answered(found)
    halves = sorted((half for one, _ in parts.values() for half in one.halves), key=lambda half: half.stored_ms)
    return page.render(
        "waiting.html",
        rows=paged(halves, request.query_params.get("page")),
        cut=any(one.cut for one, _ in parts.values()),
        exact=all(one.exact for one, _ in parts.values()),
        levels=[(names[address], level) for address, (_, many) in parts.items() for level in many],
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
