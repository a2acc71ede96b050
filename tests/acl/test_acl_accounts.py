"""Accounts and account files: texts to rights, files in their order, reloading, and changes that keep the author's texts."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.acl.accounts import ANY, DENY, PUB, SUB, make_account, parse_permission, permits, shown_resource
from saturnmq.acl.documents import (
    BYTES_MAX,
    entries_of,
    next_version,
    read_document,
    read_rules,
    with_account,
    without_account,
    write_document,
)
from saturnmq.acl.files import AccountFiles, account_paths, resolve_secret
from saturnmq.protocol.bodies import DataVersion
from saturnmq.protocol.errors import ConfigError

EXAMPLE = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
  - accessKey: rocketmq2
    secretKey: 012345678
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def touch(path: Path) -> None:
    """Give a file another modification time, as an editor would."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000))


def account(key: str, secret: str = "12345678", more: str = "") -> str:
    return f"accounts:\n- accessKey: {key}\n  secretKey: {secret}\n{more}"


@pytest.mark.spec("ACL-05")
@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("PUB", PUB), ("SUB", SUB), ("PUB|SUB", PUB | SUB), ("SUB|PUB", PUB | SUB), (" SUB ", SUB), ("DENY", DENY),
        ("", DENY), (None, DENY), ("pub", DENY), ("PUB | SUB", DENY), ("ANY", DENY), ("PUB|SUB|PUB", DENY),
    ],
)  # fmt: skip
def test_permission_texts(text: str | None, bits: int) -> None:
    assert (DENY, ANY, PUB, SUB) == (1, 2, 4, 8)
    assert parse_permission(text) == bits


@pytest.mark.spec("ACL-05")
def test_an_owned_deny_bit_always_refuses() -> None:
    assert [permits(owned, PUB) for owned in (PUB, PUB | SUB, SUB, DENY, PUB | DENY, 0)] == [True, True] + [False] * 4
    assert permits(SUB, 2) and permits(PUB, 2) and not permits(0, 2) and not permits(DENY | SUB, 2)


@pytest.mark.spec("ACL-04", "ACL-12")
def test_the_example_of_apache_is_understood() -> None:
    rules = read_rules(EXAMPLE.encode(), resolve_secret)
    assert [rule.text for rule in rules.white] == ["10.10.103.*", "192.168.0.*"]
    user, admin = rules.accounts["RocketMQ"], rules.accounts["rocketmq2"]
    assert user.secret == b"12345678" and admin.secret == b"012345678"  # no octal number
    assert admin.admin and admin.permissions is None and not user.admin
    assert admin.white.matches("192.168.1.9") and not user.white.matches("192.168.1.9")
    may = [user.may(name, SUB) for name in ("topicA", "topicB", "topicC", "topicD", "%RETRY%groupA", "%RETRY%groupB")]
    assert may == [False, True, True, False, False, True]
    assert user.may("topicB", PUB) and not user.may("topicC", PUB) and not user.may("%RETRY%groupB", PUB)
    assert "12345678" not in repr(user) and "12345678" not in repr(rules)
    least = read_rules(account("seven77", "seven77").encode(), resolve_secret).accounts["seven77"]
    assert not least.admin and not any(least.may(name, right) for name in ("T", "%RETRY%g") for right in (PUB, SUB))


