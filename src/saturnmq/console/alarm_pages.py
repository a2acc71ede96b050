"""The page of alarms: what is wrong now, what was, and the rules.

Requirements: CON-07, OPS-17, UX-16.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.console.actions import whole
from saturnmq.console.alarms import LIMITS, GroupRule
from saturnmq.console.context import Page
from saturnmq.console.forms import WrongField

GROUP_MAX: Final = 255
NUMBER_MAX: Final = 999_999_999


async def show(request: Request, page: Page) -> Response:
    """Active alarms, the last events and the rules."""
    alarms = page.services.alarms
    return page.render(
        "alarms.html", active=alarms.listed()[:200], events=list(alarms.events)[::-1][:200], rules=alarms.rules
    )


async def change(request: Request, page: Page) -> Response:
    """Set the limits for all groups and brokers."""
    form = await request.form()
    alarms = page.services.alarms
    limits = {name: whole(str(form.get(name, "")), name, 0, min(most, NUMBER_MAX)) for name, most in LIMITS.items()}
    await alarms.change(replace(alarms.rules, limits=limits))
    return RedirectResponse("/alarms", 303)


async def change_group(request: Request, page: Page) -> Response:
    """Set the rule of one group; zeros remove it."""
    form = await request.form()
    name = str(form.get("group", "")).strip()
    if not 0 < len(name) <= GROUP_MAX:
        raise WrongField("group", f"the name of the group has {len(name)} characters; it must have 1 to {GROUP_MAX}")
    least, most = (whole(str(form.get(field, "0")), field, 0, NUMBER_MAX) for field in ("minCount", "maxDiffTotal"))
    await page.services.alarms.with_group(name, GroupRule(least, most))
    return RedirectResponse("/alarms", 303)


async def forget(request: Request, page: Page) -> Response:
    """Expect the missing members of a broker no more: they were removed on purpose."""
    form = await request.form()
    page.services.alarms.forget(str(form.get("broker", "")))
    return RedirectResponse("/alarms", 303)
