"""Generator of random filter expressions and properties, deterministic per seed: mostly valid, some with deliberate errors."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

NAMES = ("a", "b", "c", "A", "_x", "$y")
# Property values: numbers in all notations that Java accepts, and near misses.
VALUES = (
    "0", "1", "5", "-5", "+7", "007", "5.0", "5.5", "1e3", "abc", "true", "TRUE", "false", " 5 ", " 5.0\t", "", "null", "'",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "NaN", "-NaN", "NaNf", "Infinity", "-Infinity", "-0", "-0.0", "0.0", "0x1p3", "0x.8p1", "0xp1", "0x1p99999999999", "0x10",
    "5f", "5d", "5L", "5.", ".5", ".", "1e", "1e400", "-1e400", "1e-400", "1_000", "١٢", "1٣", "𝟙", "+", "-", "\u00a05",
    "1" * 45, "0" * 50 + "7", "5\u0000",
)  # fmt: skip
GOOD_NUMBERS = ("0", "1", "5", "7", "5.0", "5.5", "1e3", "5.", "1E-3", ".5", "2147483647", "2147483648")
NUMBERS = (
    *GOOD_NUMBERS, "9223372036854775807", "9223372036854775808", "5L", "2147483647l", "0l", "007", "0.0", "1e400", "1e-400",
    "4.9e-324", "2e-324", "1e", "0x10", "1.2.3", "00.5",
)  # fmt: skip
GOOD_TEXTS = ("'abc'", "''", "'5'", "'5.0'", "'true'", "'it''s'")
TEXTS = (*GOOD_TEXTS, "'x", "'a' 'b'", "'''", "'é'", "'١٢'", "'NaN'")
JUNK = (
    " garbage", " &", " . ", " -- c", " -- c\n", " /* c */", " /* c", " 'x", " )", " (", " ,", " !", " a.b", " \u212a", "--", "/",
    "*", "é", "\u0000", " \f", " ;", "\u00a0",
)  # fmt: skip
SPLINTERS = (" AND ", " OR ", " NOT ", " = ", " IS NULL ", "(", ")", " IN ('x') ", " BETWEEN 1 AND 2 ", "K", "ı")
ORDER = (" > ", " >= ", " < ", " <= ")
EQUALITY = (" = ", " <> ")
IN = (" IN ", " not in ")
BETWEEN = (" BETWEEN ", " not between ")


def pairs(seed: int, expressions: int, each: int = 3) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield `expressions` texts, each with `each` sets of properties."""
    random = Random(seed)
    make = _Maker(random)
    for _ in range(expressions):
        text = make.expression()
        for _ in range(each):
            yield text, {name: random.choice(VALUES) for name in NAMES if random.random() < 0.6}


