"""docs/client-options.md: the reference of the client's options is current and complete."""

from __future__ import annotations

import dataclasses

import client_options
import make_keys


def test_client_options_page_is_current() -> None:
    assert make_keys.CLIENT_PAGE.read_text(encoding="utf-8") == client_options.page(), (
        "python tools/make_keys.py writes it"
    )


def test_client_options_page_has_a_meaning_for_every_option() -> None:
    rows = [line.split(" | ") for line in client_options.page().splitlines() if line.startswith("| `")]
    names = [field.name for _, _, cls, _ in client_options.KINDS for field in dataclasses.fields(cls)]
    assert [row[0].strip("| `") for row in rows] == names
    assert all(len(row) == 6 and row[4] for row in rows)


def test_other_tables_of_client_options_name_options_that_exist() -> None:
    names = {field.name for _, _, cls, _ in client_options.KINDS for field in dataclasses.fields(cls)}
    assert (client_options.APACHE.keys() | client_options.UNITS.keys()) - names == set()


def test_readme_and_guide_link_to_the_client_options_page() -> None:
    for path, link in (("README.md", "(docs/client-options.md)"), ("docs/guide.md", "(client-options.md)")):
        assert link in (make_keys.TOP / path).read_text(encoding="utf-8")
