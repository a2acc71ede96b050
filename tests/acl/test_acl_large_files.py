"""A large account file neither holds the interpreter while it is read nor leaves work for every garbage collection."""

from __future__ import annotations

import gc

import pytest
import yaml

from saturnmq.acl.documents import read_document, read_rules, with_account, write_document
from saturnmq.acl.files import resolve_secret
from saturnmq.protocol.errors import ConfigError

ENTRY = "- accessKey: account{0:06d}\n  secretKey: secret{0:06d}\n  topicPerms:\n  - topic{0}=PUB\n"


def large(count: int) -> bytes:
    return ("accounts:\n" + "".join(ENTRY.format(number) for number in range(count))).encode()


@pytest.mark.spec("ACL-14")
def test_rules_of_a_large_file_have_two_collected_objects_per_account() -> None:
    data = large(3000)
    read_rules(large(1), resolve_secret)
    gc.collect()
    before = len(gc.get_objects())
    rules = read_rules(data, resolve_secret)
    gc.collect()
    assert len(rules.accounts) == 3000 and rules.accounts["account002999"].may("topic2999", 4)
    assert len(gc.get_objects()) - before < 3000 * 2.1  # a document has five


def test_reading_never_builds_the_nodes_of_a_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load", "compose"):
        monkeypatch.setattr(yaml, name, lambda *args, **kwargs: pytest.fail("holds the interpreter for the whole file"))
    assert len(read_rules(large(50), resolve_secret).accounts) == 50


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: [x, 'y', {c: d}]\ne:\n",
        "accounts:\n- {accessKey: abcdefg}\n-\n- [1]\nother: null\n",
        "a: 1\na: 2\n",
        "# nothing\n",
        "--- {x: |\n  lines\n  of text\n}",
        '"quoted": "\\u0041"',
    ],
)
def test_documents_are_what_the_yaml_loader_makes_of_them(text: str) -> None:
    try:
        expected = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        with pytest.raises(ConfigError):
            read_document(text.encode())
    else:
        assert read_document(text.encode()) == (expected or {})


@pytest.mark.parametrize("text", ["? [a]\n: b\n", "? {a: b}\n: c\n", "a: 1\n---\nb: 2\n", "a: &x 1\nb: *x\n"])
def test_what_is_no_map_of_texts_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_document(text.encode())


def test_a_written_file_reads_back_with_every_account() -> None:
    document = with_account(read_document(large(250)), "account000100", {"secretKey": "another1"})
    data = write_document(document)
    assert read_document(data) == document
    assert read_rules(data, resolve_secret).accounts["account000100"].secret == b"another1"
    assert read_document(write_document({"accounts": []})) == {"accounts": []}