class _Maker:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.pick = random.choice

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def expression(self) -> str:
        kind = self.random.random()
        if kind < 0.6:
            return self.sound(self.pick((0, 1, 2, 3)))
        if kind < 0.7:
            return self.damaged(self.sound(2))
        return self.damaged(self.any_or(self.pick((0, 1, 1, 2))))

    # ---- sound: the types match, most of the time

    def sound(self, depth: int) -> str:
        kind = self.random.random()
        if depth > 0 and kind < 0.53:
            inner = self.sound(depth - 1)
            if kind < 0.35:
                return f"({inner}{self.pick((' AND ', ' OR '))}{self.sound(depth - 1)})"
            if kind < 0.45:
                return f"NOT ({inner})"
            if kind < 0.50:
                other = self.pick((self.pick(NAMES), f"({self.sound(0)})", "TRUE", "FALSE", "5", "'true'"))
                return f"({inner}){self.pick(EQUALITY)}{other}"
            return f"({inner}){self.pick((' IS NULL', ' IS NOT NULL'))}"
        return self.leaf()

    def leaf(self) -> str:
        kind, name = self.random.random(), self.pick(NAMES)
        if kind < 0.2:
            return name + self.pick(ORDER) + (self.number() if self.chance(0.7) else self.pick(NAMES))
        if kind < 0.3:
            right = self.value() if self.chance(0.7) else "-" + self.pick((*NAMES, "(a=b)", "-c"))
            return self.number() + self.pick(ORDER) + right
        if kind < 0.5:
            right = self.pick((self.number(), self.pick(GOOD_TEXTS), self.pick(NAMES), "TRUE", "FALSE"))
            return name + self.pick(EQUALITY) + right
        if kind < 0.6:
            return (
                self.pick((self.number(), self.pick(GOOD_TEXTS), "TRUE", "FALSE")) + self.pick(EQUALITY) + self.value()
            )
        if kind < 0.7:
            return f"{name}{self.pick(IN)}({self.texts()})"
        if kind < 0.82:
            low, high = (self.pick((self.number(), self.pick(NAMES))) for _ in range(2))
            return f"{name}{self.pick(BETWEEN)}{low} AND {high}"
        if kind < 0.92:
            return name + self.pick((" IS NULL", " is not null"))
        odd = ("TRUE", "FALSE", "NULL", "NULL IS NULL", name, f"NOT {name}", "1 = TRUE", "TRUE = TRUE", "TRUE = -1")
        return self.pick((*odd, "'x' IS NULL", f"5 BETWEEN 1 AND {name}"))

    def value(self) -> str:
        return self.pick(NAMES) if self.chance(0.8) else self.pick(GOOD_NUMBERS)

    def number(self) -> str:
        return self.pick(("", "", "-", "+", "- -", " - ")) + self.pick(GOOD_NUMBERS)

    def texts(self) -> str:
        return ",".join(self.pick(GOOD_TEXTS) for _ in range(self.random.randint(1, 7)))

    # ---- any: only the grammar is respected, and not always

    def any_or(self, depth: int) -> str:
        return " OR ".join(self.any_and(depth) for _ in range(self.pick((1, 1, 1, 2, 3))))

    def any_and(self, depth: int) -> str:
        return " AND ".join(self.any_equality(depth) for _ in range(self.pick((1, 1, 1, 2, 3))))

    def any_equality(self, depth: int) -> str:
        text = self.any_comparison(depth)
        while self.chance(0.4):
            if self.chance(0.6):
                text += self.pick(EQUALITY) + self.any_comparison(depth)
            else:
                text += self.pick((" IS NULL", " IS NOT NULL", " is null", " IS", " IS NOT", " IS TRUE"))
        return text

    def any_comparison(self, depth: int) -> str:
        text = self.any_unary(depth)
        while self.chance(0.45):
            kind = self.random.random()
            if kind < 0.5:
                text += self.pick(ORDER) + self.any_unary(depth)
            elif kind < 0.7:
                text += f"{self.pick(BETWEEN)}{self.any_unary(0)} AND {self.any_unary(0)}"
            elif kind < 0.9:
                text += f"{self.pick(IN)}({self.texts()})"
            else:
                text += " " + self.pick(("NOT", "NOT x", "NOT &", "LIKE 'x'"))
        return text

    def any_unary(self, depth: int) -> str:
        kind = self.random.random()
        if kind < 0.15:
            return self.pick(("-", "- ", "+", "NOT ")) + self.any_unary(depth)
        if kind < 0.25 and depth > 0:
            return f"({self.any_or(depth - 1)})"
        if kind < 0.60:
            return self.pick(NAMES)
        if kind < 0.82:
            return self.pick(NUMBERS)
        if kind < 0.92:
            return self.pick(TEXTS)
        return self.pick(("TRUE", "FALSE", "NULL", "true", "Null"))

    def damaged(self, text: str) -> str:
        kind, at = self.random.random(), self.random.randint(0, len(text))
        if kind < 0.6:
            return text
        if kind < 0.72:
            return text + self.pick(JUNK)
        if kind < 0.84:
            return text[:at] + self.pick(JUNK) + text[at:]
        if kind < 0.92:
            return text[:at] + text[at + self.random.randint(1, 4) :]
        return text[:at] + self.pick(SPLINTERS) + text[at:]
