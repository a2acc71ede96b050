"""docs/concepts.md: its words exist in the code, the picture uses them, and the table of other brokers has each of them."""

from __future__ import annotations

import re

from command_lines import REPOSITORY

import saturnmq
from saturnmq.cli.commands import COMMANDS

PAGE = (REPOSITORY / "docs" / "concepts.md").read_text(encoding="utf-8")
PICTURE = (REPOSITORY / "docs" / "images" / "concepts.svg").read_text(encoding="utf-8")
ROWS = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
WORDS = {row[0].strip(): row[2].strip(" `") for row in ROWS if len(row) == 3 and row[0].strip() != "word"}


def exists(name: str) -> bool:
    """Whether a name of the table is a command, or an attribute of a class that users import."""
    if name.startswith("saturnmq "):
        return name.removeprefix("saturnmq ") in {command.name for command in COMMANDS}
    owner, _, attribute = name.partition(".")
    cls = getattr(saturnmq, owner)
    return hasattr(cls, attribute) or any(attribute in vars(base).get("__annotations__", {}) for base in cls.__mro__)


def test_each_word_exists_in_the_code() -> None:
    assert len(WORDS) > 12
    assert {word: name for word, name in WORDS.items() if not exists(name)} == {}
    assert not exists("Message.envelope")


def test_each_word_of_the_picture_is_explained() -> None:
    names = set(re.findall(r'class="name"[^>]*>([^<]+)<', PICTURE))
    assert len(names) > 7 and names - set(WORDS) == set()


def test_each_word_has_a_row_for_other_brokers() -> None:
    assert [row[0].strip() for row in ROWS if len(row) == 5] == ["here", *WORDS]
