"""The configuration of a broker: its keys and values, with secrets masked, and a change of one key after a preview.

Requirements: CON-04, UX-16.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.console.context import Page
from saturnmq.console.forms import WrongField
from saturnmq.console.pages import missing
from saturnmq.console.state import View
from saturnmq.protocol.errors import ConfigError, SaturnError

KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,127}")
VALUE_MAX: Final = 4096
MASK: Final = "***"
_SECRET: Final = re.compile(r"secret|password|passwd|token|credential|privatekey|accesskey", re.I)


def masked(key: str, value: str) -> str:
    """A value as pages show it."""
    return MASK if value and _SECRET.search(key) else value


async def show(request: Request, page: Page, view: View) -> Response:
    """All keys; with `key` and `value`, the preview of a change."""
    address, query = request.path_params["address"], request.query_params
    if all(broker.address != address for broker in view.survey.brokers):
        return missing(page, "broker", address)
    values = await page.services.admin.brokers.configuration(address)
    key = query.get("key", "").strip()
    change = None
    if key and page.may("admin"):
        value = checked(key, query.get("value", ""))
        change = (key, masked(key, values.get(key, "")), value)
    search_text = query.get("q", "").lower()
    rows = [(name, masked(name, values[name])) for name in sorted(values) if search_text in name.lower()]
    return page.render(
        "broker_settings.html", address=address, rows=rows[:2000], search_text=search_text, change=change
    )


async def change(request: Request, page: Page) -> Response:
    """Change a key of a broker, if the broker allows it and the value is still the one of the preview."""
    form = await request.form()
    address, key = str(form.get("address", "")), str(form.get("key", "")).strip()
    value = checked(key, str(form.get("value", "")))
    view = await page.services.state.view()
    if view is None or all(broker.address != address for broker in view.survey.brokers):
        raise ConfigError(f"no broker {address!r:.100} is known")
    admin = page.services.admin
    # Between preview and change another user may have changed the key: what was confirmed is not what would happen.
    now = masked(key, (await admin.brokers.configuration(address)).get(key, ""))
    if now != str(form.get("before", "")):
        raise ConfigError(f"{key} has changed meanwhile; look at the preview again")
    failures: dict[str, SaturnError] = await admin.brokers.update_configuration([address], key, value)
    for failure in failures.values():
        raise failure
    return RedirectResponse(f"/brokers/{quote(address, safe='')}/settings?q={quote(key)}", 303)


def checked(key: str, value: str) -> str:
    """The value of a change. Raises ConfigError for a key or value that cannot be one, and for secrets."""
    if not KEY.fullmatch(key):
        raise WrongField("key", f"key {key!r:.100} must begin with a letter, with letters, digits, . and _")
    if _SECRET.search(key):
        raise WrongField("key", f"{key} is a secret; set it in the configuration file of the broker")
    if len(value) > VALUE_MAX or any(ord(sign) < 32 for sign in value):
        raise WrongField("value", f"the value of {key} must be one line of at most {VALUE_MAX} characters")
    return value.strip()