@pytest.mark.spec("ACL-04", "SEC-13", "CLI-09")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (account("short6"), "account 1: The accessKey=short6 and secretKey=****** cannot be null"),
        (account("longenough", "geheim"), "secretKey=****** cannot be null and length should longer than 6"),
        ("accounts:\n- accessKey: longenough\n", "cannot be null"),
        (
            account("longenough", more="  topicPerms: [T=PUB=SUB]\n"),
            "Parse resource permission failed for topic:T=PUB=SUB",
        ),
        (account("longenough", more="  groupPerms: [T]\n"), "Parse resource permission failed for group:T"),
        (account("longenough", more="  topicPerms: T=PUB\n"), "topicPerms must be a list of texts"),
        (account("longenough", more="  whiteRemoteAddress: [1.2.3.4]\n"), "whiteRemoteAddress must be a text"),
        (account("longenough", more="  whiteRemoteAddress: host\n"), "Netaddress examine Exception netaddress is host"),
        (
            account("longenough", more="  signatureVersion: 3\n"),
            "signatureVersion=3 of accessKey=longenough must be 1 or 2",
        ),
        (account("longenough", "${env:NOWHERE_AT_ALL}"), "environment variable NOWHERE_AT_ALL, which is not set"),
        (account("longenough", "${file:/nowhere}"), "the file '/nowhere', which cannot be read: No such file"),
        (account("longenough", '"${file:/a\\0b}"'), "the file '/a\\x00b', which cannot be read"),
        (account("longenough", '"geheim\\Nnis"'), "secretKey must not contain control characters"),
        (account('"longenough\\L"'), "accessKey must not contain control characters"),
        ("globalWhiteRemoteAddresses: [1.2.3.4.5]", "Netaddress examine Exception netaddress is 1.2.3.4.5"),
        ("accounts: {a: b}", "accounts must be a list of maps"),
        ("accounts: text", "accounts must be a list of maps"),
        ("accounts: [text]", "accounts must be a list of maps"),
        ("accounts: [[accessKey, longenough]]", "accounts must be a list of maps"),
        ("- a", "the file must be a map"),
        ("a: &x b\nc: *x", "line 2: aliases are not allowed"),
        ("a: " + "[" * 17 + "]" * 17, "line 1: nested deeper than 16"),
        ("a: [\nsecretKey: geheimnis", "line "),
        ("a: \tgeheimnis: {", "line"),
    ],
)
def test_a_bad_file_is_refused_without_naming_a_secret(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_rules(text.encode(), resolve_secret)
    assert problem in str(caught.value) and "geheim" not in str(caught.value)


@pytest.mark.spec("FUZ-09")
def test_long_and_undecodable_files_are_refused() -> None:
    assert BYTES_MAX == 4 << 20
    for data, problem in ((b"#" * (BYTES_MAX + 1), "too long"), (b"a: \xff", "not UTF-8"), (b"a: \x00", "not YAML")):
        with pytest.raises(ConfigError, match=problem):
            read_document(data)
    assert read_document(b"") == read_document(b"# nothing\n") == {}


_PIECES = st.sampled_from(
    [
        "accounts:", "\n", "  ", "- ", "accessKey: abcdefgh", "secretKey: 12345678", "{", "}", "[", "]", "&a ", "*a",
        "!!int 5", "!!python/object:os.system x", "|", ">", "'", '"', "#", ": ", "? ", "<<: *a", "\t", "%YAML 1.1", "---",
        "...", "topicPerms: [T=PUB]", "globalWhiteRemoteAddresses: [1.2.3.4]", "dataVersion: [{counter: 1}]", "~",
        "\u2028", "\x85",
    ]
)  # fmt: skip


@pytest.mark.spec("FUZ-09")
@given(st.lists(_PIECES, max_size=30).map("".join) | st.text(max_size=60))
def test_any_text_is_rules_or_a_configuration_error(text: str) -> None:
    try:
        rules = read_rules(text.encode("utf-8", "surrogatepass"), resolve_secret)
    except ConfigError:
        return
    again = read_rules(write_document(read_document(rules.data)), resolve_secret)
    assert (again.accounts, again.white, again.version) == (rules.accounts, rules.white, rules.version)


@pytest.mark.spec("FUZ-09")
@pytest.mark.parametrize(
    "shape", ["- ", "[", "a: ", "{a: ", "&a ", "!!a ", "'", '"\\x41', "- a\n", "? ", "%a\n", "#", " ", "|\n", "a: 1\n"]
)
def test_reading_time_grows_with_the_length_only(shape: str) -> None:
    def cpu_seconds(length: int) -> float:
        data = (shape * (length // len(shape))).encode()
        best = 60.0
        for _ in range(3):
            started = time.thread_time()
            try:
                read_rules(data, resolve_secret)
            except ConfigError as error:
                assert len(str(error)) < 500
            best = min(best, time.thread_time() - started)
        return best

    assert cpu_seconds(80_000) < 16 * max(cpu_seconds(20_000), 0.002)


@pytest.mark.spec("ACL-03", "ACL-04")
def test_secrets_can_be_kept_outside_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATURN_TEST_SECRET", "from the environment")
    write(tmp_path / "secret", "from a file\n")
    found = [
        resolve_secret(text) for text in ("${env:SATURN_TEST_SECRET}", f"${{file:{tmp_path}/secret}}", "${x:y}", "$a")
    ]
    assert found == ["from the environment", "from a file", "${x:y}", "$a"]
    write(tmp_path / "secret", "s" * 4096 + "x")
    assert resolve_secret(f"${{file:{tmp_path}/secret}}") == "s" * 4096, "a large file is not read whole"


def test_a_folder_holds_at_most_a_thousand_account_files(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "acl"
    folder.mkdir(parents=True)
    for number in range(1000):
        (folder / f"{number:04}.yml").touch()
    assert len(account_paths(tmp_path, tmp_path / "conf" / "plain_acl.yml")) == 1000
    (folder / "other.txt").touch()
    (folder / "1000.yaml").touch()
    with pytest.raises(OSError, match=f"more than 1000 files in {folder}"):
        account_paths(tmp_path, tmp_path / "conf" / "plain_acl.yml")


@pytest.mark.spec("ACL-03")
def test_the_first_file_with_an_access_key_wins(tmp_path: Path) -> None:
    write(tmp_path / "conf/acl/deep/b.yaml", account("sharedkey", "from-deep"))
    write(tmp_path / "conf/acl/a.yml", account("sharedkey", "from-a-yml"))
    write(tmp_path / "conf/acl/other.txt", account("ignoredkey"))
    write(tmp_path / "conf/plain_acl.yml", account("sharedkey", "from-plain") + account("plainkey")[10:])
    files = AccountFiles(tmp_path, private=True)
    rules = files.load()
    assert {key: found.secret for key, found in rules.accounts.items()} == {
        "sharedkey": b"from-a-yml",
        "plainkey": b"12345678",
    }
    assert files.file_of("sharedkey") == (tmp_path / "conf/acl/a.yml").resolve()


@pytest.mark.spec("ACL-03", "SEC-13")
def test_a_missing_default_file_is_created_empty_and_private(tmp_path: Path) -> None:
    rules = AccountFiles(tmp_path, private=True).load()
    path = tmp_path / "conf/plain_acl.yml"
    assert rules.accounts == {} and path.read_bytes() == b"" and path.stat().st_mode & 0o777 == 0o600


@pytest.mark.spec("SEC-13")
@pytest.mark.parametrize(
    ("mode", "refused"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o610, True)]
)
def test_files_that_others_may_access_are_refused(tmp_path: Path, mode: int, refused: bool) -> None:
    write(tmp_path / "conf/plain_acl.yml", EXAMPLE, mode)
    assert len(AccountFiles(tmp_path, private=False).load().accounts) == 2
    if refused:
        with pytest.raises(ConfigError, match=f"its mode is {mode:04o}"):
            AccountFiles(tmp_path, private=True).load()
    else:
        AccountFiles(tmp_path, private=True).load()


@pytest.mark.spec("SEC-13")
def test_files_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "conf/plain_acl.yml", EXAMPLE)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        assert AccountFiles(tmp_path, private=True).load().accounts
        os.chown(path, 65534, -1)
    with pytest.raises(ConfigError, match="it belongs to user"):
        AccountFiles(tmp_path, private=True).load()
    assert AccountFiles(tmp_path, private=False).load().accounts


@pytest.mark.spec("ACL-14")
@pytest.mark.timeout(30)
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    files = AccountFiles(tmp_path, private=True)
    files.load()
    files.default.unlink()
    os.mkfifo(files.default, 0o600)
    assert files.scan() is None
    with pytest.raises(ConfigError, match="it is no regular file"):
        files.load()


@pytest.mark.spec("ACL-14")
def test_changed_files_are_read_again_and_bad_ones_keep_the_old_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    default = write(tmp_path / "conf/plain_acl.yml", account("firstkey"))
    files = AccountFiles(tmp_path, private=True)
    files.load()
    assert files.scan() is None
    write(default, account("secondkey"))
    touch(default)
    rules = files.scan()
    assert rules is not None and list(rules.accounts) == ["secondkey"]
    for text, mode in (("accounts: [", 0o600), (account("thirdkey"), 0o644)):
        write(default, text, mode)
        touch(default)
        assert files.scan() is None and files.scan() is None
    refusals = [record for record in caplog.records if "account file refused" in record.getMessage()]
    assert len(refusals) == 2  # each change once
    more = write(tmp_path / "conf/acl/more.yml", account("morekey"))
    caplog.clear()
    caplog.set_level(logging.INFO)
    rules = files.scan()
    (line,) = [record.getMessage() for record in caplog.records if "account file read" in record.getMessage()]
    assert f"path={more} " in line, "no file that did not change"
    assert rules is not None and list(rules.accounts) == ["morekey", "secondkey"]
    more.unlink()
    write(default, account("thirdkey"))
    touch(default)
    rules = files.scan()
    assert rules is not None and list(rules.accounts) == ["thirdkey"]


@pytest.mark.spec("ACL-15", "ACL-16")
def test_saving_keeps_the_texts_of_the_author_and_counts_versions(tmp_path: Path) -> None:
    path = write(tmp_path / "conf/plain_acl.yml", EXAMPLE + "unknown: 007\n")
    files = AccountFiles(tmp_path, private=True)
    files.load()
    for number in (1, 2):
        rules = files.save(
            files.default, lambda document: with_account(document, "RocketMQ", {"admin": True}), 1000 + number
        )
        assert rules.accounts["RocketMQ"].admin and rules.accounts["rocketmq2"].secret == b"012345678"
        assert files.rules[files.default].version == DataVersion(1000 + number, number)
    text = path.read_text()
    assert "secretKey: 12345678\n" in text and "unknown: 007" in text and "'" not in text
    assert path.stat().st_mode & 0o777 == 0o600 and not list(path.parent.glob("*.tmp"))
    as_java = yaml.safe_load(text)
    assert as_java["dataVersion"] == [{"counter": 2, "timestamp": 1002}]
    assert as_java["accounts"][0]["admin"] is True and as_java["accounts"][0]["secretKey"] == 12345678
    assert files.scan() is None


@pytest.mark.spec("ACL-15")
def test_a_change_that_cannot_be_used_or_written_leaves_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "conf/plain_acl.yml", EXAMPLE)
    files = AccountFiles(tmp_path, private=True)
    before = files.load()
    with pytest.raises(ConfigError, match="cannot be null"):
        files.save(files.default, lambda document: with_account(document, "bad", {}), 1)
    (path.parent / "plain_acl.yml.tmp").mkdir()
    with pytest.raises(ConfigError, match=r"plain_acl.yml cannot be written"):
        files.save(files.default, lambda document: with_account(document, "newaccount", {"secretKey": "12345678"}), 1)
    assert path.read_text() == EXAMPLE and files.scan() is None and "newaccount" not in before.accounts


def test_changed_file_is_durable_before_and_after_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted account must not return after a crash."""
    path = write(tmp_path / "conf/plain_acl.yml", EXAMPLE)
    files = AccountFiles(tmp_path, private=True)
    files.load()
    steps: list[object] = []
    fsync, replace = os.fsync, Path.replace

    def seen_fsync(handle: int) -> None:
        steps.append(("fsync", os.fstat(handle).st_size > len(EXAMPLE) // 2))
        fsync(handle)

    def seen_replace(source: Path, target: Path) -> Path:
        steps.append((source.name, target.name))
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    monkeypatch.setattr("saturnmq.durable.sync_path", lambda folder: steps.append(("folder", folder)))
    files.save(files.default, lambda document: without_account(document, "rocketmq2"), 1)
    assert steps == [("fsync", True), ("plain_acl.yml.tmp", "plain_acl.yml"), ("folder", path.parent)]


@pytest.mark.parametrize(
    "entries", ["text", {"accessKey": "longenough"}, ["text"], [{"accessKey": "longenough"}, "text"]]
)
def test_accounts_that_are_no_maps_are_neither_listed_nor_changed(entries: object) -> None:
    """A document may be changed that was never made into rules."""
    document = {"accounts": entries}
    for use in (
        lambda: entries_of(document),
        lambda: with_account(document, "longenough", {"admin": True}),
        lambda: without_account(document, "longenough"),
    ):
        with pytest.raises(ConfigError, match=r"^accounts must be a list of maps$"):
            use()
    assert document == {"accounts": entries}


def test_versions_that_are_no_numbers_start_again() -> None:
    for text in (
        "",
        "dataVersion: x",
        "dataVersion: [x]",
        "dataVersion: [{counter: -1, timestamp: 99999999999999999999}]",
        "dataVersion: [{counter: 9999999999999999999, timestamp: x}]",
    ):
        document = next_version(read_document(text.encode()), 5)
        assert document["dataVersion"] == [{"counter": 1, "timestamp": 5}]


@pytest.mark.parametrize("null", ["", "~", "null", '""'])
def test_empty_fields_are_absent(null: str) -> None:
    more = "".join(
        f"  {name}: {null}\n"
        for name in ("whiteRemoteAddress", "defaultTopicPerm", "topicPerms", "groupPerms", "admin")
    )
    text = f"globalWhiteRemoteAddresses: {null}\n" + account("longenough", more=more)
    rules = read_rules(text.encode(), resolve_secret)
    assert rules.white == () and not rules.accounts["longenough"].admin
    assert rules.accounts["longenough"].permissions is None and not rules.accounts["longenough"].may("T", SUB)
    assert dict(read_rules(f"accounts: {null}".encode(), resolve_secret).accounts) == {}


@pytest.mark.parametrize(
    ("resource", "shown"),
    [
        ("T", "topic:T"),
        ("%RETRY%g", "group:g"),
        ("T" * 300, "topic:" + "T" * 300),
        ("T" * 301, "topic:" + "T" * 300),
        ("%RETRY%" + "g" * 294, "group:" + "g" * 293),
    ],
)
def test_resource_is_named_by_its_kind_and_cut(resource: str, shown: str) -> None:
    assert shown_resource(resource) == shown


def test_an_account_ignores_unknown_fields() -> None:
    assert make_account({"accessKey": "longenough", "secretKey": "x", "note": ["a"]}, "12345678").signature_version == 1
