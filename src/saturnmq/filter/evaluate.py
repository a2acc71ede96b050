"""Compiles an expression tree to closures over a message's properties.

`condition_of(node)` returns a function of `properties.get` that returns True, False or None (unknown), and raises PropertyError
where Apache RocketMQ's evaluation fails: the message then does not match (FIL-10). Operands are evaluated in the order of Apache
RocketMQ, because the first operand may hide an error in the second.

Types are resolved at compile time, not per message: properties are text, numbers come from literals only.

Requirements: FIL-09..FIL-12, FIL-15.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from saturnmq.filter import syntax
from saturnmq.filter.errors import PropertyError
from saturnmq.filter.numbers import ValueKind, boolean_of, compare_doubles, double_of, int32_of, int64_of
from saturnmq.filter.syntax import Constant, Negated, Property, SyntaxNode

Get = Callable[[str], str | None]
Condition = Callable[[Get], bool | None]
Operand = Callable[[Get], Any]
Settle = Callable[[Any, Any], bool]

_READERS: Final[dict[ValueKind, Callable[[str], int | float]]] = {
    ValueKind.INT32: int32_of,
    ValueKind.INT64: int64_of,
    ValueKind.DOUBLE: double_of,
}
_RELATIONS: Final[dict[str, Settle]] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def condition_of(node: SyntaxNode) -> Condition:
    """Compile a boolean node."""
    match node:
        case syntax.Compare():
            return _compare(node)
        case syntax.Equal():
            return _equal(node)
        case syntax.AllOf():
            return _all_of([condition_of(part) for part in node.parts])
        case syntax.AnyOf():
            return _any_of([condition_of(part) for part in node.parts])
        case syntax.Not():
            return _not(condition_of(node.operand))
        case syntax.IsNull():
            return _is_null(_operand(node.operand))
        case syntax.OneOf():
            return _one_of(node.name, node.texts)
        case syntax.Present():
            name = node.name
            return lambda get: None if get(name) is None else False
        case Constant(value=bool() | None as value):
            return lambda _get: value
        case _:
            raise AssertionError(f"{node} is no condition")


def names_in(node: SyntaxNode) -> frozenset[str]:
    """The property names that the expression reads."""
    names: set[str] = set()
    pending = [node]
    while pending:
        match pending.pop():
            case Property(name=name) | syntax.Present(name=name) | syntax.OneOf(name=name):
                names.add(name)
            case syntax.Compare(lhs=lhs, rhs=rhs) | syntax.Equal(lhs=lhs, rhs=rhs):
                pending += (lhs, rhs)
            case syntax.AllOf(parts=parts) | syntax.AnyOf(parts=parts):
                pending += parts
            case syntax.Not(operand=operand) | syntax.IsNull(operand=operand) | Negated(operand=operand):
                pending.append(operand)
    return frozenset(names)


# ---- three-valued logic


def _all_of(parts: list[Condition]) -> Condition:
    def evaluate(get: Get) -> bool | None:
        answer: bool | None = True
        for part in parts:
            value = part(get)
            if value is None:
                answer = None
            elif not value:
                return False
        return answer

    return evaluate


def _any_of(parts: list[Condition]) -> Condition:
    def evaluate(get: Get) -> bool | None:
        answer: bool | None = False
        for part in parts:
            value = part(get)
            if value:
                return True
            if value is None:
                answer = None
        return answer

    return evaluate


def _not(operand: Condition) -> Condition:
    def evaluate(get: Get) -> bool | None:
        value = operand(get)
        return None if value is None else not value

    return evaluate


def _is_null(operand: Operand) -> Condition:
    return lambda get: operand(get) is None


def _one_of(name: str, texts: frozenset[str]) -> Condition:
    def evaluate(get: Get) -> bool | None:
        text = get(name)
        return None if text is None else text in texts

    return evaluate


# ---- operands


def kind_of(node: SyntaxNode) -> ValueKind:
    """The type of an operand's non-null values; NOTHING if it is always null."""
    match node:
        case Constant(value=None):
            return ValueKind.NOTHING
        case Constant(kind=kind):
            return kind
        case Property():
            return ValueKind.TEXT
        case Negated(operand=operand):
            kind = kind_of(operand)
            return kind if kind.is_number else ValueKind.NOTHING
        case _:
            return ValueKind.BOOLEAN


def _operand(node: SyntaxNode) -> Operand:
    match node:
        case Constant(value=value):
            return lambda _get: value
        case Property(name=name):
            return lambda get: get(name)
        case Negated(operand=operand):
            number = _number(node)
            return _null_after(_operand(operand)) if number is None else lambda _get: number
        case _:
            return condition_of(node)


def _null_after(operand: Operand) -> Operand:
    """Minus of a non-number: null, but errors of the operand are raised."""

    def evaluate(get: Get) -> None:
        operand(get)

    return evaluate


