"""Finds the places of a module where a small defect can be planted, and plants one.

A defect replaces the text of one node of the syntax tree; all other lines stay as they are, so that a line has the same
number with and without the defect. Not touched: docstrings, annotations, decorators, log calls, what a raised error says,
f-strings, texts with a space or beyond ASCII, tables of texts, `__slots__`, `__all__`, `__repr__` and code under TYPE_CHECKING.
A replacement that raises TypeError wherever it runs, such as `-` between texts, is left out too: every test that reaches it
notices it, which would only flatter the figure.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COMPARISONS: Final[Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
ARITHMETIC: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
LOG_NAMES: Final = {"log", "_log", "logger", "_logger", "LOG", "logging", "warnings"}
LOG_METHODS: Final = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn"}
# Functions whose first two arguments are of different kinds, or may be swapped without effect.
FIXED_ORDER: Final = {
    "isinstance", "issubclass", "getattr", "setattr", "hasattr", "delattr", "cast", "invariant", "min", "max", "field",
    "namedtuple", "NewType", "TypeVar", "partial", "map", "filter", "zip", "pack_into", "unpack_from", "from_bytes", "to_bytes",
}  # fmt: skip
# The text of these calls names something for people or for the type checker.
SILENT_CALLS: Final = {"cast", "TypeVar", "NewType", "getLogger", "ParamSpec", "print"}
NEAR_MAX: Final = 10  # a number up to this becomes its neighbour, a larger one twice or half as large
TABLES_OF_TEXTS: Final = re.compile(r"(^|/|_)texts\.py$")
SKIPPED_FUNCTIONS: Final = {"__repr__", "__str__"}
SKIPPED_TARGETS: Final = {"__slots__", "__all__", "__match_args__", "__version__"}


@dataclass(frozen=True)
class Defect:
    """One replacement: the text between two positions of a file becomes `text`.

    Args:
        path: of the file, relative to the source folder.
        line, column, end_line, end_column: as in ast: lines from 1, columns from 0 in UTF-8 bytes.
        statement: the line where the innermost statement begins.
        name: what the statement assigns to, if it runs at import; otherwise "".
        in_function: whether the line runs when a function is called, not at import.
        kind: "comparison", "boolean", "arithmetic", "constant", "call", "assignment", "raise" or "arguments".
        before, after: the changed line, on one line and without indentation.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    statement: int
    name: str
    in_function: bool
    kind: str
    text: str
    before: str
    after: str

    def plant(self, source: str) -> str:
        """The text of the file with this defect; the lines below keep their numbers."""
        lines = source.encode().splitlines(keepends=True)
        head, tail = lines[self.line - 1][: self.column], lines[self.end_line - 1][self.end_column :]
        padding = b"\n" * (self.end_line - self.line)
        changed = head + self.text.encode() + tail + padding
        return b"".join([*lines[: self.line - 1], changed, *lines[self.end_line :]]).decode()

    def key(self) -> str:
        """Names the defect in the list of those without effect: it does not change when lines are added above."""
        return f"{self.path} | {self.before} | {self.after}"


