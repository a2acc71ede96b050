"""The account files of a server: where they are, when they changed, and writing them atomically.

Files: `conf/plain_acl.yml` below the home folder, and every .yml and .yaml file below `conf/acl`. Of an access key in several
files the first counts: the files of conf/acl in alphabetical order, then the default file. All methods block; the caller runs
one at a time, in a worker thread.

Requirements: ACL-03, ACL-14, ACL-15, ACL-17, SEC-13.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from saturnmq.acl.addresses import AddressList
from saturnmq.acl.documents import (
    BYTES_MAX,
    Document,
    FileRules,
    next_version,
    read_document,
    read_rules,
    write_document,
)
from saturnmq.acl.rules import AccessRules
from saturnmq.durable import replace_file
from saturnmq.protocol.errors import ConfigError

log = logging.getLogger(__name__)

DEFAULT_FILE: Final = "conf/plain_acl.yml"
FILES_MAX: Final = 1000
_FOLDER: Final = "conf/acl"
_SUFFIXES: Final = (".yml", ".yaml")
_GROUP_AND_OTHER_BITS: Final = stat.S_IRWXG | stat.S_IRWXO
_REFERENCE: Final = re.compile(r"\$\{(env|file):([^{}]+)\}")
_SECRET_BYTES_MAX: Final = 4096

HOME_VARIABLE: Final = "ROCKETMQ_HOME"

Stamp = tuple[int, int, int]  # modification time in ns, size in bytes, inode


def home_folder(configured: str, otherwise: Path) -> Path:
    """The folder of `conf`: as configured (rocketmqHome), else that of ROCKETMQ_HOME, else `otherwise`."""
    return Path(configured or os.environ.get(HOME_VARIABLE) or otherwise)


def resolve_secret(text: str) -> str:
    """The secret key that a text of an account file stands for: itself, `${env:NAME}` or `${file:PATH}`. Raises ConfigError."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return text
    kind, name = match.groups()
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise ConfigError(f"secretKey names the environment variable {name}, which is not set")
        return value
    try:
        with Path(name).open("rb") as file:
            return file.read(_SECRET_BYTES_MAX).decode().strip()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character, or undecodable content
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"secretKey names the file {name!r}, which cannot be read: {reason}") from error


def account_paths(home: Path, default: Path) -> list[Path]:
    """The account files below a home folder, in the order of their precedence. Raises OSError, also for more than FILES_MAX."""
    folder = home / _FOLDER
    paths = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    if len(paths) > FILES_MAX:
        raise OSError(0, f"more than {FILES_MAX} files in {folder}")
    return [path for path in paths if path != default] + ([default] if default.exists() else [])


@dataclass(slots=True)
class _Loaded:
    stamp: Stamp
    rules: FileRules


