"""Accounts and what they may do: permissions by resource, parsed from the texts of account files.

A resource is a topic name; the group g is the resource `%RETRY%g`, as in Apache RocketMQ. Pure.

Requirements: ACL-04, ACL-05, ACL-10..ACL-12, ACL-16, SEC-10, SEC-13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from saturnmq.acl.addresses import NOTHING, AddressRule, parse_rule
from saturnmq.config.settings import MASK
from saturnmq.protocol.codes import RETRY_PREFIX
from saturnmq.protocol.errors import ConfigError

DENY: Final = 1
ANY: Final = 2
PUB: Final = 4
SUB: Final = 8
KEY_LENGTH_MIN: Final = 7  # of access key and secret key, in characters
SIGNATURE_VERSIONS: Final = (1, 2)

_PERMISSIONS: Final = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB, "DENY": DENY}
# YAML and log files take some of these as the end of a line; Python's `splitlines` takes them all.
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SHOWN_LENGTH_MAX: Final = 300  # longer than any valid topic or group with its prefix
_TRUE: Final = frozenset({"true", "yes", "on", "y"})


def parse_permission(text: str | None) -> int:
    """Permission bits of a text: PUB, SUB, `PUB|SUB`, `SUB|PUB` or DENY; any other text is DENY (ACL-05)."""
    return _PERMISSIONS.get((text or "").strip(), DENY)


def permits(granted: int, needed: int) -> bool:
    """Whether the owned bits include a needed one. DENY refuses always, ANY is met by PUB or SUB (ACL-05)."""
    if granted & DENY:
        return False
    return bool(granted & (PUB | SUB if needed & ANY else needed))


def group_resource(group: str) -> str:
    """The resource of a consumer group."""
    return RETRY_PREFIX + group


def shown_resource(resource: str) -> str:
    """`topic:name` or `group:name`, as error texts name a resource; a long name is cut."""
    resource = resource[:_SHOWN_LENGTH_MAX]
    if resource.startswith(RETRY_PREFIX):
        return f"group:{resource.removeprefix(RETRY_PREFIX)}"
    return f"topic:{resource}"


@dataclass(frozen=True, slots=True)
class Account:
    """One account. secret: the secret key as UTF-8. white: the only addresses that may use it, unless it is empty.

    permissions: None if the account has no entry of its own (ACL-11). signature_version 2: signatures of version 1 are refused.
    """

    access_key: str
    secret: bytes = field(repr=False)
    white: AddressRule = NOTHING
    admin: bool = False
    default_topic: int = DENY
    default_group: int = DENY
    permissions: Mapping[str, int] | None = None
    signature_version: int = 1

    def may(self, resource: str, needed: int) -> bool:
        """Whether the account has a right on a resource, by its own entry or by default (ACL-12)."""
        granted = self.permissions.get(resource) if self.permissions is not None else None
        if granted is None:
            granted = self.default_group if resource.startswith(RETRY_PREFIX) else self.default_topic
        return permits(granted, needed)


def _pairs(kind: str, entries: Iterable[str]) -> Iterable[tuple[str, int]]:
    for entry in entries:
        parts = [part for part in entry.split("=") if part]
        if len(parts) != 2:
            raise ConfigError(f"Parse resource permission failed for {kind}:{entry[:200]}")
        yield parts[0].strip(), parse_permission(parts[1])


def check_entries(entries: Iterable[str]) -> None:
    """Raise ConfigError unless every entry is `name=PERM` with a known permission, for accounts created by a request (ACL-16)."""
    for entry in entries:
        parts = [part for part in entry.split("=") if part]
        if len(parts) != 2:
            raise ConfigError(
                f"Parse Resource format error for {entry[:200]}.\n"
                "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
            )
        if parts[1].strip() not in _PERMISSIONS:
            raise ConfigError(
                f"Parse resource permission error for {entry[:200]}.\n"
                "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
            )


def check_texts(texts: Mapping[str, str | None]) -> None:
    """Raise ConfigError for a text with a control character or line separator; texts: by the name that the error contains."""
    for name, text in texts.items():
        if text and _CONTROLS.search(text):
            raise ConfigError(f"{name} must not contain control characters or line separators")


def check_keys(access_key: str | None, secret_key: str | None) -> None:
    """Raise ConfigError unless both keys are texts of one line that are longer than 6 characters (ACL-04)."""
    check_texts({"accessKey": access_key, "secretKey": secret_key})
    if len(access_key or "") < KEY_LENGTH_MIN or len(secret_key or "") < KEY_LENGTH_MIN:
        raise ConfigError(
            f"The accessKey={(access_key or '')[:200]} and secretKey={MASK} cannot be null and length should longer than 6"
        )


def make_account(entry: Mapping[str, object], secret_key: str) -> Account:
    """The account of an entry of an account file, whose secret key is resolved already. Raises ConfigError."""
    access_key = text_of(entry, "accessKey")
    check_keys(access_key, secret_key)
    permissions = {group_resource(name): bits for name, bits in _pairs("group", texts_of(entry, "groupPerms"))}
    permissions |= dict(_pairs("topic", texts_of(entry, "topicPerms")))
    version = text_of(entry, "signatureVersion") or "1"
    if version not in map(str, SIGNATURE_VERSIONS):
        raise ConfigError(f"signatureVersion={version[:20]} of accessKey={access_key[:200]} must be 1 or 2")
    return Account(
        access_key,
        secret_key.encode("utf-8", "replace"),
        parse_rule(text_of(entry, "whiteRemoteAddress")),
        text_of(entry, "admin").lower() in _TRUE,
        parse_permission(text_of(entry, "defaultTopicPerm")),
        parse_permission(text_of(entry, "defaultGroupPerm")),
        permissions or None,
        int(version),
    )


def text_of(entry: Mapping[str, object], name: str) -> str:
    """A text of a file's entry; "" if it is absent or null. Raises ConfigError if it is a list or a map."""
    value = entry.get(name)
    if value is None:
        return ""
    if not isinstance(value, str | int | bool):
        raise ConfigError(f"{name} must be a text")
    return "" if value in ("~", "null") else str(value)


def texts_of(entry: Mapping[str, object], name: str) -> list[str]:
    """A list of texts of a file's entry; empty if it is absent or null. Raises ConfigError if it is anything else."""
    value = entry.get(name)
    if value is None or value in ("", "~", "null"):
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{name} must be a list of texts")
    return list(value)
