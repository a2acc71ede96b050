"""Users and sessions of the console without its pages: the file of users, passwords, and the limits on attempts and logins."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from pathlib import Path

import pytest
from browsing import Times

from saturnmq.console import users as module
from saturnmq.console.users import Session, Sessions, User, Users, check_password, hash_password
from saturnmq.protocol.errors import ConfigError

STORED = hash_password("correct horse")


@pytest.fixture
def users(tmp_path: Path) -> Users:
    made = Users(tmp_path / "console" / "users.json")
    made.put("root", "admin", "administrator")
    return made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of passwords that takes no time: what is stored is the password itself."""
    monkeypatch.setattr(module, "hash_password", lambda password: password)
    monkeypatch.setattr(module, "check_password", lambda password, stored: password == stored)


def test_password_is_checked_with_the_parameters_that_are_stored() -> None:
    assert check_password("correct horse", STORED) and not check_password("correct hors", STORED)
    assert hash_password("correct horse") != STORED, "each has a salt of its own"
    kind, n, r, p, salt, digest = STORED.split("$")
    assert (kind, n, r, p, len(salt), len(digest)) == ("scrypt", "16384", "8", "1", 24, 44)
    for wrong in (
        f"bcrypt${n}${r}${p}${salt}${digest}", f"{kind}$8192${r}${p}${salt}${digest}", f"{kind}$262144${r}${p}${salt}${digest}",
        f"{kind}${n}$8$9${salt}${digest}", f"{kind}${n}${r}${p}${salt}", f"{kind}$x${r}${p}${salt}${digest}", "",
    ):  # fmt: skip
        assert not check_password("correct horse", wrong), wrong