class AccountFiles:
    """The account files below a home folder. private: a file that other users may access is refused."""

    def __init__(self, home: Path, default: str = DEFAULT_FILE, *, private: bool) -> None:
        self.home = home.resolve()
        self.default = (self.home / default).resolve()
        self._private = private
        self._files: dict[Path, _Loaded] = {}  # in the order of their precedence
        self._refused: dict[Path, Stamp] = {}  # changed files that were refused and logged

    # ---- reading

    def load(self) -> AccessRules:
        """Read all files; creates the default file, empty, if it is missing. Raises ConfigError with all problems."""
        problems: list[str] = []
        self._files = {}
        try:
            self._create_default()
            for path in self._paths():
                try:
                    self._files[path] = self._read(path)
                except ConfigError as error:
                    problems += error.problems
        except OSError as error:
            problems.append(f"account files in {self.home / 'conf'} cannot be read: {error.strerror}")
        if problems:
            raise ConfigError(problems)
        return self._composed()

    def scan(self) -> AccessRules | None:
        """Read what changed since the last call; None if nothing did. The old rules of a file that cannot be used stay."""
        try:
            paths = self._paths()
        except OSError as error:
            log.error("account files not read path=%s reason=%s", self.home / "conf", error.strerror)
            return None
        files: dict[Path, _Loaded] = {}
        for path in paths:
            loaded = self._files.get(path)
            stamp = self._stamp(path)
            if loaded is not None and (stamp is None or stamp in (loaded.stamp, self._refused.get(path))):
                files[path] = loaded
                continue
            if loaded is None and stamp == self._refused.get(path):
                continue
            try:
                files[path] = self._read(path)
                self._refused.pop(path, None)
                log.info("account file read path=%s accounts=%d", path, len(files[path].rules.accounts))
            except ConfigError as error:
                log.error("account file refused, the old rules stay path=%s reason=%s", path, error)
                if stamp is not None:
                    self._refused[path] = stamp
                if loaded is not None:
                    files[path] = loaded
        if list(files) == list(self._files) and all(files[path] is self._files[path] for path in files):
            return None
        self._files = files
        return self._composed()

    def _paths(self) -> list[Path]:
        return account_paths(self.home, self.default)

    def _stamp(self, path: Path) -> Stamp | None:
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self, path: Path) -> _Loaded:
        """Read one file. Raises ConfigError, each problem with the path."""
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):  # reading a pipe would block
                    raise ConfigError("it is no regular file")
                if self._private and status.st_mode & _GROUP_AND_OTHER_BITS:
                    raise ConfigError(
                        f"its mode is {stat.S_IMODE(status.st_mode):04o} and others may read the secret keys: "
                        f"run `chmod 600 {path}`, or set aclCompatMode=true"
                    )
                if self._private and status.st_uid not in (0, os.geteuid()):
                    raise ConfigError(
                        f"it belongs to user {status.st_uid}, must belong to this process' user or to root"
                    )
                data = file.read(BYTES_MAX + 1)
            rules = read_rules(data, resolve_secret)
        except ConfigError as error:
            raise ConfigError([f"account file {path}: {problem}" for problem in error.problems]) from error
        except OSError as error:
            raise ConfigError(f"account file {path} cannot be read: {error.strerror}") from error
        return _Loaded((status.st_mtime_ns, status.st_size, status.st_ino), rules)

    def _composed(self) -> AccessRules:
        accounts = {}
        for path, loaded in self._files.items():
            for key, account in loaded.rules.accounts.items():
                if key in accounts:
                    log.warning("access key in several account files, the first counts path=%s key=%r", path, key)
                else:
                    accounts[key] = account
        return AccessRules(
            accounts, AddressList(rule for loaded in self._files.values() for rule in loaded.rules.white)
        )

    # ---- what was read

    @property
    def rules(self) -> dict[Path, FileRules]:
        """The rules of every file, in the order of their precedence."""
        return {path: loaded.rules for path, loaded in self._files.items()}

    def file_of(self, access_key: str) -> Path | None:
        """The file whose entry of an access key counts."""
        return next((path for path, loaded in self._files.items() if access_key in loaded.rules.accounts), None)

    def find(self, full_path: str) -> Path | None:
        """The account file with this path, the default file for an empty one; None if it is not one of the account files."""
        try:
            path = Path(full_path).resolve() if full_path else self.default
        except (OSError, ValueError, RuntimeError):  # a null character; a loop of links
            return None
        return path if path in self._files and path.is_relative_to(self.home) else None

    # ---- writing

    def _create_default(self) -> None:
        if not self.default.exists():
            self.default.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.default, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))

    def save(self, path: Path, change: Callable[[Document], Document], now_ms: int) -> AccessRules:
        """Replace a file's content by `change(content)` with the next dataVersion; returns all rules.

        Raises ConfigError; the old content then stays. So it does if the file was edited since it was read: to write over the edit
        could give back rights that it took away.
        """
        loaded = self._files.get(path)
        if self._stamp(path) != (loaded.stamp if loaded is not None else None):
            raise ConfigError(
                f"account file {path} was edited and cannot be used: correct it first, the log has the reason"
            )
        changed = next_version(change(read_document(loaded.rules.data) if loaded is not None else {}), now_ms)
        data = write_document(changed)
        if len(data) > BYTES_MAX:
            raise ConfigError(f"account file {path} would have {len(data)} bytes, at most {BYTES_MAX} are allowed")
        rules = read_rules(data, resolve_secret)
        try:
            replace_file(path, data)
        except OSError as error:
            raise ConfigError(f"account file {path} cannot be written: {error.strerror}") from error
        status = path.stat()
        self._files[path] = _Loaded((status.st_mtime_ns, status.st_size, status.st_ino), rules)
        if path == self.default:  # last in precedence, also when it was created just now
            self._files[path] = self._files.pop(path)
        return self._composed()
