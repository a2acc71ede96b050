"""Reference implementation of the SQL92 filter, slow and simple: parses the text for every message (FIL-09..FIL-15).

Shares no code with saturnmq.filter: its own tokenizer (a loop over characters), its own recursive descent parser, and values
typed at run time. `verdict(text, properties)` is T, F, N (null), X (evaluation fails) or E (does not compile).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

WORDS = ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS")
DIGITS = "0123456789"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_$"


class DoesNotCompile(Exception):
    pass


class Fails(Exception):
    pass


@dataclass(frozen=True)
class Typed:
    """A Java value: type is Integer, Long, Double, String or Boolean."""

    type: str
    value: Any


@dataclass
class Thing:
    """A parsed node. kind: literal, property, condition or minus. ask: evaluates it for given properties."""

    kind: str
    ask: Callable[[Mapping[str, str]], Typed | None]
    literal: Typed | None = None
    name: str = ""

    @property
    def is_condition(self) -> bool:
        return self.kind == "condition" or (
            self.kind == "literal" and (self.literal is None or self.literal.type == "Boolean")
        )


def verdict(text: str, properties: Mapping[str, str]) -> str:
    try:
        whole = Reader(text).selector()
    except DoesNotCompile:
        return "E"
    try:
        answer = whole.ask(properties)
    except Fails:
        return "X"
    return "N" if answer is None else "T" if answer.value else "F"


# ---- reading


class Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.read: list[tuple[str, str]] = []
        self.used = 0

    def peek(self, ahead: int = 0) -> str:
        while len(self.read) <= self.used + ahead:
            self.read.append(self.token())
        return self.read[self.used + ahead][0]

    def take(self, kind: str | None = None) -> str:
        found = self.peek()
        if kind is not None and found != kind:
            raise DoesNotCompile(f"{found} instead of {kind}")
        self.used += 1
        return self.read[self.used - 1][1]

    def token(self) -> tuple[str, str]:
        text = self.text
        self.blanks()
        if self.at == len(text):
            return "END", ""
        begin, char = self.at, text[self.at]
        if char in LETTERS:
            while self.at < len(text) and text[self.at] in LETTERS + DIGITS:
                self.at += 1
            word = text[begin : self.at]
            return (word.upper(), word) if word.upper() in WORDS else ("NAME", word)
        for form, kind in (
            (r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+", "FLOAT"),
            (r"0|[1-9]\d*[lL]?", "INT"),
        ):
            found = re.compile(form, re.ASCII).match(text, begin)
            if found:
                self.at = found.end()
                return kind, found.group()
        if char == "'":
            return self.quoted()
        for mark in ("<>", ">=", "<=", "=", ">", "<", "(", ")", ",", "+", "-"):
            if text.startswith(mark, begin):
                self.at += len(mark)
                return mark, mark
        raise DoesNotCompile(f"no token at {begin}")

    def quoted(self) -> tuple[str, str]:
        """Read up to the last closing quote; inside the text, quotes are doubled."""
        ends = []
        at = self.at + 1
        while at < len(self.text):
            if self.text[at] == "'":
                ends.append(at)
                if self.text[at + 1 : at + 2] != "'":
                    break
                at += 1
            at += 1
        if not ends:
            raise DoesNotCompile("open quote")
        begin, self.at = self.at, ends[-1] + 1
        return "STRING", self.text[begin + 1 : ends[-1]].replace("''", "'")

    def blanks(self) -> None:
        text = self.text
        while self.at < len(text):
            if text[self.at] in " \t\n\r\f":
                self.at += 1
            elif text.startswith("--", self.at) and (
                ends := [i for i in range(self.at + 2, len(text)) if text[i] in "\n\r"]
            ):
                self.at = ends[0] + 1
            elif text.startswith("/*", self.at) and (end := text.find("*/", self.at + 2)) >= 0:
                self.at = end + 2
            else:
                return

    # ---- the grammar, rule by rule

    def selector(self) -> Thing:
        return condition(self.or_())

    def or_(self) -> Thing:
        left = self.and_()
        while self.peek() == "OR":
            self.take()
            left = or_of(condition(left), condition(self.and_()))
        return left

    def and_(self) -> Thing:
        left = self.equality()
        while self.peek() == "AND":
            self.take()
            left = and_of(condition(left), condition(self.equality()))
        return left

    def equality(self) -> Thing:
        left = self.comparison()
        while self.peek() in ("=", "<>", "IS"):
            mark = self.take()
            if mark in ("=", "<>"):
                left = equal(left, self.comparison())
                left = not_of(left) if mark == "<>" else left
            elif self.peek() == "NOT":
                self.take()
                self.take("NULL")
                left = not_of(null_test(left))
            else:
                self.take("NULL")
                left = null_test(left)
        return left

    def comparison(self) -> Thing:
        left = self.unary()
        while self.peek() in (">", ">=", "<", "<=", "BETWEEN", "NOT", "IN"):
            mark = self.take()
            if mark in (">", ">=", "<", "<="):
                left = ordered(mark, left, self.unary())
                continue
            negative = self.read[self.used - 1][0] == "NOT"
            if negative and self.peek() not in ("BETWEEN", "IN"):
                raise DoesNotCompile("NOT what?")
            word = self.read[self.used - 1][0] if not negative else self.peek()
            if negative:
                self.take()
            if word == "IN":
                left = in_list(left, self.texts())
                left = not_of(left) if negative else left
            else:
                low = self.unary()
                self.take("AND")
                left = (outside if negative else within)(left, low, self.unary())
        return left

    def texts(self) -> list[str]:
        self.take("(")
        found = [self.take("STRING")]
        while self.peek() == ",":
            self.take()
            found.append(self.take("STRING"))
        self.take(")")
        return found

    def unary(self) -> Thing:
        if self.peek() == "+":
            self.take()
            return self.unary()
        if self.peek() == "-":
            self.take()
            return minus(self.unary())
        if self.peek() == "NOT":
            self.take()
            return not_of(condition(self.unary()))
        return self.primary()

    def primary(self) -> Thing:
        kind = self.peek()
        text = self.take()
        if kind == "(":
            inner = self.or_()
            self.take(")")
            return inner
        if kind == "NAME":
            return Thing("property", lambda properties: typed_text(properties.get(text)), name=text)
        if kind == "STRING":
            return literal(Typed("String", text))
        if kind == "INT":
            number = int(text.rstrip("lL"))
            if number > 2**63 - 1:
                raise DoesNotCompile("more than 64 bits")
            return literal(Typed("Integer" if number < 2**31 else "Long", number))
        if kind == "FLOAT":
            number = float(text)
            if math.isinf(number) or number == 0:
                raise DoesNotCompile("no double")
            return literal(Typed("Double", number))
        if kind in ("TRUE", "FALSE", "NULL"):
            return literal(None if kind == "NULL" else Typed("Boolean", kind == "TRUE"))
        raise DoesNotCompile(f"{kind} is no operand")


def typed_text(text: str | None) -> Typed | None:
    return None if text is None else Typed("String", text)


def literal(value: Typed | None) -> Thing:
    return Thing("literal", lambda _: value, literal=value)


def boolean(ask: Callable[[Mapping[str, str]], bool | None]) -> Thing:
    def typed(properties: Mapping[str, str]) -> Typed | None:
        answer = ask(properties)
        return None if answer is None else Typed("Boolean", answer)

    return Thing("condition", typed)


def truth(thing: Thing, properties: Mapping[str, str]) -> bool | None:
    answer = thing.ask(properties)
    return None if answer is None else answer.value


# ---- evaluation


def condition(thing: Thing) -> Thing:
    if thing.is_condition:
        return thing
    if thing.kind == "property":
        return boolean(lambda properties: None if thing.ask(properties) is None else False)
    raise DoesNotCompile("no condition")


def or_of(left: Thing, right: Thing) -> Thing:
    def ask(properties: Mapping[str, str]) -> bool | None:
        first = truth(left, properties)
        if first:
            return True
        second = truth(right, properties)
        return True if second else None if first is None or second is None else False

    return boolean(ask)


def and_of(left: Thing, right: Thing) -> Thing:
    def ask(properties: Mapping[str, str]) -> bool | None:
        first = truth(left, properties)
        if first is False:
            return False
        second = truth(right, properties)
        return False if second is False else None if first is None or second is None else True

    return boolean(ask)


def not_of(thing: Thing) -> Thing:
    def ask(properties: Mapping[str, str]) -> bool | None:
        answer = truth(thing, properties)
        return None if answer is None else not answer

    return boolean(ask)


def null_test(thing: Thing) -> Thing:
    return boolean(lambda properties: thing.ask(properties) is None)


def minus(thing: Thing) -> Thing:
    def ask(properties: Mapping[str, str]) -> Typed | None:
        value = thing.ask(properties)
        if value is None or value.type not in ("Integer", "Long", "Double"):
            return None
        return Typed(value.type, -value.value)

    return Thing("minus", ask)


def in_list(thing: Thing, texts: list[str]) -> Thing:
    if thing.kind != "property":
        raise DoesNotCompile("IN on no property")

    def ask(properties: Mapping[str, str]) -> bool | None:
        value = thing.ask(properties)
        return None if value is None else value.value in texts

    return boolean(ask)


def equal(left: Thing, right: Thing) -> Thing:
    for side in (left, right):
        if side.kind == "literal" and side.literal is None:
            raise DoesNotCompile("= NULL")
    if left.kind == right.kind == "literal" and left.is_condition and not right.is_condition:
        raise DoesNotCompile("TRUE = 1")

    def ask(properties: Mapping[str, str]) -> bool | None:
        first, second = left.ask(properties), right.ask(properties)
        if first is None or second is None:
            return True if first is second else None if first is None else False
        return first == second or order(first, second) == 0

    return boolean(ask)


def ordered(mark: str, left: Thing, right: Thing) -> Thing:
    for side in (left, right):
        if side.is_condition or (side.kind == "literal" and side.literal is not None and side.literal.type == "String"):
            raise DoesNotCompile("cannot be compared")

    def ask(properties: Mapping[str, str]) -> bool | None:
        first = left.ask(properties)
        if first is None:
            return None
        second = right.ask(properties)
        if second is None:
            return None
        if first.type == second.type == "String":
            first, second = (Typed("Double", number("Double", each.value)) for each in (first, second))
        answer = order(first, second)
        return {">": answer > 0, ">=": answer >= 0, "<": answer < 0, "<=": answer <= 0}[mark]

    return boolean(ask)


def within(value: Thing, low: Thing, high: Thing) -> Thing:
    node = and_of(ordered(">=", value, low), ordered("<=", value, high))
    if low.kind == high.kind == "literal":
        assert low.literal is not None and high.literal is not None
        if order(high.literal, low.literal) < 0:
            raise DoesNotCompile("bounds in the wrong order")
    return node


def outside(value: Thing, low: Thing, high: Thing) -> Thing:
    return or_of(ordered("<", value, low), ordered(">", value, high))


def order(first: Typed, second: Typed) -> int:
    """Java's compareTo after its conversions; -1 for incompatible types."""
    types = (first.type, second.type)
    if first.type == second.type:
        return sign(first, second)
    if types == ("Boolean", "String"):
        raise Fails("a Boolean is cast to String")
    if types == ("String", "Boolean"):
        return sign(Typed("Boolean", first.value.casefold() == "true"), second)
    if "Boolean" in types:
        return -1
    if "String" in types:
        kind = types[1] if types[0] == "String" else types[0]
        first, second = (Typed(kind, number(kind, e.value)) if e.type == "String" else e for e in (first, second))
        return sign(first, second)
    if "Double" in types:
        return sign(Typed("Double", float(first.value)), Typed("Double", float(second.value)))
    return sign(Typed("Long", first.value), Typed("Long", second.value))


