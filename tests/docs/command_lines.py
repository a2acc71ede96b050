"""Finds the command lines that sources and documents name: of `saturnmq`, `mqadmin` and `make`."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_COMMAND = re.compile(r"(?<![\w./'-])(?:\.venv/bin/)?(saturnmq|mqadmin) (?!import\b)(?=[-A-Za-z])")
_MAKE = re.compile(r"(?<![\w./-])make (?=[a-z])")
_NAMES = re.compile(r"saturnmq (?!import\b)|mqadmin |`make ")
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END_OF_PROSE = re.compile(r"[,;:.)](?=\s|$)|[`\"\n]| \(")


@dataclass(frozen=True)
class Named:
    """A command line and where it stands. whole: it can be run as it is; otherwise required options may be missing."""

    where: str
    program: str
    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return f"{self.where}: {self.program} {' '.join(self.words)}"


def _words(text: str, *, prose: bool) -> tuple[str, ...]:
    """Words of a command line; in prose it ends at the first lower-case word that is no name of a command and no value."""
    text = re.sub(r"\s+#.*|\s+[|>&].*|\s*\.\.\.+.*", "", text) if not prose else text.split("...")[0]
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    if not prose:
        return tuple(words)
    taken: list[str] = []
    for word in words:
        plain = re.fullmatch(r"[a-z]+", word) is not None
        value = bool(taken) and taken[-1].startswith("-")
        if plain and not value and len(taken) >= (2 if taken[:1] in (["store"], ["spark"], ["admin"]) else 1):
            break
        taken.append(word)
        if word == "--help":
            break
    return tuple(taken)


def in_code(text: str, where: str) -> Iterator[Named]:
    """The command lines of a code block."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        for program, found in ((None, _COMMAND.search(line)), ("make", _MAKE.search(line))):
            if found is not None:
                words = _words(line[found.end() :], prose=False)
                yield Named(where, program or found[1], words, whole="..." not in line)


def in_prose(text: str, where: str) -> Iterator[Named]:
    """The command lines of a sentence; `make` only in backticks."""
    for found in _COMMAND.finditer(text):
        quoted = text[: found.start()].count("`") % 2 == 1
        rest = text[found.end() :]
        rest = rest.split("`")[0] if quoted else _END_OF_PROSE.split(rest)[0]
        yield Named(where, found[1], _words(rest.replace("\n", " "), prose=not quoted), whole=False)
    for quoted_text in re.findall(r"`(make [a-z][^`]*)`", text):
        yield Named(where, "make", _words(quoted_text[5:], prose=False), whole=False)


def in_document(path: Path) -> Iterator[Named]:
    """The command lines of a Markdown page: fenced and indented blocks, and text."""
    where = str(path.relative_to(REPOSITORY))
    text = path.read_text(encoding="utf-8")
    for language, code in _FENCE.findall(text):
        if language in ("", "shell", "bash", "console"):
            yield from in_code(code, where)
    lines = _FENCE.sub("", text).split("\n")
    indented = False
    for number, line in enumerate(lines):
        indented = line.startswith("    ") and (indented or number == 0 or not lines[number - 1].strip())
        if indented:
            yield from in_code(line, where)
            lines[number] = ""
    yield from in_prose("\n".join(lines), where)


def in_source(path: Path) -> Iterator[Named]:
    """The command lines in the strings of a module, docstrings included; values of f-strings become `1`."""
    where = str(path.relative_to(REPOSITORY))
    source = path.read_text(encoding="utf-8")
    if _NAMES.search(source) is None:  # nine modules of ten, which need not be parsed
        return
    inner: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in ast.walk(node) if part is not node}
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            text = node.value
        else:
            continue
        if _NAMES.search(text):
            yield from in_prose(re.sub(r"\{\w*\}", "1", text), f"{where}:{node.lineno}")
