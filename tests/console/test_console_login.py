"""Login, sessions, roles, and what other sites and strangers get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import Times

from saturnmq.console.login import local_path
from saturnmq.console.users import Sessions, Users, hash_password

NOWHERE = "127.0.0.1:1"
Open = Callable[..., Any]


@pytest.mark.spec("UX-13", "SEC-22")
async def test_first_start_needs_a_login_with_the_generated_password(console: Open) -> None:
    async with console(NOWHERE) as one:
        for path in ("/", "/topics", "/groups/a/b", "/audit"):
            answer = await one.browser.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login"), path
        assert (await one.log_in(password="guess")).status_code == 401
        answer = await one.log_in()
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Secure" not in cookie
        assert (await one.browser.get("/audit")).status_code == 200
        stored = json.loads((one.folder / "users.json").read_text())
        assert one.password not in json.dumps(stored)
        assert stored["users"]["admin"]["password"].startswith("scrypt$16384$8$1$")
        assert (one.folder / "users.json").stat().st_mode & 0o777 == 0o600


async def test_logins_and_refused_ones_are_in_the_audit_log(console: Open) -> None:
    async with console(NOWHERE) as one:
        refused = await one.log_in("n" * 101, "guess")
        assert "User or password is wrong." in refused.text and "set-cookie" not in refused.headers
        await one.log_in()
        lines = (one.folder / "audit.log").read_text().splitlines()
        assert [line.partition(" ")[2] for line in lines] == [
            f"user=- peer=127.0.0.1 action=login target={'n' * 100} result=refused",
            "user=- peer=127.0.0.1 action=login target=admin result=done",
        ]


async def test_passwords_are_checked_two_at_a_time_and_20_may_wait(
    console: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, most, free = 0, 0, asyncio.Event()

    async def attempt(self: Sessions, name: str, password: str, peer: str) -> None:
        nonlocal checked, most
        checked += 1
        most = max(most, checked)
        await free.wait()
        checked -= 1

    monkeypatch.setattr(Sessions, "attempt", attempt)
    async with console(NOWHERE) as one:
        logins = [asyncio.ensure_future(one.log_in(f"user{number}", "x")) for number in range(21)]
        refused, _ = await asyncio.wait(logins, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status_code for task in refused] == [429]
        assert "Try again in 1 " in refused.pop().result().text
        free.set()
        statuses = [(await login).status_code for login in logins]
        assert sorted(statuses) == [401] * 20 + [429] and most == 2
        assert (await one.log_in()).status_code == 401, "none waits any more"


@pytest.mark.spec("UX-13", "SEC-22")
async def test_wrong_passwords_lock_the_user_and_the_address_for_a_while(console: Open) -> None:
    clock = Times()
    async with console(NOWHERE, clock=clock) as one:
        for number in range(5):
            assert (await one.log_in(f"user{number}", "x")).status_code == 401
        answer = await one.log_in()
        assert answer.status_code == 429 and "Try again in 30" in answer.text
        clock.now += 301
        assert (await one.log_in()).status_code == 303


@pytest.mark.spec("UX-13", "CON-13", "SEC-22")
async def test_session_ends_by_logout_idle_time_and_new_password(console: Open) -> None:
    clock = Times()
    async with console(NOWHERE, clock=clock) as one:
        assert (await one.log_in()).status_code == 303
        token = one.services.sessions.find(one.browser.cookies["saturnmq_session"]).csrf
        assert (await one.browser.post("/do/logout", data={"csrf": "wrong"})).status_code == 403
        assert (await one.browser.get("/audit")).status_code == 200
        await one.browser.post("/do/logout", data={"csrf": token})
        assert "saturnmq_session" not in one.browser.cookies
        assert (await one.browser.get("/audit")).status_code == 303
        await one.log_in()
        clock.now += 3601
        assert (await one.browser.get("/audit")).status_code == 303
        await one.log_in()
        users = {"admin": {"role": "admin", "password": hash_password("changed")}}
        (one.folder / "users.json").write_text(json.dumps({"users": users, "note": "longer than before"}))
        assert (await one.browser.get("/audit")).status_code == 303


@pytest.mark.spec("CON-13", "SEC-22")
async def test_roles_limit_pages_and_changes(console: Open) -> None:
    async with console(NOWHERE) as one:
        users = {name: {"role": name, "password": hash_password(name)} for name in ("viewer", "operator", "admin")}
        (one.folder / "users.json").write_text(json.dumps({"users": users}))
        for name, audit, change in (("viewer", 403, 403), ("operator", 403, 403), ("admin", 200, 403)):
            assert (await one.log_in(name, name)).status_code == 303
            assert (await one.browser.get("/audit")).status_code == audit, name
            answer = await one.browser.post("/do/topic/delete", data={"csrf": "x"})
            assert answer.status_code == change, name


@pytest.mark.spec("UX-13", "UX-15", "SEC-22")
async def test_other_sites_and_large_bodies_are_refused_with_the_headers_set(console: Open) -> None:
    async with console(NOWHERE) as one:
        await one.log_in()
        for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
            answer = await one.browser.post("/do/logout", data={"csrf": "x"}, headers=headers)
            assert answer.status_code == 403 and "another site" in answer.text
        assert (await one.browser.get("/", headers={"host": "rebound.example"})).status_code == 400
        answer = await one.browser.post("/login", data={"user": "x" * 2_000_000})
        assert answer.status_code == 413
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        for name in ("htmx.min.js", "console.css"):
            assert (await one.browser.get(f"/static/{name}")).status_code == 200


async def test_login_returns_only_to_paths_of_this_host(console: Open) -> None:
    async with console(NOWHERE) as one:
        for back, location in (
            ("/topics?q=a", "/topics?q=a"),
            ("//evil", "/"),
            ("http://evil", "/"),
            ("/\\evil", "/"),
        ):
            answer = await one.browser.post("/language", data={"language": "zh", "back": back})
            assert answer.headers["location"] == location
        cookie = answer.headers["set-cookie"]
        assert "saturnmq_language=zh" in cookie and "Max-Age=31536000" in cookie and "SameSite=strict" in cookie
        assert "登录" in (await one.browser.get("/login")).text
        unknown = await one.browser.post("/language", data={"language": "tlh", "back": "/topics"})
        assert "set-cookie" not in unknown.headers and unknown.headers["location"] == "/topics"
    assert [local_path(text) for text in ("", "topics", "/a\nb", "/")] == ["/", "/", "/", "/"]


async def test_body_without_a_length_is_bounded_and_hosts_may_be_ipv6(console: Open) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 65_536

    async with console(NOWHERE) as one:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = await one.browser.post("/login", content=parts(), headers=headers)
        assert answer.status_code == 413
        assert (await one.browser.get("/login", headers={"host": "[::1]:8080"})).status_code == 200
        assert (await one.browser.post("/login", content=b"a=1&" * 50, headers=headers)).status_code == 400


@pytest.mark.spec("UX-13")
async def test_wrong_passwords_elsewhere_do_not_lock_out_an_administrator(tmp_path: Path) -> None:
    users = Users(tmp_path / "users.json")
    password = users.create_first()
    assert password is not None
    sessions = Sessions(users, Times())
    for _ in range(5):
        assert await sessions.attempt("admin", "guess", "10.0.0.9") is None
    assert sessions.wait_seconds("admin", "10.0.0.9") > 0
    assert sessions.wait_seconds("admin", "10.0.0.1") == 0
    assert await sessions.attempt("admin", password, "10.0.0.1") is not None
    for number in range(100):
        sessions._count(sessions._keys("admin", f"10.0.1.{number}"))
    assert sessions.wait_seconds("admin", "10.0.0.2") > 0  # an address that admin never logged in from
    assert sessions.wait_seconds("admin", "10.0.0.1") == 0


@pytest.mark.spec("UX-13", "UX-16")
async def test_refused_changes_are_in_the_audit_log_once_a_minute(console: Open) -> None:
    async with console(NOWHERE) as one:
        users = json.loads((one.folder / "users.json").read_text())
        users["users"]["guest"] = {"role": "viewer", "password": hash_password("guest")}
        (one.folder / "users.json").write_text(json.dumps(users))
        await one.log_in("guest", "guest")
        for _ in range(5):
            assert (await one.browser.post("/do/topic/delete", data={"csrf": "x"})).status_code == 403
            assert (await one.browser.post("/do/logout", data={"csrf": "x"})).status_code == 403
        lines = [line for line in (one.folder / "audit.log").read_text().splitlines() if "refused" in line]
        assert len(lines) == 1
        assert "user=guest" in lines[0] and "action=topic_delete" in lines[0] and "needs the role admin" in lines[0]
