"""Which role may use each route of the console: every route of the application with every role, against one table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from browsing import HOST, Times
from starlette.routing import Mount, Route

from saturnmq.console.app import CHANGES, FORM_ABOVE, build
from saturnmq.console.context import NAVIGATION
from saturnmq.console.users import ROLES, hash_password

Open = Callable[..., Any]
NOWHERE = "127.0.0.1:1"
ANYONE = "anyone"
ROLES_OF_USERS = ("viewer", "operator", "admin")  # each may do what those before it may
# The least role of every route, decided here and not read from the application. HEAD comes with GET.
EXPECTED = {
    "GET /login": ANYONE,
    "POST /login": ANYONE,
    "POST /language": ANYONE,
    "GET /health": ANYONE,
    "MOUNT /static": ANYONE,
    "GET /": "viewer",
    "GET /brokers": "viewer",
    "GET /brokers/{address}": "viewer",
    "GET /brokers/{address}/settings": "viewer",
    "GET /topics": "viewer",
    "GET /topics/{cluster}/{name}": "viewer",
    "GET /groups": "viewer",
    "GET /groups/{cluster}/{name}": "viewer",
    "GET /groups/{cluster}/{name}/reset": "operator",
    "GET /groups/{cluster}/{name}/clients/{client}": "viewer",
    "GET /messages": "viewer",
    "GET /messages/{topic}/{id}": "viewer",
    "GET /messages/{topic}/{id}/download": "viewer",
    "GET /dead-letters": "viewer",
    "GET /dead-letters/{name}": "viewer",
    "GET /dead-letters/{name}/export/{kind}": "viewer",
    "GET /search": "viewer",
    "GET /search/{id}": "viewer",
    "GET /search/{id}/download": "viewer",
    "GET /traces": "viewer",
    "GET /waiting": "viewer",
    "GET /ledger": "viewer",
    "GET /ledger/{name}": "viewer",
    "GET /ledger/{name}/transfer": "admin",
    "GET /producers": "viewer",
    "GET /name-servers": "viewer",
    "GET /graph": "viewer",
    "GET /alarms": "viewer",
    "GET /accounts": "admin",
    "GET /audit": "admin",
    "POST /do/logout": "viewer",
    "POST /do/search": "viewer",
    "POST /do/search/cancel": "viewer",
    "POST /do/tail": "viewer",
    "POST /do/analysis": "viewer",
    "POST /do/message": "operator",
    "POST /do/message/consume": "operator",
    "POST /do/dead-letters/resend": "operator",
    "POST /do/group": "operator",
    "POST /do/group/reset": "operator",
    "POST /do/topic": "operator",
    "POST /do/alarms": "operator",
    "POST /do/alarms/group": "operator",
    "POST /do/alarms/forget": "operator",
    "POST /do/topic/delete": "admin",
    "POST /do/group/delete": "admin",
    "POST /do/account": "admin",
    "POST /do/account/delete": "admin",
    "POST /do/account/white": "admin",
    "POST /do/accounts/copy": "admin",
    "POST /do/ledger/transfer": "admin",
    "POST /do/name-servers": "admin",
    "POST /do/broker/settings": "admin",
}
# The action of each change in the audit log.
ACTIONS = {
    "/do/logout": "logout",
    "/do/search": "search",
    "/do/search/cancel": "search_cancel",
    "/do/tail": "tail",
    "/do/analysis": "analysis",
    "/do/message": "send",
    "/do/message/consume": "consume",
    "/do/dead-letters/resend": "resend",
    "/do/group": "group",
    "/do/group/reset": "reset",
    "/do/topic": "topic",
    "/do/alarms": "alarms",
    "/do/alarms/group": "alarms_group",
    "/do/alarms/forget": "alarms_forget",
    "/do/topic/delete": "topic_delete",
    "/do/group/delete": "group_delete",
    "/do/account": "account",
    "/do/account/delete": "account_delete",
    "/do/account/white": "white_list",
    "/do/accounts/copy": "accounts_copy",
    "/do/ledger/transfer": "ledger_transfer",
    "/do/name-servers": "name_servers",
    "/do/broker/settings": "broker_settings",
}


def routes_of(console: Any) -> list[str]:
    """Every route of the application: method and path."""
    rows = []
    for route in build(console.services).routes:
        if isinstance(route, Mount):
            rows.append(f"MOUNT {route.path}")
        else:
            assert isinstance(route, Route) and route.methods is not None, route
            rows += [f"{method} {route.path}" for method in sorted(route.methods - {"HEAD"})]
    return rows


def address_of(path: str) -> str:
    """A path with values for its parameters."""
    return re.sub(r"\{[a-z]+\}", "x", path)


async def asked(console: Any, row: str, csrf: str) -> httpx.Response:
    """The response to a request of a route, with the token of the session."""
    method, _, path = row.partition(" ")
    if method == "MOUNT":
        return await console.browser.get(f"{path}/console.css")
    if method == "GET":
        return await console.browser.get(address_of(path))
    return await console.browser.post(path, data={"csrf": csrf})


def outcome_of(response: httpx.Response) -> str:
    """`login`, `forbidden` or `served`: what became of a request."""
    if response.status_code == 303 and response.headers["location"] == "/login":
        return "login"
    return "forbidden" if response.status_code == 403 else "served"


async def session_of(console: Any, role: str) -> str:
    """Log in as the user of a role, and return the token of the session; empty for no user."""
    console.browser.cookies.clear()
    if role not in ROLES_OF_USERS:
        return ""
    await console.log_in(role, role)
    session = console.services.sessions.find(console.browser.cookies["saturnmq_session"])
    assert session is not None and session.user.role == role
    return str(session.csrf)


def add_users(console: Any) -> None:
    users = {role: {"role": role, "password": hash_password(role)} for role in ROLES_OF_USERS}
    (console.folder / "users.json").write_text(json.dumps({"users": users}))


@pytest.mark.spec("SEC-22")
@pytest.mark.parametrize("user", ["stranger", *ROLES_OF_USERS])
async def test_every_route_serves_the_roles_of_the_table_and_no_other(console: Open, user: str) -> None:
    async with console(NOWHERE) as one:
        add_users(one)
        rows = routes_of(one)
        assert sorted(rows) == sorted(EXPECTED), "each route needs one row in EXPECTED"
        csrf = await session_of(one, user)
        for row in sorted(rows, key=lambda row: row == "POST /do/logout"):  # which ends the session: last
            role = EXPECTED[row]
            if role == ANYONE:
                wanted = "served"
            elif user == "stranger":
                wanted = "login"
            else:
                allowed = ROLES_OF_USERS.index(user) >= ROLES_OF_USERS.index(role)
                wanted = "served" if allowed else "forbidden"
            response = await asked(one, row, csrf)
            if row == "POST /do/logout" and user != "stranger":
                assert response.headers["location"] == "/login" and response.status_code == 303
                assert outcome_of(await one.browser.get("/topics")) == "login"
            else:
                assert outcome_of(response) == wanted, (user, row, response.status_code)


@pytest.mark.spec("SEC-22")
async def test_every_change_needs_the_token_and_is_logged_with_its_action(console: Open) -> None:
    async with console(NOWHERE) as one:
        add_users(one)
        csrf = await session_of(one, "admin")
        changes = [row.partition(" ")[2] for row in routes_of(one) if row.startswith("POST /do/")]
        assert sorted(changes) == sorted(ACTIONS), "each change needs one row in ACTIONS"
        for path in sorted(changes, key=lambda path: path == "/do/logout"):
            for data in ({"other": "x"}, {"csrf": ""}, {"csrf": csrf + "x"}, {"csrf": csrf[:-1]}):
                assert (await one.browser.post(path, data=data)).status_code == 403, (path, data)
            await one.browser.post(path, data={"csrf": csrf})
            last = (one.folder / "audit.log").read_text().splitlines()[-1]
            assert f"user=admin peer=127.0.0.1 action={ACTIONS[path]} target={path}" in last.replace('"', ""), last


async def test_refused_change_is_logged_with_the_role_that_it_needs(console: Open) -> None:
    async with console(NOWHERE) as one:
        add_users(one)
        csrf = await session_of(one, "viewer")
        await one.browser.post("/do/group/reset", data={"csrf": csrf})
        assert (
            (one.folder / "audit.log")
            .read_text()
            .splitlines()[-1]
            .endswith(
                'user=viewer peer=127.0.0.1 action=reset target=/do/group/reset result="refused: needs the role operator"'
            )
        )


async def test_routes_answer_no_other_method(console: Open) -> None:
    async with console(NOWHERE) as one:
        add_users(one)
        csrf = await session_of(one, "admin")
        rows = set(routes_of(one))
        for row in rows:
            method, _, path = row.partition(" ")
            if method == "GET" and f"POST {path}" not in rows:
                assert (await one.browser.post(address_of(path), data={"csrf": csrf})).status_code == 405, row
            if method == "POST" and f"GET {path}" not in rows:
                assert (await one.browser.get(path)).status_code == 405, row


def test_roles_of_the_table_are_those_of_users() -> None:
    assert ROLES == ROLES_OF_USERS


async def test_session_ends_after_12_hours_of_use(console: Open) -> None:
    clock = Times()
    async with console(NOWHERE, clock=clock) as one:
        await one.log_in()
        for half_hour in range(1, 25):
            clock.now += 1800
            assert (await one.browser.get("/audit")).status_code == 200, f"after {half_hour} half hours"
        clock.now += 1
        assert (await one.browser.get("/audit")).status_code == 303, "after 12 hours and a second"


async def test_session_ends_after_an_hour_without_use(console: Open) -> None:
    clock = Times()
    async with console(NOWHERE, clock=clock) as one:
        await one.log_in()
        clock.now += 3600
        assert (await one.browser.get("/audit")).status_code == 200
        clock.now += 3601
        assert (await one.browser.get("/audit")).status_code == 303


@pytest.mark.parametrize(("secure", "hosts"), [(False, ["127.0.0.1"]), (True, ["mq.example"])])
async def test_cookie_and_hosts_follow_the_options(console: Open, secure: bool, hosts: list[str]) -> None:
    async with console(NOWHERE, secure=secure, hosts=hosts) as one:
        for host in ("127.0.0.1", "mq.example"):
            data = {"user": "admin", "password": one.password}
            response = await one.browser.post("/login", data=data, headers={"host": host})
            assert response.status_code == (303 if host in hosts else 400), host
            if host in hosts:
                assert ("Secure" in response.headers["set-cookie"]) is secure


async def test_only_names_of_this_machine_are_hosts_by_default(console: Open) -> None:
    async with console(NOWHERE) as one:
        for host in ("127.0.0.1", "127.0.0.1:8080", "localhost", "localhost:8080", "mq.example", "evil.localhost"):
            status = (await one.browser.get("/health", headers={"host": host})).status_code
            assert status == (200 if host.partition(":")[0] in ("127.0.0.1", "localhost") else 400), host


async def test_path_that_does_not_exist_and_defect_have_pages_of_the_console(
    console: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with console(NOWHERE) as one:
        await one.log_in()
        missing = await one.browser.get("/" + "n" * 300)
        assert missing.status_code == 404 and "<h1>Page not found</h1>" in missing.text
        assert f"There is no page /{'n' * 199}. It may be" in missing.text

        async def fails() -> None:
            raise ValueError("no such key")

        monkeypatch.setattr(one.services.state, "view", fails)
        transport = httpx.ASGITransport(app=build(one.services), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=HOST, cookies=one.browser.cookies) as browser:
            defect = await browser.get("/topics")
        assert defect.status_code == 500 and "<h1>The page failed</h1>" in defect.text
        assert 'href="/topics"' in defect.text and "no such key" not in defect.text


async def test_part_of_a_page_goes_to_the_login_once_the_session_has_ended(console: Open) -> None:
    async with console(NOWHERE) as one:
        answer = await one.browser.get("/topics", headers={"hx-request": "true"})
        assert (answer.status_code, answer.headers["hx-redirect"]) == (204, "/login")
        answer = await one.browser.get("/topics", headers={"hx-request": "false"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")


# What the menu of every page leads to, and the least role that sees it.
MENU_ROLES = {
    "/": "viewer", "/brokers": "viewer", "/ledger": "viewer", "/name-servers": "viewer", "/topics": "viewer",
    "/messages": "viewer", "/search": "viewer", "/traces": "viewer", "/dead-letters": "viewer", "/waiting": "viewer",
    "/groups": "viewer", "/producers": "viewer", "/graph": "viewer", "/alarms": "viewer", "/accounts": "admin",
    "/audit": "admin",
}  # fmt: skip


def test_menu_leads_to_these_pages() -> None:
    assert {path: role for _, links in NAVIGATION for path, _, role in links} == MENU_ROLES
    assert [heading for heading, _ in NAVIGATION] == ["Cluster", "Messages", "Clients", "Operation"]


def test_form_of_a_refused_preview_is_on_the_page_above() -> None:
    """Every other page with a form shows the form itself when it is refused."""
    assert FORM_ABOVE == ("/groups/{cluster}/{name}/reset", "/ledger/{name}/transfer")


def test_audit_log_names_changes_by_these_actions() -> None:
    actions = {path: action for path, (action, _, _) in CHANGES.items()}
    assert actions | {"/do/logout": "logout"} == ACTIONS