def sign(first: Typed, second: Typed) -> int:
    one, two = first.value, second.value
    if first.type == "Double" and (math.isnan(one) or math.isnan(two) or one == two):
        one, two = (struct.unpack(">q", struct.pack(">d", math.nan if math.isnan(e) else e))[0] for e in (one, two))
    return -1 if one < two else 1 if one > two else 0


def number(kind: str, text: str) -> int | float:
    if kind == "Double":
        trimmed = re.sub(r"^[\x00-\x20]+|[\x00-\x20]+\Z", "", text)
        named = re.fullmatch(r"[+-]?(NaN|Infinity)", trimmed)
        if named:
            return math.copysign(math.inf if named.group(1) == "Infinity" else math.nan, -1 if trimmed[0] == "-" else 1)
        if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?", trimmed, re.ASCII):
            return float(trimmed.rstrip("fFdD"))
        hexadecimal = re.fullmatch(
            r"([+-]?)0[xX]([0-9a-fA-F]*)\.?([0-9a-fA-F]*)[pP]([+-]?\d+)[fFdD]?", trimmed, re.ASCII
        )
        if hexadecimal and hexadecimal.group(2) + hexadecimal.group(3):
            minus_sign, whole, part, power = hexadecimal.groups()
            return (-1 if minus_sign == "-" else 1) * scaled(int(whole + part, 16), int(power) - 4 * len(part))
        raise Fails(f"{text!r} is no Double")
    bits = 32 if kind == "Integer" else 64
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or not all(digit.isdecimal() and ord(digit) < 0x10000 for digit in digits):
        raise Fails(f"{text!r} is no {kind}")
    value = 0
    for digit in digits:
        value = value * 10 + int(digit)
    value = -value if text[0] == "-" else value
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise Fails(f"{text!r} is no {kind}")
    return value


def scaled(mantissa: int, power: int) -> float:
    """The nearest double, from exact fractions with a single rounding."""
    top = mantissa.bit_length() + power
    if mantissa == 0 or top < -1100:
        return 0.0
    if top > 1100:
        return math.inf
    try:
        return float(Fraction(mantissa) * Fraction(2) ** power)
    except OverflowError:
        return math.inf
