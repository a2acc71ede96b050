"""`make docs`: the site is built without warnings, loads nothing from other hosts, and its links lead to pages and headings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from command_lines import REPOSITORY

# Elements and attributes by which a browser loads something; links that a reader follows (<a href>) are none.
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source|video|audio|object|embed|use|image)\b[^>]*?"
    r"\b(?:src|href|data|srcset)=[\"']?((?:https?:)?//[^\"' >]+)"
)
LOADED_BY_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"') ]+)")
LINK = re.compile(r"\b(?:href|src)=[\"']?([^\"' >]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # with --quiet warnings would not count
    return folder


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages, sheets = list(site.rglob("*.html")), [*site.rglob("*.css"), *site.rglob("*.svg")]
    assert len(pages) > 60 and len(sheets) > 1
    loaded = [(page.name, host) for page in pages for host in LOADED.findall(page.read_text(encoding="utf-8"))]
    loaded += [(sheet.name, host) for sheet in sheets for host in LOADED_BY_CSS.findall(sheet.read_text("utf-8"))]
    assert loaded == []
    assert not any('class="mermaid"' in page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ('<link rel=stylesheet href="https://fonts.example/css">', LOADED),
        ("<script defer src=//cdn.example/x.js></script>", LOADED),
        ("@import url(https://fonts.example/css)", LOADED_BY_CSS),
    ],
)
def test_a_resource_of_another_host_is_found(text: str, pattern: re.Pattern[str]) -> None:
    assert pattern.search(text)


def test_every_link_leads_to_a_file_and_a_heading(site: Path) -> None:
    @cache
    def names(page: Path) -> set[str]:
        return set(re.findall(r"\b(?:id|name)=[\"']?([^\"' >]+)", page.read_text(encoding="utf-8")))

    broken = []
    for page in site.rglob("*.html"):
        for link in set(LINK.findall(page.read_text(encoding="utf-8"))):
            target, _, anchor = unquote(link).partition("#")
            if page.name == "404.html" or re.match(r"\w+:", target):
                continue
            path = (page.parent / target).resolve() if target else page
            if not path.is_file() or (anchor and path.suffix == ".html" and anchor not in names(path)):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert sorted(broken) == []


def test_navigation_has_four_parts_for_users(site: Path) -> None:
    tabs = re.findall(r'class="?md-tabs__link"?>\s*([^<]+?)\s*<', (site / "index.html").read_text(encoding="utf-8"))
    assert tabs == ["SaturnMQ", "Tutorials", "How-to", "Reference", "Explanation", "For developers"]


def test_pages_of_users_name_no_requirements(site: Path) -> None:
    """Their numbers are for developers: docs/spec, the decisions, and the pages that map requirements to tests or modules."""
    spec = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs" / "spec").glob("*.md"))
    prefixes = {name.rpartition("-")[0] for name in re.findall(r"^\| ([A-Z]+-[A-Z]?\d+) \|", spec, re.MULTILINE)}
    assert len(prefixes) > 40
    named = re.compile(rf"\b(?:{'|'.join(sorted(prefixes))})-[A-Z]?\d{{2}}\b")
    developers = {"architecture.md", "security-tests.md"}
    pages = [
        REPOSITORY / "README.md",
        *(REPOSITORY / "docs").glob("*.md"),
        *(REPOSITORY / "docs" / "changes").glob("*.md"),
    ]
    found = [
        f"{page.name}: {match}"
        for page in [*pages, *(site / "api").glob("*.html")]
        if page.name not in developers
        for match in named.findall(page.read_text(encoding="utf-8"))
    ]
    assert found == []
