"""Tokens of the SQL92 filter language.

    blank    := space | \\t | \\n | \\r | \\f
    comment  := "--" to a line end, which must be there | "/*" ... "*/"
    keyword  := NOT AND OR BETWEEN IN TRUE FALSE NULL IS, in any case
    INTEGER  := 0 | [1-9][0-9]* [lL]?
    FLOAT    := d+ "." d* exp? | "." d+ exp? | d+ exp          exp := [eE] [+-]? d+
    STRING   := "'" ( "''" | any character but "'" )* "'"
    NAME     := [A-Za-z_$] [A-Za-z0-9_$]*
    mark     := = <> > >= < <= ( ) , + -

The longest match wins, and a keyword wins over a name. Tokens are read only as the parser requests them: text after the end of
the condition may be anything (FIL-14). See docs/spec/03 section 10.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from saturnmq.filter.errors import Mistake, shown

INTEGER: Final = "INTEGER"
FLOAT: Final = "FLOAT"
STRING: Final = "STRING"
NAME: Final = "NAME"
END: Final = "END"
TOKENS_MAX: Final = 8192  # LIM-12: a longer expression would hold the event loop for more than 50 ms
KEYWORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})

_BLANKS: Final = re.compile(r"[ \t\n\r\f]*")
_LINE_COMMENT: Final = re.compile(r"--[^\n\r]*[\n\r]")
_BLOCK_COMMENT: Final = re.compile(r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/")
# Includes preceding blanks. Two minus signs may start a comment, so they are left to the slow path.
_TOKEN: Final = re.compile(
    r"""[ \t\n\r\f]*+(?:(?P<FLOAT>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<INTEGER>0|[1-9][0-9]*[lL]?)
    |(?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<STRING>'[^']*(?:''[^']*)*')
    |(?P<MARK><>|>=|<=|[=<>(),+]|-(?!-)))""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """kind is a keyword in capitals, a symbol, or INTEGER, FLOAT, STRING, NAME, END. at: offset in the text."""

    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        return "the end of the text" if self.kind == END else shown(self.text)


class Tokens:
    """The tokens of one text, in order, in time linear in the length of the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._tokens_remaining = TOKENS_MAX
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))

    def next(self) -> Token:
        """The next token; at the end always END. Raises Mistake where no token begins, and beyond TOKENS_MAX."""
        self._tokens_remaining -= 1
        if self._tokens_remaining < 0:
            raise Mistake(f"the expression has more than {TOKENS_MAX} words, numbers and marks", self._at)
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            return self._after_comments()
        self._at = match.end()
        kind = match.lastgroup
        assert kind is not None
        text = match[kind]
        if kind == "MARK":
            return Token(text, text, self._at - len(text))
        if kind == NAME and (capitals := text.upper()) in KEYWORDS:
            kind = capitals
        return Token(kind, text, self._at - len(text))

    def _after_comments(self) -> Token:
        """Slow path of `next`: a comment, two minus signs, the end, or an invalid character comes next."""
        before, self._at = self._at, self._skip(self._at)
        at = self._at
        if at == len(self._text):
            return Token(END, "", at)
        if self._text.startswith("--", at):
            self._at += 1
            return Token("-", "-", at)
        if at == before or _TOKEN.match(self._text, at) is None:
            raise Mistake(self._no_token(at), at)
        return self.next()

    def _skip(self, at: int) -> int:
        """Offset after blanks and comments. A "--" without a following line end is two minus signs."""
        text = self._text
        while True:
            blanks = _BLANKS.match(text, at)
            assert blanks is not None
            at = blanks.end()
            comment = None
            if text.startswith("--", at) and at < self._last_line_end:
                comment = _LINE_COMMENT.match(text, at)
            elif text.startswith("/*", at):
                comment = _BLOCK_COMMENT.match(text, at)
            if comment is None:
                return at
            at = comment.end()

    def _no_token(self, at: int) -> str:
        if self._text[at] == "'":
            return "the text in quotes has no closing quote"
        if self._text.startswith("/*", at):
            return "the comment has no end"
        return f"character {self._text[at]!r} is not part of the language"


def string_value(token: Token) -> str:
    """The text between the quotes of a STRING; '' stands for one quote."""
    return token.text[1:-1].replace("''", "'")
