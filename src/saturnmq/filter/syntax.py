"""The expression tree, and the checks that reject invalid trees while they are built.

Functions take operands in text order and return a node or raise Mistake; they read neither tokens nor messages. Boolean nodes are
those with `boolean` true; a property next to AND, OR, NOT, or alone, becomes `Present`. Chains of AND, OR, NOT and minus are
folded, so that depth counts true nesting only; it is bounded (LIM-12).

Requirements: FIL-13, LIM-12.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from saturnmq.filter.errors import Mistake
from saturnmq.filter.numbers import INT32_MAX, INT64_MAX, ValueKind, compare_doubles

DEPTH_MAX: Final = 64
_DOUBLE_MIN: Final = 5e-324

Value = bool | int | float | str | None


@dataclass(slots=True)
class SyntaxNode:
    """A tree node. at: offset of the operator or operand in the text. depth: 1 for a leaf."""

    at: int
    depth: int = field(init=False, default=1)

    @property
    def boolean(self) -> bool:
        """Whether the node may be an operand of AND, OR, NOT, or the whole expression."""
        return True


@dataclass(slots=True)
class Constant(SyntaxNode):
    """A literal; NULL is (None, BOOLEAN)."""

    value: Value
    kind: ValueKind

    @property
    def boolean(self) -> bool:
        return self.kind is ValueKind.BOOLEAN


@dataclass(slots=True)
class Property(SyntaxNode):
    """The text of a property; null when absent."""

    name: str

    @property
    def boolean(self) -> bool:
        return False


@dataclass(slots=True)
class Negated(SyntaxNode):
    """Minus: the negative of a number, null for anything else."""

    operand: SyntaxNode

    @property
    def boolean(self) -> bool:
        return False


@dataclass(slots=True)
class Present(SyntaxNode):
    """A bare property as a condition: null when absent, otherwise false, whatever its text (FIL-11)."""

    name: str


@dataclass(slots=True)
class Compare(SyntaxNode):
    """A comparison; symbol is one of > >= < <=."""

    symbol: str
    lhs: SyntaxNode
    rhs: SyntaxNode


@dataclass(slots=True)
class Equal(SyntaxNode):
    lhs: SyntaxNode
    rhs: SyntaxNode


@dataclass(slots=True)
class IsNull(SyntaxNode):
    operand: SyntaxNode


@dataclass(slots=True)
class Not(SyntaxNode):
    operand: SyntaxNode


@dataclass(slots=True)
class AllOf(SyntaxNode):
    """AND of two or more parts, in text order."""

    parts: deque[SyntaxNode]


@dataclass(slots=True)
class AnyOf(SyntaxNode):
    """OR of two or more parts, in text order."""

    parts: deque[SyntaxNode]


@dataclass(slots=True)
class OneOf(SyntaxNode):
    """IN: whether the property has one of the texts."""

    name: str
    texts: frozenset[str]


# ---- leaves


def integer(at: int, text: str) -> Constant:
    """An integer literal: 32 bits if it fits, else 64."""
    digits = text.rstrip("lL")
    value = int(digits) if len(digits) <= len(str(INT64_MAX)) else INT64_MAX + 1
    if value > INT64_MAX:
        raise Mistake("the integer does not fit 64 bits", at)
    return Constant(at, value, ValueKind.INT32 if value <= INT32_MAX else ValueKind.INT64)


def decimal(at: int, text: str) -> Constant:
    """A literal with point or exponent; zero and infinity are rejected, as in Apache RocketMQ."""
    value = float(text)
    if value == float("inf"):
        raise Mistake("the number is too large for a double", at)
    if value < _DOUBLE_MIN:
        raise Mistake("the number is zero or too small for a double; write 0 for zero", at)
    return Constant(at, value, ValueKind.DOUBLE)


# ---- nodes


def condition(node: SyntaxNode) -> SyntaxNode:
    """Convert the node to a boolean one. Raises Mistake if that is not possible."""
    if node.boolean:
        return node
    if isinstance(node, Property):
        return Present(node.at, node.name)
    operand = node.kind.value if isinstance(node, Constant) else "a number"
    raise Mistake(f"{operand} is no condition; compare it with something", node.at)


def conjunction(at: int, lhs: SyntaxNode, rhs: SyntaxNode) -> SyntaxNode:
    """lhs AND rhs."""
    return _chain(AllOf, at, condition(lhs), condition(rhs))


def disjunction(at: int, lhs: SyntaxNode, rhs: SyntaxNode) -> SyntaxNode:
    """lhs OR rhs."""
    return _chain(AnyOf, at, condition(lhs), condition(rhs))


def invert(at: int, operand: SyntaxNode) -> SyntaxNode:
    """NOT operand."""
    operand = condition(operand)
    return operand.operand if isinstance(operand, Not) else _over(Not(at, operand), operand)


def negate(at: int, operand: SyntaxNode) -> SyntaxNode:
    """- operand. A double minus is kept, since a signed number is not a literal; a third and fourth minus cancel each other."""
    if isinstance(operand, Negated) and isinstance(operand.operand, Negated):
        return operand.operand
    return _over(Negated(at, operand), operand)


def compare(at: int, symbol: str, lhs: SyntaxNode, rhs: SyntaxNode) -> SyntaxNode:
    """Relational comparison. Neither side may be a non-numeric literal or a condition."""
    for side in (lhs, rhs):
        if isinstance(side, Constant) and not side.kind.is_number:
            raise Mistake(f"a literal beside {symbol} must be a number, not {_name(side)}", side.at)
        if side.boolean:
            raise Mistake(f"a condition cannot be compared by {symbol}", side.at)
    return _over(Compare(at, symbol, lhs, rhs), lhs, rhs)


def between(at: int, value: SyntaxNode, low: SyntaxNode, high: SyntaxNode) -> SyntaxNode:
    """value >= low AND value <= high. Literal bounds in the wrong order are rejected."""
    if isinstance(low, Constant) and isinstance(high, Constant) and None in (low.value, high.value):
        raise Mistake("a bound of BETWEEN cannot be NULL", at)
    node = conjunction(at, compare(at, ">=", value, low), compare(at, "<=", value, high))
    if isinstance(low, Constant) and isinstance(high, Constant) and _number_order(high, low) < 0:
        raise Mistake(f"BETWEEN needs the lower bound first: {low.value} is above {high.value}", low.at)
    return node


def not_between(at: int, value: SyntaxNode, low: SyntaxNode, high: SyntaxNode) -> SyntaxNode:
    """value < low OR value > high."""
    return disjunction(at, compare(at, "<", value, low), compare(at, ">", value, high))


def one_of(at: int, value: SyntaxNode, texts: list[str]) -> SyntaxNode:
    """value IN (texts); value must be a property."""
    if not isinstance(value, Property):
        raise Mistake("only a property can stand before IN", value.at)
    return OneOf(at, value.name, frozenset(texts))


def equal(at: int, lhs: SyntaxNode, rhs: SyntaxNode) -> SyntaxNode:
    """lhs = rhs."""
    for side in (lhs, rhs):
        if isinstance(side, Constant) and side.value is None:
            raise Mistake("nothing equals NULL; write IS NULL or IS NOT NULL", side.at)
    if isinstance(lhs, Constant) and isinstance(rhs, Constant) and lhs.boolean and not rhs.boolean:
        raise Mistake(f"{_name(lhs)} cannot be compared with {_name(rhs)}", at)
    return _over(Equal(at, lhs, rhs), lhs, rhs)


def is_null(at: int, operand: SyntaxNode) -> SyntaxNode:
    """operand IS NULL."""
    return _over(IsNull(at, operand), operand)


# ---- helpers


def _over(node: SyntaxNode, *operands: SyntaxNode) -> SyntaxNode:
    """Set the depth of the node. Raises Mistake beyond DEPTH_MAX."""
    node.depth = 1 + max(operand.depth for operand in operands)
    _check_depth(node)
    return node


def _check_depth(node: SyntaxNode) -> None:
    if node.depth > DEPTH_MAX:
        raise Mistake(f"nested deeper than {DEPTH_MAX} levels", node.at)


def _chain(cls: type[AllOf] | type[AnyOf], at: int, lhs: SyntaxNode, rhs: SyntaxNode) -> SyntaxNode:
    """Combine both sides under one node. Sides that are chains of the same class are merged, the shorter into the longer."""
    lhs_parts = lhs.parts if isinstance(lhs, cls) else None
    rhs_parts = rhs.parts if isinstance(rhs, cls) else None
    if lhs_parts is None and rhs_parts is None:
        return _over(cls(at, deque((lhs, rhs))), lhs, rhs)
    if lhs_parts is not None and (rhs_parts is None or len(lhs_parts) >= len(rhs_parts)):
        joined = lhs
        lhs_parts.extend(rhs_parts if rhs_parts is not None else (rhs,))
    else:
        assert rhs_parts is not None
        joined = rhs
        rhs_parts.extendleft(reversed(lhs_parts) if lhs_parts is not None else (lhs,))
    joined.depth = max(
        lhs.depth if lhs_parts is not None else lhs.depth + 1, rhs.depth if rhs_parts is not None else rhs.depth + 1
    )
    _check_depth(joined)
    return joined


def _number_order(lhs: Constant, rhs: Constant) -> int:
    first, second = lhs.value, rhs.value
    assert isinstance(first, int | float) and isinstance(second, int | float)
    if isinstance(first, int) and isinstance(second, int):
        return first - second
    return compare_doubles(float(first), float(second))


def _name(constant: Constant) -> str:
    if constant.value is None:
        return "NULL"
    if constant.kind is ValueKind.BOOLEAN:
        return str(constant.value).upper()
    return str(constant.kind.value)
