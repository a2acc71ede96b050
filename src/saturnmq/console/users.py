"""Users of the console: passwords, roles, sessions, and the lock-out after wrong passwords.

The file of users is JSON: {"users": {name: {"role": "admin|operator|viewer", "password": "scrypt$N$r$p$salt$hash"}}}. It is read
again when it changes. Sessions are kept in memory; a restart of the console ends them.

Requirements: CON-13, UX-13, SEC-22.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from saturnmq.durable import replace_file
from saturnmq.protocol.addresses import network_of
from saturnmq.protocol.errors import ConfigError

ROLES: Final = ("viewer", "operator", "admin")  # each may do what those before it may
FIRST_USER: Final = "admin"
SESSION_SECONDS: Final = 12 * 3600
IDLE_SECONDS: Final = 3600
SESSIONS_MAX: Final = 1000
ATTEMPTS_MAX: Final = 5  # wrong passwords from one address, then it waits
ATTEMPTS_ANYWHERE: Final = 100  # wrong passwords of one user name, then addresses wait that it never logged in from
LOCK_SECONDS: Final = 300.0
NAME_MAX: Final = 100  # as the form of the login has
PASSWORD_BYTES_MIN: Final = 8
PASSWORD_BYTES_MAX: Final = 1024
_ATTEMPT_KEYS_MAX: Final = 10_000
_KNOWN_MAX: Final = 1000
_N, _R, _P = 2**14, 8, 1  # scrypt: 16 MiB and about 50 ms
_FILE_BYTES_MAX: Final = 1_000_000
# Checked for names that do not exist, so that the time of an answer is the same for all names.
_NO_PASSWORD: Final = "scrypt$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$" + "A" * 43 + "="


def hash_password(password: str) -> str:
    """The text that the file of users keeps for a password."""
    salt = secrets.token_bytes(16)
    parts = (base64.b64encode(each).decode() for each in (salt, _scrypt(password, salt, _N, _R, _P)))
    return "$".join(("scrypt", str(_N), str(_R), str(_P), *parts))


def check_password(password: str, stored: str) -> bool:
    """Whether a password is that of a stored text. Takes about 50 ms."""
    try:
        kind, n, r, p, salt, digest = stored.split("$")
        # The file may be edited by hand: a large cost would let each login stop the console.
        if kind != "scrypt" or int(n) > 2**17 or int(r) * int(p) > 64:
            return False
        computed = _scrypt(password, base64.b64decode(salt), int(n), int(r), int(p))
        return hmac.compare_digest(computed, base64.b64decode(digest))
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    secret = password.encode()[:PASSWORD_BYTES_MAX]
    return hashlib.scrypt(secret, salt=salt, n=n, r=r, p=p, dklen=32, maxmem=256 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class User:
    """A user of the console."""

    name: str
    role: str
    password: str = field(repr=False)

    def may(self, role: str) -> bool:
        """Whether the user's role includes another."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(slots=True)
class Session:
    """A login. csrf: the token that every change must carry."""

    user: User
    csrf: str
    began: float
    used: float


