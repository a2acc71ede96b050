"""Hooks of MkDocs (`mkdocs.yml`): documents written for GitHub's Markdown become pages of the site.

README and other documents outside docs/ are pages too; a link to any other file of the repository becomes its text.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads hooks by their path
import docs_reference

TOP: Final = Path(__file__).resolve().parent.parent
DOCS: Final = TOP / "docs"
# Documents outside docs/, and the pages that they are.
PAGES: Final = {
    TOP / "README.md": "index.md",
    TOP / "CONTRIBUTING.md": "contributing.md",
    TOP / "SECURITY.md": "security-policy.md",
    TOP / "CHANGELOG.md": "changelog.md",
    DOCS / "decisions": "decisions/index.md",
}
_SOURCES: Final = {page: source for source, page in PAGES.items()}
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)")
_ITEM: Final = re.compile(r"(\d+\. |- )")
_FENCE: Final = re.compile(r" *```")


def decisions() -> str:
    """The list of decision records, by number."""
    titles = {
        path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in (DOCS / "decisions").glob("*.md")
    }
    rows = [f"- [{title.removeprefix('# ')}]({name})" for name, title in sorted(titles.items())]
    return "# Decisions\n\nWhat was decided, why, and what was measured.\n\n" + "\n".join(rows) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside docs/, and the pages that are made of code."""
    texts = {page: source.read_text(encoding="utf-8") for source, page in PAGES.items() if source.is_file()}
    for page, content in (texts | {"decisions/index.md": decisions()} | docs_reference.pages()).items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's text for Python-Markdown, with links that work in the site."""
    name = page.file.src_uri
    folder = _SOURCES.get(name, DOCS / name).parent if name != "decisions/index.md" else DOCS / "decisions"
    return "\n".join(_lines(_LINK.sub(lambda match: _link(match, folder, name), markdown).split("\n")))


def _link(match: re.Match[str], folder: Path, name: str) -> str:
    picture, text, target, anchor = match.groups("")
    path = Path(os.path.normpath(folder / target))
    if path in PAGES or (path.is_relative_to(DOCS) and not path.is_relative_to(DOCS / "spec")):
        site = PAGES.get(path) or str(path.relative_to(DOCS))
        return f"{picture}[{text}]({os.path.relpath(site, Path(name).parent)}{anchor})"
    return text if path.exists() else match[0]


def _lines(lines: list[str]) -> list[str]:
    """The lines in Python-Markdown: 4 columns in list items, an empty line before lists, `|` in code of tables."""
    shifted: list[str] = []
    added, in_fence = 0, False
    for line in lines:
        if _FENCE.match(line):
            in_fence = not in_fence
        item = None if in_fence else _ITEM.match(line)
        if item is not None:
            if shifted and shifted[-1].strip() and not shifted[-1].startswith((" ", *"-0123456789")):
                shifted.append("")
            added = 4 - len(item[0])
        elif line.strip() and not line.startswith(" "):
            added = 0
        if added and line.startswith("  "):
            line = " " * added + line
        elif line.startswith("|") and not in_fence:
            line = re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), line)
        shifted.append(line)
    return shifted
