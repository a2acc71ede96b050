"""Texts: the catalogs have all that the code has, each translated with the same names, and are compiled."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from saturnmq import console
from saturnmq.console.texts import CATALOGS, LANGUAGES, texts_of

pytest.importorskip("babel")
from babel.messages.catalog import Catalog, Message
from babel.messages.extract import DEFAULT_KEYWORDS, extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

METHODS = [("**.py", "python"), ("**.html", "jinja2")]
KEYWORDS = DEFAULT_KEYWORDS | {"NC_": ((1, "c"), 2)}
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def read(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file)


def translated(catalog: Catalog) -> Iterator[Message]:
    return (message for message in catalog if message.id)


@pytest.mark.spec("UX-11")
@pytest.mark.parametrize("language", [code for code in LANGUAGES if code != "en"])
def test_catalog_has_the_texts_of_the_code_and_is_compiled(language: str) -> None:
    """`make texts` writes what is missing."""
    found = extract_from_dir(Path(console.__file__).parent, METHODS, keywords=KEYWORDS)
    code = {(context, message) for _, _, message, _, context in found}
    path = CATALOGS / language / "LC_MESSAGES" / "console.po"
    catalog = read(path)
    assert {(message.context, message.id) for message in translated(catalog)} == code
    for message in translated(catalog):
        assert message.string and not message.fuzzy, message.id
        assert sorted(re.findall(r"{\w+}", message.id)) == sorted(re.findall(r"{\w+}", message.string)), message.id
        assert not CHINESE.search(message.id), message.id
    compiled = io.BytesIO()
    write_mo(compiled, catalog)
    assert compiled.getvalue() == path.with_suffix(".mo").read_bytes()


def test_text_without_a_translation_is_english() -> None:
    for language in LANGUAGES:
        texts = texts_of(language)
        assert texts.gettext("{count} of none", count=3) == "3 of none" and texts.pgettext("none", "none") == "none"
    chinese = texts_of("zh")
    assert chinese.gettext("Search") == "搜索消息" != chinese.pgettext("button", "Search") == "搜索"
    assert chinese.gettext("{count} messages wait", count=3) == "3 条消息待消费"
