"""Counts names that carry no meaning of their own, and class names that several modules define.

    python tools/names.py src/saturnmq --rate-max 43 --classes-max 94

A name such as `found` says how a value came about; `record` or `route` says what it is. The list in names.txt may only grow, and
the limits in the Makefile may only fall. Terms of the field (`old` and `new` terms, `more` to come) are not listed.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")
WORDS = frozenset(line for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))


@dataclass(frozen=True, slots=True)
class NameCounts:
    """Bindings of a source tree; `meaningless` counts each name of WORDS, `first_lines` has the first line of each."""

    bindings: int = 0
    meaningless: Counter[str] = field(default_factory=Counter)
    first_lines: dict[str, str] = field(default_factory=dict)
    repeated_classes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Meaningless names per 1,000 bindings."""
        return 1000 * self.meaningless.total() / max(self.bindings, 1)


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Name and line of each function, class, parameter, assigned variable and assigned attribute."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def count_names(folder: Path) -> NameCounts:
    """The names that the modules below `folder` bind. Names of classes with a leading underscore may repeat."""
    bindings = 0
    meaningless: Counter[str] = Counter()
    first_lines: dict[str, str] = {}
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        module = str(path.relative_to(folder))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(module)
        for name, line in bound_names(tree):
            bindings += 1
            word = name.strip("_").lower()
            if word in WORDS:
                meaningless[word] += 1
                first_lines.setdefault(word, f"{module}:{line}")
    repeated = {name: paths for name, paths in modules.items() if len(paths) > 1}
    return NameCounts(bindings, meaningless, first_lines, repeated)


def report(counts: NameCounts) -> str:
    """A line per name, the most frequent first, a line per repeated class and the totals."""
    lines = [f"{count:5} {name:12} {counts.first_lines[name]}" for name, count in counts.meaningless.most_common()]
    lines += [f"class {name}: {', '.join(paths)}" for name, paths in sorted(counts.repeated_classes.items())]
    lines.append(
        f"{counts.meaningless.total()} of {counts.bindings} names, {counts.rate:.1f} per 1,000; "
        f"{len(counts.repeated_classes)} class names in several modules"
    )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the report. Returns 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate-max", type=float, default=float("inf"), help="meaningless names per 1,000 bindings")
    parser.add_argument("--classes-max", type=int, default=sys.maxsize, help="class names in several modules")
    parser.add_argument("--quiet", action="store_true", help="print nothing unless a limit is exceeded")
    options = parser.parse_args(arguments)
    counts = count_names(options.folder)
    exceeded = counts.rate > options.rate_max or len(counts.repeated_classes) > options.classes_max
    if exceeded or not options.quiet:
        print(report(counts))
    if exceeded:
        print(
            f"names: at most {options.rate_max} per 1,000 and {options.classes_max} class names are allowed",
            file=sys.stderr,
        )
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
