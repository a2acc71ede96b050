"""The content of an account file: YAML text to accounts and back, with the texts of its author kept. Pure.

Every scalar is a text, as its author wrote it: the secret key 012345678 is no number. Aliases, deep nesting and long files are
refused, so that reading takes time in proportion to the length of the text. No error text holds a value of the file that may be
a secret.

Requirements: ACL-03, ACL-04, ACL-15, ACL-16, SEC-13, FUZ-09.
"""

from __future__ import annotations

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
_DUMPED_AT_ONCE: Final = 100
_NO_ENTRIES: Final = f"{ACCOUNTS} must be a list of maps"


class PlainText(str):
    """A scalar that was written without quotes; it is written back in the same way."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_plain(self, text: PlainText) -> yaml.ScalarNode:
        tag: str = self.resolve(yaml.ScalarNode, str(text), (True, False))  # type: ignore[no-untyped-call]
        return yaml.ScalarNode(tag, str(text))


_Dumper.add_representer(PlainText, _Dumper.represent_plain)


@dataclass(frozen=True, slots=True)
class FileRules:
    """The content of one account file. data: its bytes, for changes. Accounts in their order, the first of a key.

    A document of a large file has hundreds of thousands of lists and maps, each of which would slow down every garbage collection.
    """

    data: bytes = field(default=b"", repr=False)
    accounts: Mapping[str, Account] = field(default_factory=dict)
    white: tuple[AddressRule, ...] = ()
    version: DataVersion = field(default_factory=DataVersion)


def _line(mark: Any) -> str:
    return f"line {mark.line + 1}: " if mark is not None else ""


def read_document(data: bytes) -> Document:
    """Parse the bytes of an account file; an empty file is an empty document. Raises ConfigError."""
    return _parsed(data, lambda entry: entry)


def read_rules(data: bytes, secret_of: Callable[[str], str]) -> FileRules:
    """The rules in the bytes of an account file. secret_of: the secret key for the text in the file.

    Raises ConfigError with all problems.
    """
    compiled = _Compiled(secret_of)
    document = _parsed(data, compiled.account)
    white: list[AddressRule] = []
    problems: list[str] = []
    for text in texts_of(document, WHITE_ADDRESSES):
        try:
            white.append(parse_rule(text))
        except ConfigError as error:
            problems += error.problems
    accounts: dict[str, Account] = {}
    for account in _list_of_accounts(document):
        if isinstance(account, Account):
            accounts.setdefault(account.access_key, account)
    problems += compiled.problems
    if problems:
        raise ConfigError(problems)
    return FileRules(data, accounts, tuple(white), _version_of(document))


class _Compiled:
    """Makes the account of each entry as soon as it is parsed. problems: of all entries."""

    def __init__(self, secret_of: Callable[[str], str]) -> None:
        self._secret_of = secret_of
        self._count = 0
        self.problems: list[str] = []

    def account(self, entry: object) -> Account | None:
        """The account of an entry; None if it cannot be used."""
        self._count += 1
        if not isinstance(entry, dict):
            raise ConfigError(_NO_ENTRIES)
        try:
            return make_account(entry, self._secret_of(text_of(entry, "secretKey")))
        except ConfigError as error:
            self.problems += [f"account {self._count}: {problem}" for problem in error.problems]
            return None


def _parsed(data: bytes, entry_of: Callable[[object], object]) -> Document:
    """The document in the bytes of a file, with `entry_of(entry)` in place of each entry of accounts. Raises ConfigError."""
    if len(data) > BYTES_MAX:
        raise ConfigError(f"{len(data)} bytes are too long, at most {BYTES_MAX} are allowed")
    try:
        document: Any = _built(data.decode("utf-8-sig"), entry_of)
    except UnicodeDecodeError:
        raise ConfigError("the file is not UTF-8") from None
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"{_line(getattr(error, 'problem_mark', None))}{problem[:100]}") from None
    if document is None or document == "":
        return {}
    if not isinstance(document, dict):
        raise ConfigError("the file must be a map")
    return document


def _built(text: str, entry_of: Callable[[object], object]) -> object:
    """The texts, lists and maps of a YAML text; None if it is empty. Raises ConfigError, YAMLError.

    Built from the events of the parser: `yaml.load` would hold the interpreter for 0.7 s over 3 MB, also in a worker thread.
    """
    roots: list[object] = []
    open_ones: list[_Open] = []
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{_line(event.start_mark)}aliases are not allowed")
        if isinstance(event, yaml.ScalarEvent):
            value: object = event.value if event.style else PlainText(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(open_ones) >= DEPTH_MAX:
                raise ConfigError(f"{_line(event.start_mark)}nested deeper than {DEPTH_MAX}")
            open_ones.append(_Open([] if isinstance(event, yaml.SequenceStartEvent) else {}))
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            value = open_ones.pop().value
        else:
            continue
        if len(open_ones) == 2 and open_ones[0].key == ACCOUNTS and isinstance(open_ones[1].value, list):
            value = entry_of(value)
        if not open_ones:
            roots.append(value)
        elif not open_ones[-1].take(value):
            raise ConfigError(f"{_line(event.start_mark)}the name of a value must be a text")
    if len(roots) > 1:
        raise ConfigError("the file must be one document")
    return roots[0] if roots else None


class _Open:
    """A list or a map that the parser is in."""

    __slots__ = ("key", "value")

    def __init__(self, value: list[object] | dict[str, object]) -> None:
        self.value = value
        self.key: str | None = None  # of a map: the key whose value comes next

    def take(self, value: object) -> bool:
        """Add what comes next; False if it is no key of a map though one is due."""
        if isinstance(self.value, list):
            self.value.append(value)
        elif self.key is not None:
            self.value[self.key] = value
            self.key = None
        elif isinstance(value, str):
            self.key = value
        else:
            return False
        return True


def write_document(document: Document) -> bytes:
    """The text of an account file.

    Written by a few accounts at a time: the intermediate form of a large file would take hundreds of MB.
    """
    parts = []
    for name, value in document.items():
        if name == ACCOUNTS and isinstance(value, list) and value:
            parts.append(f"{ACCOUNTS}:\n")
            parts += [_dumped(value[at : at + _DUMPED_AT_ONCE]) for at in range(0, len(value), _DUMPED_AT_ONCE)]
        else:
            parts.append(_dumped({name: value}))
    return "".join(parts).encode()


def _dumped(value: object) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, sort_keys=False, allow_unicode=True)
    return text


def entries_of(document: Document) -> list[Document]:
    """The entries of the accounts in a document. Raises ConfigError."""
    entries = _list_of_accounts(document)
    if not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(_NO_ENTRIES)
    return entries


def _list_of_accounts(document: Document) -> list[Any]:
    entries = document.get(ACCOUNTS)
    if entries is None or entries in ("", "~", "null"):
        return []
    if not isinstance(entries, list):
        raise ConfigError(_NO_ENTRIES)
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


def next_version(document: Document, now_ms: int) -> Document:
    """A copy of the document with the following dataVersion."""
    version = _version_of(document).next(now_ms)
    return {**document, DATA_VERSION: [{"counter": version.counter, "timestamp": version.timestamp}]}


def with_account(document: Document, access_key: str, fields: Mapping[str, Any]) -> Document:
    """A copy in which these fields of an account are replaced; the account is added if the document does not have it."""
    entries = list(entries_of(document))
    at = next((at for at, entry in enumerate(entries) if entry.get("accessKey") == access_key), None)
    if at is None:
        entries.append({"accessKey": access_key, **fields})
    else:
        entries[at] = {**entries[at], **fields}
    return {**document, ACCOUNTS: entries}


def without_account(document: Document, access_key: str) -> Document:
    """A copy without an account."""
    entries = [entry for entry in entries_of(document) if entry.get("accessKey") != access_key]
    return {**document, ACCOUNTS: entries}