class Users:
    """The file of users."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._users: dict[str, User] = {}

    def create_first(self) -> str | None:
        """Write the file with one administrator if there is none; return the generated password, which is kept nowhere else."""
        if self.path.exists():
            return None
        password = secrets.token_urlsafe(15)
        self._write({FIRST_USER: User(FIRST_USER, "admin", hash_password(password))})
        return password

    def listing(self) -> list[User]:
        """All users by name; none without a file. Raises ConfigError."""
        if self.path.exists():
            self._refresh()
        return sorted(self._users.values(), key=lambda user: user.name)

    def put(self, name: str, role: str, password: str) -> bool:
        """Add a user, or give one another role and password; whether it is a new one. Raises ConfigError."""
        if not 0 < len(name) <= NAME_MAX or not name.isprintable() or name != name.strip():
            raise ConfigError(f"user {name!r:.120} must have 1 to {NAME_MAX} printable characters, no blank at an end")
        if role not in ROLES:
            raise ConfigError(f"role {role!r:.40} must be one of {', '.join(ROLES)}")
        if not PASSWORD_BYTES_MIN <= len(password.encode()) <= PASSWORD_BYTES_MAX:
            raise ConfigError(
                f"the password has {len(password.encode())} bytes; it must have {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX}"
            )
        users = {user.name: user for user in self.listing()}
        self._require_admin(users | {name: User(name, role, "")})
        self._write(users | {name: User(name, role, hash_password(password))})
        return name not in users

    def remove(self, name: str) -> None:
        """Remove a user, which ends its sessions. Raises ConfigError for one that does not exist, and for the last admin."""
        users = {user.name: user for user in self.listing()}
        if name not in users:
            raise ConfigError(f"no user {name!r:.120} in {self.path}; there are: {', '.join(sorted(users)) or 'none'}")
        del users[name]
        self._require_admin(users)
        self._write(users)

    def _require_admin(self, users: dict[str, User]) -> None:
        if not any(user.role == "admin" for user in users.values()):
            raise ConfigError(f"{self.path} would have no user with the role admin; add another one first")

    def _write(self, users: dict[str, User]) -> None:
        """Replace the file at once: a console that reads it meanwhile sees the old one or the new one."""
        document = {"users": {user.name: {"role": user.role, "password": user.password} for user in users.values()}}
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(self.path, json.dumps(document, indent=2).encode())

    def find(self, name: str) -> User | None:
        """The user of a name. Raises ConfigError if the file cannot be used."""
        self._refresh()
        return self._users.get(name)

    def _refresh(self) -> None:
        try:
            state = self.path.stat()
            stamp = (state.st_mtime_ns, state.st_size)
            if stamp != self._stamp:
                self._users = _parse(self.path)
                self._stamp = stamp
        except OSError as error:
            raise ConfigError(f"{self.path}: the users of the console cannot be read: {error.strerror}") from None


def _parse(path: Path) -> dict[str, User]:
    try:
        with path.open("rb") as file:
            users = json.loads(file.read(_FILE_BYTES_MAX))["users"]
        parsed = {
            str(name): User(str(name), str(fields["role"]), str(fields["password"])) for name, fields in users.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f'{path} must be {{"users": {{name: {{"role": .., "password": ..}}}}}}') from None
    for user in parsed.values():
        if user.role not in ROLES:
            raise ConfigError(f"{path}: role {user.role!r:.40} of {user.name!r:.40} must be one of {', '.join(ROLES)}")
    return parsed


class Sessions:
    """Logins in memory, by the token in the cookie."""

    def __init__(self, users: Users, clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._wrong: dict[str, list[float]] = {}
        self._login_networks: dict[tuple[str, str], None] = {}  # user and network of logins, the oldest first

    def wait_seconds(self, name: str, peer: str) -> int:
        """How long a user must wait before another attempt from an address, seconds; 0 if it need not.

        An address waits for its own wrong passwords. A user name that gets very many waits too, but not at an address that the user
        logged in from: a stranger cannot lock out an administrator.
        """
        now = self._clock()
        waits = []
        for key, most in self._keys(name, peer).items():
            times = [failed_at for failed_at in self._wrong.get(key, []) if now - failed_at < LOCK_SECONDS]
            if len(times) >= most:
                waits.append(times[-1] + LOCK_SECONDS - now)
        return max((int(wait) + 1 for wait in waits), default=0)

    def _keys(self, name: str, peer: str) -> dict[str, int]:
        """What wrong passwords count against, and how many each may have."""
        network = network_of(peer)
        keys = {f"address {network}": ATTEMPTS_MAX}
        if (name, network) not in self._login_networks:
            keys[f"user {name}"] = ATTEMPTS_ANYWHERE
        return keys

    async def attempt(self, name: str, password: str, peer: str) -> str | None:
        """The token of a new session, or None for a wrong name or password, which counts against the user name and address.

        Takes as long for a name that does not exist.
        """
        user = self._users.find(name)
        stored = user.password if user is not None else _NO_PASSWORD
        keys = self._keys(name, peer)
        self._count(keys)  # before the check, so that attempts at the same time count for each other
        if not await asyncio.to_thread(check_password, password, stored) or user is None:
            return None
        for key in keys:
            self._wrong.pop(key, None)
        self._login_networks.pop((name, network_of(peer)), None)  # so that it becomes the newest
        self._login_networks[name, network_of(peer)] = None
        if len(self._login_networks) > _KNOWN_MAX:
            del self._login_networks[next(iter(self._login_networks))]
        now = self._clock()
        self._expire(now)
        token = secrets.token_urlsafe(32)
        self._sessions[token] = Session(user, secrets.token_urlsafe(32), now, now)
        return token

    def _count(self, keys: dict[str, int]) -> None:
        now = self._clock()
        for key, most in keys.items():
            if key not in self._wrong and len(self._wrong) >= _ATTEMPT_KEYS_MAX:
                self._wrong.pop(next(iter(self._wrong)))
            self._wrong.setdefault(key, []).append(now)
            self._wrong[key] = self._wrong[key][-most:]  # older ones cannot matter: the limit counts the last `most`

    def find(self, token: str) -> Session | None:
        """The session of a token, if it has not expired and its user still exists, with the role of now."""
        session = self._sessions.get(token)
        if session is None:
            return None
        now = self._clock()
        user = self._users.find(session.user.name)
        # Another password ends the sessions of before; the role is that of now, so a demotion works at once.
        expired = now - session.began > SESSION_SECONDS or now - session.used > IDLE_SECONDS
        if expired or user is None or user.password != session.user.password:
            del self._sessions[token]
            return None
        session.user, session.used = user, now
        return session

    def end(self, token: str) -> None:
        """Log out."""
        self._sessions.pop(token, None)

    def _expire(self, now: float) -> None:
        old = [token for token, session in self._sessions.items() if now - session.used > IDLE_SECONDS]
        for token in old:
            del self._sessions[token]
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.pop(min(self._sessions, key=lambda token: self._sessions[token].used))
