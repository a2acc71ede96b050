"""The validator for account files: decides about requests, reloads changed files, and changes accounts on request.

Decisions are made on the event loop from an immutable snapshot; files are read and written in a worker thread, one operation at
a time.

Requirements: ACL-01, ACL-02, ACL-14..ACL-17, SEC-13.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from saturnmq.acl.accounts import check_entries, check_keys, check_texts, text_of, texts_of
from saturnmq.acl.addresses import AddressList, parse_rule
from saturnmq.acl.documents import WHITE_ADDRESSES, Document, entries_of, read_document, with_account, without_account
from saturnmq.acl.files import DEFAULT_FILE, AccountFiles, resolve_secret
from saturnmq.acl.rules import Access, AccessRules, Decisions
from saturnmq.config.settings import MASK
from saturnmq.protocol.bodies import AclConfig, DataVersion, PlainAccessConfig
from saturnmq.protocol.errors import ConfigError

log = logging.getLogger(__name__)

ENTRY_POINTS: Final = "saturnmq.access_validators"
PLAIN: Final = "plain"


class AccessValidator(Protocol):
    """Decides about every request of a broker (ACL-02).

    A package offers one under the entry point group `saturnmq.access_validators`: a callable that takes the broker's settings as
    a mapping of keys to texts and returns the validator. `aclValidators` names those that run, in their order.
    """

    def validate(self, access: Access) -> str:
        """Return the name of the caller. Raises ResponseError, usually AccessDenied, to refuse the request."""
        ...


class PlainValidator:
    """The accounts of the files below a home folder. compat: checks and file modes as in 4.9.7."""

    def __init__(
        self,
        home: Path,
        default_file: str = DEFAULT_FILE,
        *,
        compat: bool,
        plain_admin: AddressList,
        trace_bytes_per_second: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self._files = AccountFiles(home, default_file, private=not compat)
        self._clock_ms = clock_ms
        self._lock = asyncio.Lock()
        self._decisions = Decisions(
            compat=compat,
            plain_admin=plain_admin,
            trace_bytes_per_second=trace_bytes_per_second,
            clock_ms=clock_ms,
        )
        self.validate = self._decisions.decide

    @property
    def rules(self) -> AccessRules:
        """The rules in use."""
        return self._decisions.rules

    def may(self, access_key: str, resource: str, right: int) -> bool:
        """Whether an account has a right, for what the server does on its own; True in compatibility mode."""
        if self._decisions.compat:
            return True
        account = self.rules.accounts.get(access_key)
        return account is not None and ((account.admin and account.permissions is None) or account.may(resource, right))

    async def load(self) -> None:
        """Read all account files. Raises ConfigError with all problems."""
        async with self._lock:
            self._decisions.rules = await asyncio.to_thread(self._files.load)

    async def reload(self) -> None:
        """Read the account files that changed; files that cannot be used are logged, and their old rules stay (ACL-14)."""
        async with self._lock:
            await self._scan()

    async def _scan(self) -> None:
        rules = await asyncio.to_thread(self._files.scan)
        if rules is not None:
            self._decisions.rules = rules

    # ---- maintenance (ACL-15..ACL-17)

    async def update_account(self, account: PlainAccessConfig) -> None:
        """Create an account in the default file, or merge the fields that are given into its entry. Raises ConfigError."""
        check_keys(account.access_key, account.secret_key)
        check_texts(
            {
                "whiteRemoteAddress": account.white_remote_address,
                "defaultTopicPerm": account.default_topic_perm,
                "defaultGroupPerm": account.default_group_perm,
                "topicPerms": "".join(account.topic_perms or ()),
                "groupPerms": "".join(account.group_perms or ()),
            }
        )
        check_entries(account.topic_perms or ())
        check_entries(account.group_perms or ())
        parse_rule(account.white_remote_address or "")
        fields: dict[str, Any] = {
            "secretKey": account.secret_key,
            "whiteRemoteAddress": account.white_remote_address,
            "admin": account.admin,
            "defaultTopicPerm": account.default_topic_perm or None,
            "defaultGroupPerm": account.default_group_perm or None,
            "topicPerms": account.topic_perms,
            "groupPerms": account.group_perms,
        }
        if "${" in (account.secret_key or ""):
            raise ConfigError("secretKey must not refer to an environment variable or a file of the broker")
        fields = {name: value for name, value in fields.items() if value is not None}

        def changed(document: Document) -> Document:
            for entry in entries_of(document):
                text = text_of(entry, "secretKey")
                if entry.get("accessKey") == account.access_key and _same_secret(text, account.secret_key):
                    fields["secretKey"] = text  # a reference stays one
            return with_account(document, account.access_key, fields)

        async with self._lock:
            await self._scan()  # for the entry as it is now
            await self._save(self._files.file_of(account.access_key) or self._files.default, changed)

    async def delete_account(self, access_key: str) -> bool:
        """Delete an account; False if there is none. Raises ConfigError."""
        async with self._lock:
            await self._scan()
            path = self._files.file_of(access_key)
            if path is None:
                return False
            await self._save(path, lambda document: without_account(document, access_key))
            return True

    async def set_white_addresses(self, addresses: Sequence[str], full_path: str) -> bool:
        """Replace the global white list of a file; False if it is not one of the account files. Raises ConfigError."""
        check_texts({WHITE_ADDRESSES: "".join(addresses)})
        for text in addresses:
            parse_rule(text)
        async with self._lock:
            await self._scan()
            path = self._files.find(full_path)
            if path is None:
                return False
            await self._save(path, lambda document: document | {WHITE_ADDRESSES: list(addresses)})
            return True

    async def _save(self, path: Path, change: Callable[[Document], Document]) -> None:
        self._decisions.rules = await asyncio.to_thread(self._files.save, path, change, self._clock_ms())
        log.info("account file written path=%s accounts=%d", path, len(self._decisions.rules.accounts))

    # ---- what the files hold

    @property
    def version(self) -> DataVersion:
        """dataVersion of the default file."""
        return self.versions.get(str(self._files.default), DataVersion())

    @property
    def versions(self) -> dict[str, DataVersion]:
        """dataVersion by the path of each file."""
        return {str(path): rules.version for path, rules in self._files.rules.items()}

    def config(self) -> AclConfig:
        """All accounts, with masked secret keys, and the global white lists (SEC-13)."""
        config, access_keys = AclConfig(), set[str]()
        for rules in self._files.rules.values():
            document = read_document(rules.data)
            config.global_white_addrs += texts_of(document, WHITE_ADDRESSES)
            for entry in entries_of(document):
                key = text_of(entry, "accessKey")
                if key not in access_keys:
                    access_keys.add(key)
                    config.plain_access_configs.append(_masked(key, entry, admin=rules.accounts[key].admin))
        return config


def _same_secret(text: str, secret: str | None) -> bool:
    try:
        return resolve_secret(text) == secret
    except ConfigError:
        return False


def _masked(key: str, entry: Mapping[str, Any], *, admin: bool) -> PlainAccessConfig:
    return PlainAccessConfig(
        key,
        MASK,
        text_of(entry, "whiteRemoteAddress") or None,
        admin,
        text_of(entry, "defaultTopicPerm") or None,
        text_of(entry, "defaultGroupPerm") or None,
        texts_of(entry, "topicPerms"),
        texts_of(entry, "groupPerms"),
    )
