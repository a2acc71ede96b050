#!/usr/bin/env python3
"""Lists which requirements of docs/spec are covered by a test.

Reads the requirement tables in docs/spec/*.md (first column: an ID such as NS-01) and the project's tests. A test names
the requirements it covers with a marker:

Example:
    @pytest.mark.spec("NS-01", "NS-02")
    def test_route_is_registered(): ...

A class or a module (pytestmark) may carry the marker too. A marked test that cannot fail (no assert, no raises, no call
whose name starts with check/assert/expect/verify) does not count and is listed.

A requirement that the project rejects, or that cannot be tested here, is listed in docs/spec-waivers.txt as "ID
reason". A waiver is not a pass: it has its own column. A reason that begins with "In part" marks a requirement of which
one clause is missing: it is counted as tested in part, whether it has tests or not. A requirement that is covered only
by tests with more than six IDs each is listed as crowded: such a test seldom covers all of them.

usage: spec_coverage.py [--project DIR] [--missing [PREFIX]] [--partial] [--crowded] [--json]
exit status: 0; 2 if there is no spec or no tests folder.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path

ROW = re.compile(r"^\|\s*\**([A-Z]{1,4}(?:-[A-Z]{1,2})?-?[A-Z]?\d{2,3})\**\s*\|\s*(.+)$")
CHECKING = re.compile(r"^(check|assert|expect|verify|raises|warns|fail)", re.I)


def spec_rows(spec_dir: Path) -> dict[str, tuple[str, str]]:
    rows: dict[str, tuple[str, str]] = {}
    for file in sorted(spec_dir.glob("*.md")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if match := ROW.match(line):
                rows.setdefault(match[1], (file.name, match[2].split(" | ")[0].strip()))
    return rows


def marker_ids(node: ast.AST) -> list[str]:
    """Requirement IDs of every pytest.mark.spec(...) call below the node."""
    ids = []
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "spec":
            ids += [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return ids


def can_fail(function: ast.AST) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if CHECKING.match(name.lstrip("_")):
                return True
    return False


CROWD = 6  # IDs on one test; a requirement that only such tests cover needs a test of its own


def collect(tree: ast.Module, where: str, tested: dict[str, list[str]], empty: list[str], crowded: set[str]) -> None:
    module_ids: list[str] = []
    for stmt in tree.body:
        if isinstance(stmt, ast.Assign) and any(getattr(t, "id", "") == "pytestmark" for t in stmt.targets):
            module_ids = marker_ids(stmt.value)

    def visit(body: list[ast.stmt], inherited: list[str], prefix: str) -> None:
        for stmt in body:
            if isinstance(stmt, ast.ClassDef):
                own = [i for d in stmt.decorator_list for i in marker_ids(d)]
                visit(stmt.body, inherited + own, f"{prefix}{stmt.name}.")
            elif isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef) and stmt.name.startswith("test"):
                ids = inherited + [i for d in stmt.decorator_list for i in marker_ids(d)]
                if not ids:
                    continue
                name = f"{where}::{prefix}{stmt.name}"
                if not can_fail(stmt):
                    empty.append(name)
                    continue
                if len(set(ids)) > CROWD:
                    crowded.add(name)
                for requirement in ids:
                    tested.setdefault(requirement, []).append(name)

    visit(tree.body, module_ids, "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--missing", nargs="?", const="", default=None, metavar="PREFIX")
    parser.add_argument("--partial", action="store_true", help="list the rows tested in part, with the reason")
    parser.add_argument("--crowded", action="store_true", help="list the rows that rest only on crowded tests")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    rows = spec_rows(args.project / "docs" / "spec")
    tests = args.project / "tests"
    if not rows or not tests.is_dir():
        print("no spec tables, or no tests folder", file=sys.stderr)
        return 2

    tested: dict[str, list[str]] = {}
    empty: list[str] = []
    crowded_tests: set[str] = set()
    for file in sorted(tests.rglob("*.py")):
        collect(
            ast.parse(file.read_text(encoding="utf-8")),
            str(file.relative_to(args.project)),
            tested,
            empty,
            crowded_tests,
        )
    waivers: dict[str, str] = {}
    waiver_file = args.project / "docs" / "spec-waivers.txt"
    if waiver_file.exists():
        for line in waiver_file.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                requirement, _, reason = line.partition(" ")
                waivers[requirement] = reason.strip()

    per_file: dict[str, list[int]] = {}  # rows; tested completely, in part; waived
    missing = []
    partial = sorted(i for i, reason in waivers.items() if reason.lower().startswith("in part") and i in rows)
    crowded = sorted(i for i, names in tested.items() if i in rows and set(names) <= crowded_tests)
    for requirement, (file, text) in rows.items():
        count = per_file.setdefault(file, [0, 0, 0, 0])
        count[0] += 1
        if requirement in partial:
            count[2] += 1
        elif requirement in waivers:
            count[3] += 1
        elif requirement in tested:
            count[1] += 1
        else:
            missing.append((requirement, file, text))
    unknown = sorted((set(tested) | set(waivers)) - set(rows))

    if args.json:
        found = {
            "files": per_file,
            "missing": [requirement for requirement, _, _ in missing],
            "waived": sorted(set(waivers) - set(partial)),
            "partial": partial,
            "crowded": crowded,
            "asserts_nothing": empty,
            "unknown": unknown,
        }
        print(json.dumps(found, indent=1))
        return 0
    print(f"{'spec file':48} {'rows':>5} {'tested':>7} {'in part':>8} {'waived':>7} {'missing':>8}")
    totals = [sum(c[i] for c in per_file.values()) for i in range(4)]
    for file, (total, done, part, waived) in [*per_file.items(), ("all", totals)]:
        print(f"{file:48} {total:5} {done:7} {part:8} {waived:7} {total - done - part - waived:8}")
    print(f"rows that rest only on tests with more than {CROWD} IDs: {len(crowded)} (--crowded)")
    for requirement in partial if args.partial else ():
        print(f"{requirement:10} {waivers[requirement]}")
    for requirement in crowded if args.crowded else ():
        print(f"{requirement:10} {', '.join(tested[requirement])}")
    for name in empty:
        print(f"marked, but nothing in it can fail: {name}")
    for requirement in unknown:
        print(f"no such requirement: {requirement}")
    if args.missing is not None:
        for requirement, file, text in missing:
            if requirement.startswith(args.missing):
                print(f"{requirement:10} {file[:2]} {text[:150]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
