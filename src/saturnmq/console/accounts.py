"""Pages about accounts of access control: list, create, change, delete, global white list, versions of the files.

Secret keys are never shown, although an Apache broker sends them. Changes go to all masters of a cluster, one after the other.

Requirements: CON-12, UX-16.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.admin.accounts import AccountVersions
from saturnmq.admin.connection import answered, failed
from saturnmq.console.asking import within
from saturnmq.console.context import Page, paged
from saturnmq.console.forms import WrongField
from saturnmq.console.pages import missing
from saturnmq.console.state import View
from saturnmq.protocol.bodies import AclConfig, PlainAccessConfig
from saturnmq.protocol.errors import ConfigError, SaturnError

PERMISSIONS: Final = ("DENY", "PUB", "SUB", "PUB|SUB")
SWITCHED_OFF: Final = (
    "aclEnable=false",
    "does not enable acl",
)  # in what SaturnMQ and Apache 4.9.7 answer without access control
LINES_MAX: Final = 1000
TEXT_MAX: Final = 1000


async def listing(request: Request, page: Page, view: View) -> Response:
    """Accounts of one master, and the file versions of all masters of its cluster."""
    masters = view.masters
    address = request.query_params.get("broker", "") or next(
        (master.address for master in masters if not master.problem), ""
    )
    chosen = next((master for master in masters if master.address == address), None)
    if chosen is None:
        return (
            missing(page, "broker", address)
            if address
            else page.render("message.html", message=page.gettext("No master is known."))
        )
    accounts = page.services.admin.accounts
    same = [master.address for master in masters if master.cluster == chosen.cluster and not master.problem]
    configs, versions = await asyncio.gather(within([address], accounts.listing), within(same, accounts.versions))
    config = configs[address]
    problem = config.message if isinstance(config, SaturnError) else ""
    acl_config = AclConfig() if isinstance(config, SaturnError) else config
    edited = request.query_params.get("edit", "")
    search_text = request.query_params.get("q", "").lower()
    rows = [account for account in acl_config.plain_access_configs if search_text in account.access_key.lower()]
    return page.render(
        "accounts.html",
        masters=masters,
        chosen=chosen,
        problem=problem,
        switched_off=any(text in problem for text in SWITCHED_OFF),
        rows=paged(sorted(rows, key=lambda account: account.access_key), request.query_params.get("page")),
        search_text=search_text,
        white=acl_config.global_white_addrs,
        edited=next(
            (account for account in acl_config.plain_access_configs if account.access_key == edited),
            PlainAccessConfig(),
        ),
        permissions=PERMISSIONS,
        versions=answered(versions),
        failures=failed(versions),
    )


async def put(request: Request, page: Page) -> Response:
    """Create or change an account on all masters of a cluster."""
    form = await request.form()
    key = _text(form, "access_key")
    if not key:
        raise WrongField("access_key", "the access key is empty")
    account = PlainAccessConfig(
        access_key=key,
        secret_key=_text(form, "secret") or None,
        white_remote_address=_text(form, "white"),
        admin=form.get("admin") == "1",
        default_topic_perm=_permission(_text(form, "topic_default")),
        default_group_perm=_permission(_text(form, "group_default")),
        topic_perms=_permissions(form, "topic_permissions"),
        group_perms=_permissions(form, "group_permissions"),
    )
    return await _on_masters(page, form, lambda address: page.services.admin.accounts.put(address, account))


async def delete(request: Request, page: Page) -> Response:
    """Delete an account from all masters of a cluster; its access key must be typed once more."""
    form = await request.form()
    key = _text(form, "access_key")
    if not key or _text(form, "confirm") != key:
        raise WrongField("confirm", f"the access key typed to confirm is not {key}")
    return await _on_masters(page, form, lambda address: page.services.admin.accounts.delete(address, key))


async def white_list(request: Request, page: Page) -> Response:
    """Replace the global white list of all masters of a cluster, in the first account file of each."""
    form = await request.form()
    lines, accounts = _lines(form, "white"), page.services.admin.accounts

    async def change(address: str) -> None:
        versions: AccountVersions = await accounts.versions(address)
        await accounts.set_white_addresses(address, lines, next(iter(versions.files), None))

    return await _on_masters(page, form, change)


async def copy(request: Request, page: Page) -> Response:
    """Copy one account of a broker to the other masters of its cluster, without its secret key, which brokers do not give.

    A master that does not have the account yet refuses it: an account needs a secret key.
    """
    form = await request.form()
    key, source, cluster = _text(form, "access_key"), _text(form, "broker"), _text(form, "cluster")
    if source not in (await page.services.admin.connection.masters(cluster)).values():
        raise ConfigError(f"{source!r:.100} is no master of the cluster {cluster}")
    config = await page.services.admin.accounts.listing(source)
    account = next((candidate for candidate in config.plain_access_configs if candidate.access_key == key), None)
    if account is None:
        raise ConfigError(f"{source} has no account {key!r:.100}")
    secret = _text(form, "secret") or None
    account_copy = replace(account, secret_key=secret)

    async def change(address: str) -> None:
        if address != source:
            await page.services.admin.accounts.put(address, account_copy)

    return await _on_masters(page, form, change)


async def _on_masters(page: Page, form: FormData, change: Callable[[str], Awaitable[None]]) -> Response:
    """Change each master of the cluster of a form. Raises SaturnError naming those that failed."""
    cluster, problems = _text(form, "cluster"), []
    for name, address in (await page.services.admin.connection.masters(cluster)).items():
        try:
            await change(address)
        except SaturnError as error:
            problems.append(f"{name}: {error.message}")
    if problems:
        raise SaturnError(page.gettext("Not on every broker: {reason}", reason="; ".join(problems)))
    return RedirectResponse(f"/accounts?broker={quote(_text(form, 'broker'), safe='')}", 303)


def _text(form: FormData, name: str) -> str:
    text = str(form.get(name, "")).strip()
    if len(text) > TEXT_MAX:
        raise WrongField(name, f"{name} has {len(text)} characters, at most {TEXT_MAX} are allowed")
    return text


def _permission(text: str) -> str:
    if text not in PERMISSIONS:
        raise ConfigError(f"permission {text!r:.40} must be one of {', '.join(PERMISSIONS)}")
    return text


def _lines(form: FormData, name: str) -> list[str]:
    lines = [line.strip() for line in str(form.get(name, "")).splitlines() if line.strip()]
    if len(lines) > LINES_MAX:
        raise WrongField(name, f"{name} has {len(lines)} lines, at most {LINES_MAX} are allowed")
    for line in lines:
        if "," in line:
            raise WrongField(name, f"{line!r:.80} holds a comma; write one a line")
    return lines


def _permissions(form: FormData, name: str) -> list[str]:
    lines = _lines(form, name)
    for line in lines:
        resource, _, permission = line.rpartition("=")
        if not resource.strip():
            raise WrongField(name, f"{line!r:.80} must be such as name=PUB|SUB")
        _permission(permission.strip())
    return lines
