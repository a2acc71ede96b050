"""The validator for account files: rights for what the server does on its own, and changes of accounts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from saturnmq.acl.accounts import PUB, SUB
from saturnmq.acl.addresses import AddressList
from saturnmq.acl.plain import PlainValidator
from saturnmq.protocol.bodies import PlainAccessConfig
from saturnmq.protocol.errors import ConfigError

NOW_MS = 1_700_000_000_000
FILE = "plain_acl.yml"
TEXT = """
accounts:
- accessKey: operator
  secretKey: 12345678
  admin: true
- accessKey: limited
  secretKey: 12345678
  admin: true
  topicPerms: [T=SUB]
- accessKey: worker1
  secretKey: 12345678
  topicPerms: [T=PUB]
"""
EVERY_FIELD = PlainAccessConfig(
    "newaccount", "newsecret1", "10.0.0.*", True, "SUB", "PUB", ["T=PUB", "U=SUB"], ["g=SUB"]
)


def loaded(folder: Path, *, compat: bool = False) -> PlainValidator:
    path = folder / "conf" / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(TEXT)
    path.chmod(0o600)
    validator = PlainValidator(
        folder,
        f"conf/{FILE}",
        compat=compat,
        plain_admin=AddressList(),
        trace_bytes_per_second=0,
        clock_ms=lambda: NOW_MS,
    )
    asyncio.run(validator.load())
    return validator


def entry(folder: Path, access_key: str) -> dict[str, Any]:
    """What the account file says about an account."""
    accounts = yaml.safe_load((folder / "conf" / FILE).read_text())["accounts"]
    return next((account for account in accounts if account["accessKey"] == access_key), {})


@pytest.mark.parametrize(
    ("access_key", "rights"),
    [
        ("operator", [True, True, True]),
        ("limited", [False, True, False]),
        ("worker1", [True, False, False]),
        ("stranger", [False, False, False]),
    ],
)
def test_rights_of_an_account_without_a_request(tmp_path: Path, access_key: str, rights: list[bool]) -> None:
    validator = loaded(tmp_path)
    assert [validator.may(access_key, *wanted) for wanted in (("T", PUB), ("T", SUB), ("U", PUB))] == rights
    assert loaded(tmp_path, compat=True).may(access_key, "U", PUB)


def test_every_field_of_an_update_is_written_and_merged(tmp_path: Path) -> None:
    validator = loaded(tmp_path)
    asyncio.run(validator.update_account(EVERY_FIELD))
    written = {
        "accessKey": "newaccount", "secretKey": "newsecret1", "whiteRemoteAddress": "10.0.0.*", "admin": True,
        "defaultTopicPerm": "SUB", "defaultGroupPerm": "PUB", "topicPerms": ["T=PUB", "U=SUB"], "groupPerms": ["g=SUB"],
    }  # fmt: skip
    assert entry(tmp_path, "newaccount") == written
    asyncio.run(validator.update_account(PlainAccessConfig("newaccount", "newsecret1", default_group_perm="SUB")))
    assert entry(tmp_path, "newaccount") == {**written, "admin": False, "defaultGroupPerm": "SUB"}
    asyncio.run(validator.update_account(replace(EVERY_FIELD, default_topic_perm="", default_group_perm="")))
    assert entry(tmp_path, "newaccount") == {**written, "defaultGroupPerm": "SUB"}, "an empty default is none"
    asyncio.run(validator.update_account(replace(EVERY_FIELD, white_remote_address="")))
    assert entry(tmp_path, "newaccount")["whiteRemoteAddress"] == "", "an empty address list replaces the old one"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"access_key": "short6"}, "The accessKey=short6 and secretKey=****** cannot be null and length should longer than 6"),
        ({"white_remote_address": "host"}, "Netaddress examine Exception netaddress is host"),
        ({"topic_perms": ["T"]}, "Parse Resource format error for T.\n"
         "The expected resource format is 'Res=Perm'. For example: topicA=SUB"),
        ({"secret_key": "${env:HOME}"}, "secretKey must not refer to an environment variable or a file of the broker"),
        *(
            ({name: value}, f"{key} must not contain control characters or line separators")
            for name, key, value in (
                ("white_remote_address", "whiteRemoteAddress", "\x85"),
                ("default_topic_perm", "defaultTopicPerm", "\x85"),
                ("default_group_perm", "defaultGroupPerm", "\x85"),
                ("topic_perms", "topicPerms", ["T=PUB", "\x85=PUB"]),
                ("group_perms", "groupPerms", ["g=SUB", "\x85=SUB"]),
            )
        ),
    ],
)  # fmt: skip
def test_refused_update_names_the_field_and_leaves_the_file(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    validator = loaded(tmp_path)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(validator.update_account(replace(EVERY_FIELD, **change)))
    assert caught.value.problems == [problem]
    assert (tmp_path / "conf" / FILE).read_text() == TEXT


def test_global_white_list_is_replaced_in_the_named_file_only(tmp_path: Path) -> None:
    validator = loaded(tmp_path)
    assert not asyncio.run(validator.set_white_addresses(["10.0.0.1"], str(tmp_path / "other.yml")))
    with pytest.raises(ConfigError, match=r"^Netaddress examine Exception netaddress is host$"):
        asyncio.run(validator.set_white_addresses(["host"], str(tmp_path / "conf" / FILE)))
    assert (tmp_path / "conf" / FILE).read_text() == TEXT
    assert asyncio.run(validator.set_white_addresses(["10.0.0.1"], str(tmp_path / "conf" / FILE)))
    assert validator.rules.white.matches("10.0.0.1") and not validator.rules.white.matches("10.0.0.2")


def test_deleted_account_loses_its_rights_at_once(tmp_path: Path) -> None:
    validator = loaded(tmp_path)
    assert asyncio.run(validator.delete_account("worker1")) and not asyncio.run(validator.delete_account("worker1"))
    assert entry(tmp_path, "worker1") == {} and not validator.may("worker1", "T", PUB)
    assert validator.may("limited", "T", SUB)


def test_listed_accounts_have_every_field_but_their_secrets(tmp_path: Path) -> None:
    validator = loaded(tmp_path)
    asyncio.run(validator.update_account(EVERY_FIELD))
    asyncio.run(validator.set_white_addresses(["10.0.0.1"], str(tmp_path / "conf" / FILE)))
    config = validator.config()
    masked = replace(EVERY_FIELD, secret_key="******")
    assert config.global_white_addrs == ["10.0.0.1"]
    assert [account.access_key for account in config.plain_access_configs] == [
        "operator",
        "limited",
        "worker1",
        "newaccount",
    ]
    assert config.plain_access_configs[3] == masked
    assert config.plain_access_configs[1] == PlainAccessConfig(
        "limited", "******", admin=True, topic_perms=["T=SUB"], group_perms=[]
    )


def test_account_in_two_files_is_listed_as_in_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "acl"
    folder.mkdir(parents=True)
    (folder / "first.yml").write_text(
        "globalWhiteRemoteAddresses: [10.0.0.9]\naccounts:\n- accessKey: worker1\n  secretKey: 12345678\n  admin: true\n"
    )
    (folder / "first.yml").chmod(0o600)
    config = loaded(tmp_path).config()
    assert [(account.access_key, account.admin) for account in config.plain_access_configs] == [
        ("worker1", True), ("operator", True), ("limited", True),
    ]  # fmt: skip
    assert config.global_white_addrs == ["10.0.0.9"]


def test_version_is_that_of_the_default_file(tmp_path: Path) -> None:
    validator = loaded(tmp_path)
    assert (validator.version.counter, list(validator.versions)) == (0, [str(tmp_path / "conf" / FILE)])
    asyncio.run(validator.update_account(EVERY_FIELD))
    assert (validator.version.counter, validator.version.timestamp) == (1, NOW_MS)
