"""docs/configuration.md: the reference of the configuration keys is current and complete."""

from __future__ import annotations

import pytest

import make_keys
from key_meanings import MEANINGS
from saturnmq.config.settings import keys_of


@pytest.mark.spec("CLI-10")
def test_configuration_page_is_current() -> None:
    assert make_keys.PAGE.read_text(encoding="utf-8") == make_keys.page(), "python tools/make_keys.py writes it"


def test_configuration_page_names_every_key_once_per_class() -> None:
    rows = [line for line in make_keys.page().splitlines() if line.startswith("| `")]
    keys = [java for cls in make_keys.settings_classes() for java in keys_of(cls)]
    assert sorted(row.split("`")[1] for row in rows) == sorted(keys)
    assert all(row.count(" | ") == 3 for row in rows)


def test_meanings_are_of_keys_that_exist() -> None:
    keys = {java for cls in make_keys.settings_classes() for java in keys_of(cls)}
    assert sorted(set(MEANINGS) - keys) == []
    assert not any(set("\n|") & set(text) for text in MEANINGS.values())


def test_readme_links_to_the_configuration_page() -> None:
    assert "(docs/configuration.md)" in (make_keys.TOP / "README.md").read_text(encoding="utf-8")