def test_login_of_an_unknown_user_computes_a_hash_too(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time of an answer would show which names exist."""
    scrypt, costs = module._scrypt, []

    def noted(password: str, salt: bytes, *cost: int) -> bytes:
        costs.append(cost)
        return scrypt(password, salt, *cost)

    monkeypatch.setattr(module, "_scrypt", noted)
    sessions = Sessions(users)
    for name in ("root", "unknown"):
        assert asyncio.run(sessions.attempt(name, "wrong password", "10.0.0.1:1")) is None
    assert costs == [(2**14, 8, 1)] * 2


def test_parameters_of_a_password_are_bounded() -> None:
    def stored(n: int, r: int, p: int) -> str:
        digest = hashlib.scrypt(b"x", salt=b"salt", n=n, r=r, p=p, dklen=32, maxmem=2**28)
        return "$".join(
            ("scrypt", str(n), str(r), str(p), *(base64.b64encode(one).decode() for one in (b"salt", digest)))
        )

    assert check_password("x", stored(2, 8, 8)) and not check_password("x", stored(2, 13, 5))
    assert not check_password("x", stored(2**18, 2, 1))
    most = "scrypt$131072$8$1$c2FsdA==$7Xb293qlpglyt+RWEavqzVe57vbl6vsNOlOAnWOXyvM="  # 128 MiB
    assert check_password("x", most)
    assert not check_password("x", "scrypt$131072$16$1$c2FsdA==$7LzAKTshDKN9PSNDXrUTvA+7zq944+aUekzaGbjPsrQ="), (
        "256 MiB"
    )


def test_bytes_of_a_password_beyond_1024_do_not_count() -> None:
    stored = hash_password("x" * 1024)
    assert check_password("x" * 1025, stored) and not check_password("x" * 1023, stored)


@pytest.mark.parametrize(("role", "may"), [("viewer", 1), ("operator", 2), ("admin", 3)])
def test_role_includes_those_before_it(role: str, may: int) -> None:
    allowed = [User("u", role, "").may(other) for other in ("viewer", "operator", "admin")]
    assert allowed == [True] * may + [False] * (3 - may)
    assert "secret" not in repr(User("u", role, "secret"))


@pytest.mark.usefixtures("quick")
def test_file_of_users_is_changed_by_name(users: Users) -> None:
    assert users.put("ann", "viewer", "12345678") is True
    assert users.put("ann", "operator", "x" * 1024) is False
    assert [(user.name, user.role, user.password) for user in users.listing()] == [
        ("ann", "operator", "x" * 1024), ("root", "admin", "administrator"),
    ]  # fmt: skip
    assert json.loads(users.path.read_text()) == {
        "users": {
            "root": {"role": "admin", "password": "administrator"},
            "ann": {"role": "operator", "password": "x" * 1024},
        }
    }
    assert users.path.stat().st_mode & 0o777 == 0o600 and users.path.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in users.path.parent.iterdir()] == ["users.json"]
    users.remove("ann")
    assert users.find("ann") is None and users.find("root") is not None
    with pytest.raises(ConfigError, match=r"no user 'ann' in .*; there are: root"):
        users.remove("ann")


@pytest.mark.usefixtures("quick")
def test_last_administrator_stays(users: Users) -> None:
    for change in (lambda: users.remove("root"), lambda: users.put("root", "operator", "12345678")):
        with pytest.raises(ConfigError, match="would have no user with the role admin; add another one first"):
            change()
    users.put("second", "admin", "12345678")
    users.remove("root")
    assert [user.name for user in users.listing()] == ["second"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("name", "role", "password", "problem"),
    [
        ("", "viewer", "12345678", "must have 1 to 100 printable characters"),
        ("n" * 101, "viewer", "12345678", "must have 1 to 100 printable characters"),
        ("a\nb", "viewer", "12345678", "printable"),
        (" a", "viewer", "12345678", "no blank at an end"),
        ("a", "root", "12345678", "role 'root' must be one of viewer, operator, admin"),
        ("a", "viewer", "1234567", "the password has 7 bytes; it must have 8 to 1024"),
        ("a", "viewer", "\u00e4" * 513, "the password has 1026 bytes"),
    ],
)
def test_user_out_of_bounds_is_refused(users: Users, name: str, role: str, password: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        users.put(name, role, password)
    assert len(users.listing()) == 1
    assert users.put("n" * 100, "viewer", "\u00e4" * 4)


def test_first_user_is_made_only_without_a_file(tmp_path: Path) -> None:
    users = Users(tmp_path / "users.json")
    assert users.listing() == []
    password = users.create_first()
    assert password is not None and len(password) == 20
    (first,) = users.listing()
    assert (first.name, first.role) == ("admin", "admin") and check_password(password, first.password)
    assert users.create_first() is None and users.listing() == [first]


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"users": []}', '{"users": {"a": {"role": "viewer"}}}', '{"users": {"a": "viewer"}}', "{}"],
)
def test_damaged_file_of_users_is_named(users: Users, text: str) -> None:
    users.path.write_text(text)
    with pytest.raises(ConfigError, match=r'users.json must be \{"users": '):
        users.find("root")
    users.path.write_text('{"users": {"a": {"role": "king", "password": ""}}}')
    with pytest.raises(ConfigError, match="role 'king' of 'a' must be one of"):
        users.find("root")
    users.path.unlink()
    with pytest.raises(ConfigError, match="the users of the console cannot be read"):
        users.find("root")


def test_file_is_read_again_when_its_size_or_time_changes(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    parse = module._parse
    monkeypatch.setattr(module, "_parse", lambda path: reads.append(path) or parse(path))  # type: ignore[func-returns-value]
    for _ in range(3):
        users.find("root")
    assert len(reads) <= 1
    reads.clear()
    os.utime(users.path, ns=(1, 1))
    users.find("root")
    text = users.path.read_text()
    users.path.write_text(text + " ")
    os.utime(users.path, ns=(1, 1))
    users.find("root")
    users.find("root")
    assert len(reads) == 2


class Desk:
    """Sessions with a clock that a test advances, and users whose passwords are their names, 12345678 in front."""

    def __init__(self, users: Users, *names: str) -> None:
        self.clock = Times()
        for name in names:
            users.put(name, "viewer", f"12345678{name}")
        self.sessions = Sessions(users, self.clock)

    def log_in(self, name: str, peer: str = "192.0.2.1", password: str | None = None) -> str | None:
        given = f"12345678{name}" if password is None else password
        return asyncio.run(self.sessions.attempt(name, given, peer))

    def session(self, token: str | None) -> Session | None:
        return self.sessions.find(token or "")


@pytest.mark.spec("UX-13")
@pytest.mark.usefixtures("quick")
def test_session_lasts_12_hours_and_an_hour_without_use(users: Users) -> None:
    desk = Desk(users, "ann")
    token = desk.log_in("ann")
    for _ in range(12):
        desk.clock.now += 3600
        assert desk.session(token) is not None
    desk.clock.now += 1
    assert desk.session(token) is None
    idle = desk.log_in("ann")
    desk.clock.now += 3601
    assert desk.session(idle) is None
    desk.clock.now -= 3601
    assert desk.session(idle) is None, "it is not kept"


@pytest.mark.usefixtures("quick")
def test_session_ends_with_its_user_password_or_logout(users: Users) -> None:
    desk = Desk(users, "ann", "bob")
    tokens = [desk.log_in("ann"), desk.log_in("ann"), desk.log_in("bob")]
    sessions = [desk.session(token) for token in tokens]
    assert len({session.csrf for session in sessions if session is not None}) == 3
    desk.sessions.end(tokens[0] or "")
    desk.sessions.end("unknown")
    assert [desk.session(token) is not None for token in tokens] == [False, True, True]
    users.put("ann", "operator", "12345678ann")
    session = desk.session(tokens[1])
    assert session is not None and session.user.role == "operator", "the role of now"
    users.put("ann", "operator", "12345678new")
    users.remove("bob")
    assert [desk.session(token) for token in tokens] == [None] * 3


@pytest.mark.usefixtures("quick")
def test_oldest_sessions_make_way_for_new_ones(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 3)
    desk = Desk(users, "ann")
    tokens = []
    for _ in range(3):
        tokens.append(desk.log_in("ann"))
        desk.clock.now += 1
    assert desk.session(tokens[0]) is not None
    tokens.append(desk.log_in("ann"))
    assert [desk.session(token) is not None for token in tokens] == [True, False, True, True], (
        "the one used longest ago"
    )


@pytest.mark.spec("SEC-22")
@pytest.mark.usefixtures("quick")
def test_address_waits_after_five_wrong_passwords_for_five_minutes(users: Users) -> None:
    desk = Desk(users, "ann")
    waits = desk.sessions.wait_seconds
    for number in range(5):
        assert waits("ann", "192.0.2.1") == 0
        assert desk.log_in(f"name{number}", password="wrong") is None
        desk.clock.now += 10
    assert waits("ann", "192.0.2.1") == 291 and waits("ann", "198.51.100.1") == 0
    desk.clock.now += 240
    assert waits("other", "192.0.2.1") == 51
    desk.clock.now += 10
    assert waits("ann", "192.0.2.1") == 0, "the first of the five is five minutes ago"
    desk.log_in("ann", password="wrong")
    assert waits("ann", "192.0.2.1") == 301
    desk.clock.now += 300
    assert waits("ann", "192.0.2.1") == 0
    assert desk.log_in("ann") is not None
    for _ in range(4):
        desk.log_in("ann", password="wrong")
    assert desk.log_in("ann") is not None, "a login ends the count"
    for _ in range(4):
        desk.log_in("ann", password="wrong")
    assert waits("ann", "192.0.2.1") == 0


@pytest.mark.spec("SEC-22")
@pytest.mark.usefixtures("quick")
def test_name_waits_after_a_hundred_wrong_passwords_where_it_never_logged_in(users: Users) -> None:
    desk = Desk(users, "ann")
    assert desk.log_in("ann", "192.0.2.1") is not None
    for number in range(100):
        assert desk.sessions.wait_seconds("ann", "198.51.100.1") == 0
        desk.log_in("ann", f"203.0.{number}.1", "wrong")
    assert desk.sessions.wait_seconds("ann", "198.51.100.1") == 301
    assert desk.sessions.wait_seconds("bob", "198.51.100.1") == 0
    assert desk.sessions.wait_seconds("ann", "192.0.2.1") == 0, "its own address"
    assert desk.log_in("ann", "192.0.2.1") is not None
    assert desk.sessions.wait_seconds("ann", "198.51.100.1") == 301, "still, elsewhere"
    desk.clock.now += 100
    for _ in range(5):
        desk.log_in("bob", "198.51.100.1", "wrong")
    assert desk.sessions.wait_seconds("bob", "198.51.100.1") == desk.sessions.wait_seconds("ann", "198.51.100.1") == 301
    assert desk.sessions.wait_seconds("ann", "198.51.100.2") == 201


@pytest.mark.usefixtures("quick")
def test_what_is_remembered_of_attempts_is_bounded(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ATTEMPT_KEYS_MAX", 10)
    monkeypatch.setattr(module, "_KNOWN_MAX", 2)
    desk = Desk(users, "ann")
    for number in range(30):
        desk.log_in(f"name{number}", f"203.0.{number}.1", "wrong")
        assert len(desk.sessions._wrong) <= 10
    for _ in range(20):
        desk.log_in("x", "198.51.100.1", "wrong")
    assert max(map(len, desk.sessions._wrong.values())) == 20, "of a name; of an address the last five"
    assert len(desk.sessions._wrong["address 198.51.100.1"]) == 5
    for peer in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.3"):
        desk.log_in("ann", peer)
    assert list(desk.sessions._login_networks) == [("ann", "192.0.2.1"), ("ann", "192.0.2.3")], (
        "used longest ago goes first"
    )