def _number(node: SyntaxNode) -> int | float | None:
    """The value of a signed number literal, None for anything else."""
    if isinstance(node, Negated):
        value = _number(node.operand)
        return None if value is None else -value
    if isinstance(node, Constant) and isinstance(node.value, int | float) and node.kind.is_number:
        return node.value
    return None


# ---- comparisons


def _compare(node: syntax.Compare) -> Condition:
    relation = _RELATIONS[node.symbol]
    number = _number(node.rhs)
    if isinstance(node.lhs, Property) and number is not None:
        return _property_against_number(node.lhs.name, relation, kind_of(node.rhs), number)
    lhs, rhs = _operand(node.lhs), _operand(node.rhs)
    settle = _settle_order(relation, kind_of(node.lhs), kind_of(node.rhs))

    def evaluate(get: Get) -> bool | None:
        first = lhs(get)
        if first is None:
            return None
        second = rhs(get)
        return None if second is None else settle(first, second)

    return evaluate


def _property_against_number(name: str, relation: Settle, kind: ValueKind, number: int | float) -> Condition:
    """Fast path of the common case. Only doubles can be NaN, which Python's operators order differently from Java."""
    read = _READERS[kind]
    settle = relation if kind is not ValueKind.DOUBLE else _by_order(relation)

    def evaluate(get: Get) -> bool | None:
        text = get(name)
        return None if text is None else settle(read(text), number)

    return evaluate


def _settle_order(relation: Settle, lhs: ValueKind, rhs: ValueKind) -> Settle:
    """The function that compares two non-null values with > >= < <=."""
    if lhs is ValueKind.TEXT and rhs is ValueKind.TEXT:
        by_order = _by_order(relation)
        return lambda first, second: by_order(double_of(first), double_of(second))
    if lhs is ValueKind.TEXT and rhs.is_number:
        read, ordered = _READERS[rhs], _by_order(relation)
        return lambda first, second: ordered(read(first), second)
    if rhs is ValueKind.TEXT and lhs.is_number:
        read, ordered = _READERS[lhs], _by_order(relation)
        return lambda first, second: ordered(first, read(second))
    return _by_order(relation)


def _by_order(relation: Settle) -> Settle:
    """Compare two integers directly, anything else as doubles in Java's total order."""

    def settle(first: int | float, second: int | float) -> bool:
        if isinstance(first, int) and isinstance(second, int):
            return relation(first, second)
        return relation(compare_doubles(float(first), float(second)), 0)

    return settle


def _equal(node: syntax.Equal) -> Condition:
    if isinstance(node.lhs, Property) and isinstance(node.rhs, Constant) and node.rhs.kind is ValueKind.TEXT:
        return _property_is_text(node.lhs.name, node.rhs.value)
    number = _number(node.rhs)
    if isinstance(node.lhs, Property) and number is not None:
        return _property_is_number(node.lhs.name, _READERS[kind_of(node.rhs)], number)
    lhs, rhs = _operand(node.lhs), _operand(node.rhs)
    settle = _settle_equality(kind_of(node.lhs), kind_of(node.rhs))

    def evaluate(get: Get) -> bool | None:
        first, second = lhs(get), rhs(get)
        if first is None:
            return True if second is None else None
        return False if second is None else settle(first, second)

    return evaluate


def _property_is_text(name: str, literal: object) -> Condition:
    def evaluate(get: Get) -> bool | None:
        text = get(name)
        return None if text is None else text == literal

    return evaluate


def _property_is_number(name: str, read: Callable[[str], int | float], number: int | float) -> Condition:
    def evaluate(get: Get) -> bool | None:
        text = get(name)
        return None if text is None else read(text) == number

    return evaluate


def _settle_equality(lhs: ValueKind, rhs: ValueKind) -> Settle:
    """The function that compares two non-null values with =."""
    if lhs.is_number and rhs.is_number:
        return _by_order(operator.eq)
    if lhs is ValueKind.TEXT and rhs.is_number:  # a text literal; a property is handled in _equal
        read = _READERS[rhs]
        return lambda first, second: bool(read(first) == second)
    if lhs.is_number and rhs is ValueKind.TEXT:
        read = _READERS[lhs]
        return lambda first, second: bool(first == read(second))
    if lhs is ValueKind.TEXT and rhs is ValueKind.BOOLEAN:
        return lambda first, second: boolean_of(first) is second
    if lhs is ValueKind.BOOLEAN and rhs is ValueKind.TEXT:
        return _reject_boolean_before_text
    if lhs is rhs:  # two texts, two booleans
        return operator.eq
    return lambda _first, _second: False  # a number and a boolean


def _reject_boolean_before_text(_first: bool, second: str) -> bool:
    raise PropertyError("a condition on the left of = cannot be compared with a text; write the text first")
