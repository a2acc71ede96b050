"""Parser of the SQL92 filter grammar: text in, tree out. Not recursive, so nesting uses no stack.

    selector   := or                            text after it is not read (FIL-14)
    or         := and ( OR and )*
    and        := equality ( AND equality )*
    equality   := comparison ( "=" comparison | "<>" comparison | IS NULL | IS NOT NULL )*
    comparison := unary ( ( ">" | ">=" | "<" | "<=" ) unary
                        | [NOT] BETWEEN unary AND unary
                        | [NOT] IN "(" STRING ( "," STRING )* ")" )*
    unary      := "+" unary | "-" unary | NOT unary | primary
    primary    := STRING | INTEGER | FLOAT | TRUE | FALSE | NULL | NAME | "(" or ")"

Two stacks: operands, and operators that wait for their right operand. After each operand exactly one more token is read. If it
cannot continue the expression, the selector ends there, and only a lexical error in that token still counts. NOT and IS do
continue it: `a = 1 NOT x` is an error, `a = 1 x` is not. See docs/spec/03 section 10.

Requirements: FIL-13, FIL-14.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from saturnmq.filter import syntax
from saturnmq.filter.errors import Mistake
from saturnmq.filter.numbers import ValueKind
from saturnmq.filter.syntax import Constant, Property, SyntaxNode
from saturnmq.filter.tokens import FLOAT, INTEGER, NAME, STRING, Token, Tokens, string_value

# Binding strength of operators. Below OR: those that wait for a closing token.
_OPEN: Final = 0
_OR: Final = 1
_AND: Final = 2
_EQUALITY: Final = 3
_COMPARISON: Final = 4
_UNARY: Final = 5

_LOW: Final = "between low"
_HIGH: Final = "between high"
_COMPARISONS: Final = frozenset({">", ">=", "<", "<="})
_OPERAND: Final = (
    "a property name",
    "a number",
    "a text in quotes",
    "TRUE",
    "FALSE",
    "NULL",
    "NOT",
    '"-"',
    '"+"',
    '"("',
)
_NEXT: Final = ('")"', "AND", "OR", "a comparison")


class _Waiting(NamedTuple):
    """An operator on the stack. inverted: NOT BETWEEN."""

    symbol: str
    binding: int
    at: int
    inverted: bool = False


class Selector(NamedTuple):
    """A condition, and the offset of the unread text after it (the length of the text if there is none)."""

    condition: SyntaxNode
    end: int


def parse(text: str) -> Selector:
    """Parse the condition at the start of the text. Raises Mistake."""
    return _Parser(text).selector()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = Tokens(text)
        self._operands: list[SyntaxNode] = []
        self._waiting: list[_Waiting] = []
        self._open = 0
        self._end = 0

    def selector(self) -> Selector:
        self._operand()
        while self._continues():
            self._operand()
        return Selector(syntax.condition(self._operands.pop()), self._end)

    def _operand(self) -> None:
        """Read everything up to and including the next literal or property."""
        while True:
            token = self._tokens.next()
            if token.kind == "+":
                continue
            if token.kind in ("-", "NOT"):
                self._waiting.append(_Waiting(token.kind, _UNARY, token.at))
            elif token.kind == "(":
                self._waiting.append(_Waiting("(", _OPEN, token.at))
                self._open += 1
            else:
                self._operands.append(_primary(token))
                return

    def _continues(self) -> bool:
        """Read what may follow an operand, up to an operator that needs another one; False at the end of the selector."""
        comparable = True  # False after IS NULL, which ends a comparison
        while True:
            if comparable:
                self._reduce(_COMPARISON)
            token = self._tokens.next()
            kind, waiting = token.kind, self._waiting
            if waiting and waiting[-1].symbol == _LOW:
                self._between_and(token)
                return True
            if comparable and kind in _COMPARISONS:
                waiting.append(_Waiting(kind, _COMPARISON, token.at))
                return True
            if comparable and kind in ("BETWEEN", "IN", "NOT"):
                if self._between_or_in(token):
                    return True
            elif kind in ("=", "<>"):
                self._reduce(_EQUALITY)
                waiting.append(_Waiting(kind, _EQUALITY, token.at))
                return True
            elif kind == "IS":
                self._reduce(_EQUALITY)
                self._is_null(token)
                comparable = False
            elif kind in ("AND", "OR"):
                binding = _AND if kind == "AND" else _OR
                self._reduce(binding)
                waiting.append(_Waiting(kind, binding, token.at))
                return True
            elif kind == ")" and self._open:
                self._reduce(_OR)
                waiting.pop()
                self._open -= 1
                comparable = True
            else:
                self._finish(token)
                return False

    def _finish(self, token: Token) -> None:
        if self._open:
            raise Mistake(f"found {token}", token.at, _NEXT)
        self._reduce(_OR)
        self._end = token.at

    # ---- operators of more than one token

    def _between_and(self, token: Token) -> None:
        """Handle the AND between the bounds of BETWEEN."""
        if token.kind != "AND":
            raise Mistake(f"found {token} behind the lower bound of BETWEEN", token.at, ("AND",))
        begun = self._waiting.pop()
        self._waiting.append(begun._replace(symbol=_HIGH, binding=_COMPARISON))

    def _between_or_in(self, token: Token) -> bool:
        """Handle [NOT] BETWEEN and [NOT] IN ( ... ); return whether an operand must follow."""
        at, inverted = token.at, token.kind == "NOT"
        if inverted:
            token = self._tokens.next()
            if token.kind not in ("BETWEEN", "IN"):
                raise Mistake(f"found {token} behind NOT", token.at, ("BETWEEN", "IN"))
        if token.kind == "BETWEEN":
            self._waiting.append(_Waiting(_LOW, _OPEN, at, inverted))
            return True
        node = syntax.one_of(at, self._operands.pop(), self._texts())
        self._operands.append(syntax.invert(at, node) if inverted else node)
        return False

    def _texts(self) -> list[str]:
        """Read ( STRING, STRING ... )."""
        self._expect("(")
        texts = []
        while True:
            token = self._tokens.next()
            if token.kind != STRING:
                raise Mistake(f"found {token} in the list of IN", token.at, ("a text in quotes",))
            texts.append(string_value(token))
            if self._expect(",", ")").kind == ")":
                return texts

    def _is_null(self, token: Token) -> None:
        inverted = False
        following = self._expect("NULL", "NOT")
        if following.kind == "NOT":
            inverted = True
            self._expect("NULL")
        node = syntax.is_null(token.at, self._operands.pop())
        self._operands.append(syntax.invert(token.at, node) if inverted else node)

    def _expect(self, *kinds: str) -> Token:
        token = self._tokens.next()
        if token.kind not in kinds:
            expected = tuple(kind if kind.isalpha() else f'"{kind}"' for kind in kinds)
            raise Mistake(f"found {token}", token.at, expected)
        return token

    # ---- stacks

    def _reduce(self, binding: int) -> None:
        """Apply all operators on top of the stack that bind at least this strongly to their operands."""
        waiting, operands = self._waiting, self._operands
        while waiting and waiting[-1].binding >= binding:
            symbol, _binding, at, inverted = waiting.pop()
            rhs = operands.pop()
            if symbol == "NOT":
                node = syntax.invert(at, rhs)
            elif symbol == "-":
                node = syntax.negate(at, rhs)
            elif symbol == _HIGH:
                low, value = operands.pop(), operands.pop()
                node = (syntax.not_between if inverted else syntax.between)(at, value, low, rhs)
            else:
                node = _binary(symbol, at, operands.pop(), rhs)
            operands.append(node)


def _binary(symbol: str, at: int, lhs: SyntaxNode, rhs: SyntaxNode) -> SyntaxNode:
    if symbol == "AND":
        return syntax.conjunction(at, lhs, rhs)
    if symbol == "OR":
        return syntax.disjunction(at, lhs, rhs)
    if symbol == "=":
        return syntax.equal(at, lhs, rhs)
    if symbol == "<>":
        return syntax.invert(at, syntax.equal(at, lhs, rhs))
    return syntax.compare(at, symbol, lhs, rhs)


def _primary(token: Token) -> SyntaxNode:
    kind, text, at = token
    if kind == NAME:
        return Property(at, text)
    if kind == STRING:
        return Constant(at, string_value(token), ValueKind.TEXT)
    if kind == INTEGER:
        return syntax.integer(at, text)
    if kind == FLOAT:
        return syntax.decimal(at, text)
    if kind in ("TRUE", "FALSE", "NULL"):
        return Constant(at, None if kind == "NULL" else kind == "TRUE", ValueKind.BOOLEAN)
    raise Mistake(f"found {token}", at, _OPERAND)
