"""The words of docstrings, comments and documents, and the form of commit subjects. The list of phrases may only grow."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "bench", "demo", "tools")
# A reader of the Kafka, etcd or PostgreSQL sources would have to ask what these mean here.
PHRASES = (
    r"the original", r"original's", r"(?:no|some)body", r"whoever", r"anew", r"told", r"tells?", r"hears?", r"knows? of", r"rooms?",
    r"dear", r"lacks?", r"bears?", r"short way", r"plain way", r"twin", r"(?:second|third) reading", r"says? aloud", r"goodbye",
    r"doubts?", r"none any more", r"lost its", r"(?:is|are|was|were) gone", r"for ever", r"leaves? word", r"heeded",
    r"turns? of the loop", r"once, whatever happens", r"upkeep",
)  # fmt: skip
# Nor these in names and strings. Of lower-case text, as BANNED: that takes a third of the time of ignoring the case.
NAMED = re.compile(
    r"(?:no|some)body|(?<![a-z])(?:told|anew|upkeep|whoever|savers?|twins|heeded|goodbyes?|doubts)(?![a-z])|no room"
)
BANNED = re.compile(r"\b(?:" + "|".join(PHRASES) + r")\b")
AFTER_ESCAPE = re.compile(r"(?:\b|(?<=\\.))(?:" + "|".join(PHRASES) + r")\b")  # or at the start of a word
SUBJECT = re.compile(r"[a-z0-9_, /]+: [a-z].*[^.]")
SUBJECT_LENGTH_MAX = 72
SINCE = "3aa7f62"  # the last commit before subjects were checked


def python_files() -> list[Path]:
    return sorted(
        path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py") if "target" not in path.parts
    )


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of every comment and docstring line, without what stands in backticks."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"`[^`]*`", "", token.string)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in node.body:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            if isinstance(statement.value.value, str):
                for number, line in enumerate(statement.value.value.splitlines(), statement.lineno):
                    yield number, re.sub(r"`[^`]*`", "", line)


def private_words(text: str) -> list[str]:
    """Line number and phrase of each banned phrase in the prose of a module."""
    # Few modules have one anywhere, code included; the others need no tokens.
    if not AFTER_ESCAPE.search(text.lower()):
        return []
    return [f"{number}: {match[0]!r}" for number, line in prose(text) if (match := BANNED.search(line.lower()))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_prose_uses_the_terms_of_the_field(folder: str) -> None:
    paths = [path for path in python_files() if path.relative_to(REPOSITORY).parts[0] == folder]
    found = {str(path.relative_to(REPOSITORY)): private_words(path.read_text(encoding="utf-8")) for path in paths}
    assert found
    assert {name: words for name, words in found.items() if words} == {}


def test_names_and_strings_use_the_terms_of_the_field() -> None:
    texts = {path: path.read_text(encoding="utf-8").lower() for path in python_files() if path != Path(__file__)}
    assert [str(path) for path, text in texts.items() if NAMED.search(text)] == []


def test_documents_use_the_terms_of_the_field() -> None:
    folders = [path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent.name != "spec"]
    written = ("benchmarks", "commands")  # by programs; the commands of mqadmin have the texts of Apache RocketMQ
    documents = [path for path in folders if not path.name.startswith(written)]
    assert len(documents) > 20
    for path in [*REPOSITORY.glob("*.md"), *documents]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = BANNED.search(re.sub(r"`[^`]*`", "", line).lower())
            assert match is None, f"{path.name}:{number}: {match and match[0]!r}"


@pytest.mark.parametrize(
    "line", ["# the original does", '"""Each is told once."""', "x = 1  # no room", '"""Each\\nis\\ntold."""']
)
def test_prose_with_a_private_word_is_found(line: str) -> None:
    assert len(private_words(line)) == 1


def test_private_word_in_code_or_backticks_is_none() -> None:
    assert private_words('told = "anew"  # see `told`\n') == []


def test_commit_subjects_name_a_package_and_stay_short() -> None:
    known = subprocess.run(["git", "cat-file", "-e", SINCE], cwd=REPOSITORY, capture_output=True, check=False)
    commits = ["-1"] if known.returncode else [f"{SINCE}..HEAD"]  # a shallow clone has the last one only
    log = ["git", "log", "--no-merges", "--format=%s", *commits]
    subjects = subprocess.run(log, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    for subject in subjects:
        assert len(subject) <= SUBJECT_LENGTH_MAX, f"{len(subject)} characters: {subject}"
        assert SUBJECT.fullmatch(subject), f"not `package: imperative summary`: {subject}"