def flat(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


def defects(path: str, source: str) -> list[list[Defect]]:
    """All places of a file in the order of its text; each has one or more defects."""
    if TABLES_OF_TEXTS.search(path):
        return []
    return [place for place in Places(path, source).visit_all(ast.parse(source).body) if place]


def draw(files: Mapping[str, str], count: int, seed: int, without: Iterable[str] = ()) -> list[Defect]:
    """`count` defects at different places of the files, the same for the same seed; keys in `without` are left out."""
    skipped = set(without)
    chance = random.Random(seed)
    places = [place for path in sorted(files) for place in defects(path, files[path])]
    chance.shuffle(places)
    drawn = (chance.choice(place) for place in places)
    usable = (defect for defect in drawn if defect.key() not in skipped and is_valid(defect.plant(files[defect.path])))
    chosen = itertools.islice(usable, count)
    return sorted(chosen, key=lambda defect: (defect.path, defect.line, defect.column))


def is_valid(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def without_effect(table: Path) -> dict[str, str]:
    """The list of defects that change nothing observable: key to reason. Lines are "path | before | after | reason"."""
    rows = {}
    for line in table.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            key, _, reason = line.rpartition(" | ")
            rows[key] = reason
    return rows


class Places:
    """Walks a syntax tree and yields, for each place, the defects that can be planted there."""

    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._source = source
        self._lines = source.encode().splitlines(keepends=True)
        self._line = 1  # where the innermost statement begins
        self._name = ""  # what it assigns to
        self._depth = 0  # of functions

    def visit_all(self, nodes: Sequence[ast.AST]) -> Iterator[list[Defect]]:
        for node in nodes:
            yield from self.visit(node)

    def visit(self, node: ast.AST) -> Iterator[list[Defect]]:
        if isinstance(node, ast.stmt):
            self._line, self._name = node.lineno, ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name not in SKIPPED_FUNCTIONS:
                self._name = node.name
                yield from self.visit_all([*node.args.defaults, *(value for value in node.args.kw_defaults if value)])
                self._depth += 1
                yield from self.visit_all(node.body)
                self._depth -= 1
        elif isinstance(node, ast.ClassDef):
            yield from self.visit_all([*node.body])
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from self.visit_all(node.orelse)
        elif isinstance(node, ast.Expr):
            yield from self._statement(node)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            yield from self._assignment(node)
        elif isinstance(node, ast.AugAssign):
            operator = ARITHMETIC.get(type(node.op))
            yield (
                [self._defect(node, "arithmetic", ast.AugAssign(node.target, operator(), node.value))]
                if operator
                else []
            )
            yield from self.visit(node.value)
        elif isinstance(node, ast.Raise):
            if node.exc is not None:
                yield [self._defect(node, "raise", ast.Pass())]
        elif isinstance(node, ast.Assert):
            yield from self.visit(node.test)
        elif not isinstance(node, ast.JoinedStr):
            yield from self._expression(node)

    def _statement(self, node: ast.Expr) -> Iterator[list[Defect]]:
        """A call whose result is not used may be dropped; a docstring and a log call stay."""
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Constant) or (isinstance(call, ast.Call) and is_log_call(call)):
            return
        if isinstance(call, ast.Call):
            yield [self._defect(node, "call", ast.Pass())]
        yield from self.visit(node.value)

    def _assignment(self, node: ast.AnnAssign | ast.Assign) -> Iterator[list[Defect]]:
        """An assignment to an attribute or an item may be dropped."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None or any(
            isinstance(target, ast.Name) and target.id in SKIPPED_TARGETS for target in targets
        ):
            return
        self._name = next((target.id for target in targets if isinstance(target, ast.Name)), "")
        if isinstance(node, ast.Assign) and isinstance(targets[0], ast.Attribute | ast.Subscript):
            yield [self._defect(node, "assignment", ast.Pass())]
        yield from self.visit_all([target for target in targets if not isinstance(target, ast.Name)])
        if not is_type_alias(node):
            yield from self.visit(node.value)

    def _expression(self, node: ast.AST) -> Iterator[list[Defect]]:
        if isinstance(node, ast.keyword) and node.arg == "strict":  # of zip: what never differs in length
            return
        if isinstance(node, ast.Call):
            if is_log_call(node) or name_of(node) in SILENT_CALLS:
                if name_of(node) == "cast":
                    yield from self.visit(node.args[-1])
                return
            yield list(self._call(node))
        elif isinstance(node, ast.Compare):
            yield list(self._comparison(node))
        elif isinstance(node, ast.BoolOp):
            swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield [self._defect(node, "boolean", ast.BoolOp(swapped, node.values))]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield [self._defect(node, "boolean", node.operand)]
        elif isinstance(node, ast.BinOp):
            operator = ARITHMETIC.get(type(node.op))
            if operator and is_arithmetic(node):
                yield [self._defect(node, "arithmetic", ast.BinOp(node.left, operator(), node.right))]
        elif isinstance(node, ast.Constant):
            yield list(self._constant(node))
        yield from self.visit_all([*ast.iter_child_nodes(node)])

    def _call(self, node: ast.Call) -> Iterator[Defect]:
        name = name_of(node)
        if name in ("min", "max") and isinstance(node.func, ast.Name):
            swapped = ast.Name("max" if name == "min" else "min")
            yield self._defect(node, "call", ast.Call(swapped, node.args, node.keywords))
        plain = [not isinstance(argument, ast.Starred) for argument in node.args]
        if name in FIXED_ORDER or len(plain) < 2 or not all(plain):
            return
        for at in range(len(node.args) - 1):
            first, second = node.args[at], node.args[at + 1]
            if ast.dump(first) != ast.dump(second) and kind_of(first) == kind_of(second):
                arguments = [*node.args[:at], second, first, *node.args[at + 2 :]]
                yield self._defect(node, "arguments", ast.Call(node.func, arguments, node.keywords))

    def _comparison(self, node: ast.Compare) -> Iterator[Defect]:
        for at, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                operators = [*node.ops[:at], other(), *node.ops[at + 1 :]]
                yield self._defect(node, "comparison", ast.Compare(node.left, operators, node.comparators))

    def _constant(self, node: ast.Constant) -> Iterator[Defect]:
        value = node.value
        if isinstance(value, bool):
            yield self._defect(node, "constant", ast.Constant(not value))
        elif isinstance(value, int | float):
            near = (value + 1, value - 1) if value > 0 else (value + 1,)
            for other in near if value <= NEAR_MAX else (value * 2, value // 2):
                yield self._defect(node, "constant", ast.Constant(other))
        elif isinstance(value, str | bytes) and value.isascii() and len(value.split()) == 1:
            yield self._defect(node, "constant", ast.Constant(value[:0]))

    def _defect(self, node: ast.expr | ast.stmt, kind: str, replacement: ast.AST) -> Defect:
        text = ast.unparse(ast.fix_missing_locations(replacement))
        if isinstance(node, ast.expr) and not isinstance(replacement, ast.Constant | ast.Name | ast.Call):
            text = f"({text})"
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        whole = b"".join(self._lines[node.lineno - 1 : end_line]).decode()
        head = self._lines[node.lineno - 1][: node.col_offset].decode()
        tail = self._lines[end_line - 1][end_column:].decode()
        return Defect(
            self._path, node.lineno, node.col_offset, end_line, end_column, self._line, "" if self._depth else self._name,
            self._depth > 0, kind, text, flat(whole), flat(head + text + tail),
        )  # fmt: skip


def name_of(call: ast.Call) -> str:
    """The last name of the called function."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_log_call(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in LOG_METHODS:
        return False
    owner = call.func.value
    return (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")) in LOG_NAMES


def kind_of(argument: ast.expr) -> str:
    """Arguments of different literal kinds are never swapped; what is not a literal may be of any kind."""
    if isinstance(argument, ast.Constant):
        return type(argument.value).__name__
    return "list" if isinstance(argument, ast.List | ast.Tuple | ast.Dict | ast.Lambda) else "any"


def is_arithmetic(node: ast.BinOp) -> bool:
    """Whether the operands can be numbers, or sets; False for texts, formats, and unions of types."""
    for operand in (node.left, node.right):
        if isinstance(operand, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp):
            return False
        if isinstance(operand, ast.Constant) and (operand.value is None or isinstance(operand.value, str | bytes)):
            return False
        if isinstance(node.op, ast.Add | ast.Mod) and isinstance(operand, ast.BinOp) and not is_arithmetic(operand):
            return False
        if isinstance(node.op, ast.BitOr) and isinstance(operand, ast.Name | ast.Attribute):
            name = operand.attr if isinstance(operand, ast.Attribute) else operand.id
            if hasattr(builtins, name) or (name[0].isupper() and not name.isupper()):
                return False
    return True


def is_type_alias(node: ast.AnnAssign | ast.Assign) -> bool:
    """`Name = A | B` and `Name: TypeAlias = ...`."""
    if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
        return True
    value = node.value
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr) and not is_arithmetic(value)
