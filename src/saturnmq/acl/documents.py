"""The content of an account file: YAML text to accounts and back, with the texts of its author kept. Pure.

Every scalar is a text, as its author wrote it: the secret key 012345678 is no number. Aliases, deep nesting and long files are
refused, so that reading takes time in proportion to the length of the text. No error text holds a value of the file that may be
a secret.

Requirements: ACL-03, ACL-04, ACL-15, ACL-16, SEC-13, FUZ-09.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from saturnmq.acl.accounts import Account, make_account, text_of, texts_of
from saturnmq.acl.addresses import AddressRule, parse_rule
from saturnmq.protocol.bodies import DataVersion
from saturnmq.protocol.errors import ConfigError

BYTES_MAX: Final = 4 * 1024 * 1024
DEPTH_MAX: Final = 16
ACCOUNTS: Final = "accounts"
WHITE_ADDRESSES: Final = "globalWhiteRemoteAddresses"
DATA_VERSION: Final = "dataVersion"

Document = dict[str, Any]

_LOADER: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_DIGITS_MAX: Final = 18


class PlainText(str):
    """A scalar that was written without quotes; it is written back in the same way."""

    __slots__ = ()


class _Loader(_LOADER):  # type: ignore[misc]
    def construct_scalar(self, node: Any) -> str:
        text: str = super().construct_scalar(node)
        return text if node.style else PlainText(text)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_plain(self, text: PlainText) -> yaml.ScalarNode:
        tag: str = self.resolve(yaml.ScalarNode, str(text), (True, False))  # type: ignore[no-untyped-call]
        return yaml.ScalarNode(tag, str(text))


_Dumper.add_representer(PlainText, _Dumper.represent_plain)


@dataclass(frozen=True, slots=True)
class FileRules:
    """What one account file holds. document: its content, for changes. Accounts in their order, the first of a key."""

    document: Document = field(default_factory=dict, repr=False)
    accounts: Mapping[str, Account] = field(default_factory=dict)
    white: tuple[AddressRule, ...] = ()
    version: DataVersion = field(default_factory=DataVersion)


def _line(mark: Any) -> str:
    return f"line {mark.line + 1}: " if mark is not None else ""


def read_document(data: bytes) -> Document:
    """Parse the bytes of an account file; an empty file is an empty document. Raises ConfigError."""
    if len(data) > BYTES_MAX:
        raise ConfigError(f"{len(data)} bytes are too long, at most {BYTES_MAX} are allowed")
    try:
        text = data.decode("utf-8-sig")
        depth = 0
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.AliasEvent):
                raise ConfigError(f"{_line(event.start_mark)}aliases are not allowed")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > DEPTH_MAX:
                    raise ConfigError(f"{_line(event.start_mark)}nested deeper than {DEPTH_MAX}")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
        document: Any = yaml.load(text, Loader=_Loader)  # noqa: S506 - a loader that makes texts, lists and maps only
    except UnicodeDecodeError:
        raise ConfigError("the file is not UTF-8") from None
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"{_line(getattr(error, 'problem_mark', None))}{problem[:100]}") from None
    if document is None or document == "":
        return {}
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise ConfigError("the file must be a map")
    return document


def write_document(document: Document) -> bytes:
    """The text of an account file."""
    text: str = yaml.dump(document, Dumper=_Dumper, default_flow_style=False, sort_keys=False, allow_unicode=True)
    return text.encode()


def entries_of(document: Document) -> list[Document]:
    """The entries of the accounts in a document. Raises ConfigError."""
    entries = document.get(ACCOUNTS)
    if entries is None or entries in ("", "~", "null"):
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{ACCOUNTS} must be a list of maps")
    return entries


def _version_of(document: Document) -> DataVersion:
    versions = document.get(DATA_VERSION)
    first = versions[0] if isinstance(versions, list) and versions else {}
    if not isinstance(first, dict):
        first = {}

    def number(name: str) -> int:
        text = str(first.get(name, ""))
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else 0

    return DataVersion(number("timestamp"), number("counter"))


def compile_document(document: Document, secret_of: Callable[[str], str]) -> FileRules:
    """The rules of a document. secret_of: the secret key for the text in the file. Raises ConfigError with all problems."""
    accounts: dict[str, Account] = {}
    white: list[AddressRule] = []
    problems: list[str] = []
    for text in texts_of(document, WHITE_ADDRESSES):
        try:
            white.append(parse_rule(text))
        except ConfigError as error:
            problems += error.problems
    for number, entry in enumerate(entries_of(document), 1):
        try:
            account = make_account(entry, secret_of(text_of(entry, "secretKey")))
            accounts.setdefault(account.access_key, account)
        except ConfigError as error:
            problems += [f"account {number}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return FileRules(document, accounts, tuple(white), _version_of(document))


def next_version(document: Document, now_ms: int) -> Document:
    """A copy of the document with the following dataVersion."""
    changed = copy.deepcopy(document)
    version = _version_of(document).next(now_ms)
    changed[DATA_VERSION] = [{"counter": version.counter, "timestamp": version.timestamp}]
    return changed


def with_account(document: Document, access_key: str, fields: Mapping[str, Any]) -> Document:
    """A copy in which these fields of an account are replaced; the account is added if the document does not have it."""
    changed = copy.deepcopy(document)
    entries = entries_of(changed)
    entry = next((entry for entry in entries if entry.get("accessKey") == access_key), None)
    if entry is None:
        entries.append({"accessKey": access_key, **fields})
    else:
        entry |= fields
    changed[ACCOUNTS] = entries
    return changed


def without_account(document: Document, access_key: str) -> Document:
    """A copy without an account."""
    changed = copy.deepcopy(document)
    changed[ACCOUNTS] = [entry for entry in entries_of(changed) if entry.get("accessKey") != access_key]
    return changed
