"""Checks the code conventions that a machine can check. Known exceptions are in the tables below, which may only shrink."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import spec_coverage

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY / "src" / "saturnmq"
PACKAGES = {
    "protocol", "config", "hot", "net", "store", "raft", "filter",
    "history", "acl", "namesrv", "replication", "broker", "client",
    "admin", "cli", "console", "metrics", "server_admin", "spark", "testing", "opentelemetry", "django", "kombu",
    "faststream", "registry",
}  # fmt: skip
TOP_LEVEL = {
    "__init__.py",
    "sync.py",
    "tasks.py",
    "descriptors.py",
    "extras.py",
    "avro.py",
    "durable.py",
    "errors.py",
    "escaping.py",
    "slices.py",
    "log_limit.py",
    "statistics.py",
    "cloudevents.py",
    "fastapi.py",
    "flask.py",
    "sqlalchemy.py",
    "py.typed",
}
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
# Wire tables: long by nature, and without logic.
TABLES = {"protocol/headers/messaging.py", "protocol/headers/admin.py", "protocol/bodies/admin.py"}
LONG_FUNCTIONS: set[str] = set()  # "package/file.py::function", may only shrink
# Modules that import each other, also under TYPE_CHECKING; may only shrink.
CIRCLES: set[frozenset[str]] = set()
SLEEPS = re.compile(r"\.\s*sleep\b(?!\(0\))")  # other than `sleep(0)`, and in prose
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|helpers?|misc|common|part\d+)$")


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if ".venv" not in path.parts)


def tracked_text_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True)
    return [REPOSITORY / name for name in listing.stdout.decode().split("\0") if name and not name.endswith(".png")]


def test_packages_match_the_design_and_none_is_empty() -> None:
    found = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert found - PACKAGES - TOP_LEVEL == set()
    for package in found & PACKAGES:
        code = [p for p in python_files(SOURCE / package) if p.name != "__init__.py" or len(p.read_text()) > 400]
        assert code, f"package {package} holds nothing yet; add it with its first module"


def docstring_lines(nodes: Iterable[ast.AST]) -> int:
    """Lines of docstrings, which no size limit should shorten."""
    found = 0
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            statement = node.body[0]
            found += (statement.end_lineno or statement.lineno) - statement.lineno + 1
    return found


def problems_of_size(path: Path, name: str, text: str, nodes: list[ast.AST]) -> Iterator[str]:
    if FORBIDDEN_NAMES.search(path.stem):
        yield f"{name}: split by noun, not into {path.stem}"
    if name not in TABLES:
        lines = text.count("\n") - docstring_lines(nodes)
        if lines > FILE_LINES_MAX:
            yield f"{name} has {lines} lines without docstrings: it is two things"
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            where = f"{name}::{node.name}"
            if lines > FUNCTION_LINES_MAX and where not in LONG_FUNCTIONS:
                yield f"{where} has {lines} lines"


def problems_of_statements(name: str, nodes: list[ast.AST]) -> Iterator[str]:
    """Bare except, print, shell and pickle."""
    for node in nodes:
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{name}:{node.lineno} bare except"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            allowed = name == "cli/output.py" or name.startswith("spark/")
            if not allowed:
                yield f"{name}:{node.lineno} prints; only the command line does"
        if isinstance(node, ast.keyword) and node.arg == "shell":
            yield f"{name}:{node.value.lineno} runs a shell"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            if {"pickle", "marshal", "shelve"} & set(names):
                yield f"{name}:{node.lineno} imports pickle"


def problems(path: Path, name: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    return [*problems_of_size(path, name, text, nodes), *problems_of_statements(name, nodes)]


@pytest.mark.spec("SEC-02")
@pytest.mark.parametrize("package", ["", *sorted(path.name for path in SOURCE.iterdir() if path.is_dir())])
def test_source_follows_the_conventions(package: str) -> None:
    """One test per package, "" for the modules beside them: a test per file and convention took seconds of processor time."""
    paths = python_files(SOURCE / package) if package else sorted(SOURCE.glob("*.py"))
    assert [problem for path in paths for problem in problems(path, str(path.relative_to(SOURCE)))] == []


@pytest.mark.spec("SEC-02")
@pytest.mark.parametrize(
    ("stem", "code", "problem"),
    [
        ("io_utils", "", "split by noun"),
        ("long", "x = 1\n" * (FILE_LINES_MAX + 1), "601 lines without docstrings"),
        ("long", "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX, "::f has 71 lines"),
        ("all", "try:\n    x = 1\nexcept:\n    x = 2\n", ":3 bare except"),
        ("shown", "print(1)\n", ":1 prints"),
        ("shell", "run('ls', shell=True)\n", ":1 runs a shell"),
        ("load", "from pickle import loads\n", ":1 imports pickle"),
    ],
)
def test_breach_of_a_convention_is_found(tmp_path: Path, stem: str, code: str, problem: str) -> None:
    path = tmp_path / f"{stem}.py"
    path.write_text(code)
    found = problems(path, f"net/{stem}.py")
    assert len(found) == 1 and problem in found[0]


def test_tracked_files_name_no_machine_path_and_no_lock_file() -> None:
    machine = re.compile(r"(^|[^A-Za-z0-9_.])/(work|root|farm|home/[a-z]+)/")
    folders = [f"/{name}/".encode() for name in ("work", "root", "farm", "home")]  # few files have one of them anywhere
    for path in tracked_text_files():
        assert path.name not in {"uv.lock", "poetry.lock", "package-lock.json"}, path
        if path == Path(__file__) or not path.is_file():
            continue
        data = path.read_bytes()
        if b"\0" in data or not any(folder in data for folder in folders):
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            assert not machine.search(line), f"{path.relative_to(REPOSITORY)}:{number} names a path of one machine"


def test_tests_do_not_sleep() -> None:
    for path in python_files(REPOSITORY / "tests"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if SLEEPS.search(text) else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep"):
                continue
            zero = node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            polls = "poll" in text.splitlines()[node.lineno - 1]
            assert zero or polls, f"{path.name}:{node.lineno} sleeps; wait for an event with a deadline"


def test_named_requirements_exist_in_the_spec() -> None:
    rows = set(spec_coverage.spec_rows(REPOSITORY / "docs" / "spec"))
    prefixes = {re.sub(r"\d+$", "", requirement) for requirement in rows}
    assert len(rows) > 1000
    identifier = re.compile(r"(?<![\w-])[A-Z]{1,4}(?:-[A-Z]{1,2})?-?[A-Z]?\d{2,3}(?![\w-])")
    recorded = (REPOSITORY / "docs" / "spec", REPOSITORY / "tests" / "vectors")
    for path in tracked_text_files():
        if any(folder in path.parents for folder in recorded) or not path.is_file():
            continue
        for name in identifier.findall(path.read_bytes().decode("utf-8", "replace")):
            known = name in rows or re.sub(r"\d+$", "", name) not in prefixes
            assert known, f"{path.relative_to(REPOSITORY)} names requirement {name}, which docs/spec does not have"


def modules(source: Path) -> dict[str, Path]:
    """The files of a source tree by module name."""
    found = {}
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """A module or statement, and all statements in it; expressions, nine tenths of the nodes of `ast.walk`, contain none."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(node, field, ()):
            yield from statements(statement)


def imported(module: str, path: Path, known: Mapping[str, Path]) -> set[str]:
    """The known modules that a module imports: at the top, in functions, and under TYPE_CHECKING."""
    found: set[str] = set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            origin = ".".join(part for part in (above, node.module) if part)
            for alias in node.names:
                name = f"{origin}.{alias.name}"
                found.add(name if name in known else origin)
    return (found & known.keys()) - {module}


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The groups of two or more modules that reach each other by imports."""

    def reached_from(start: str, edges: Mapping[str, set[str]]) -> set[str]:
        seen: set[str] = set()
        open_modules = [start]
        while open_modules:
            for name in edges[open_modules.pop()] - seen:
                seen.add(name)
                open_modules.append(name)
        return seen

    importers: dict[str, set[str]] = {name: set() for name in graph}
    for name, targets in graph.items():
        for target in targets:
            importers[target].add(name)
    groups = (reached_from(name, graph) & reached_from(name, importers) for name in graph)
    return {frozenset(group) for group in groups if len(group) > 1}


def test_modules_import_no_module_that_imports_them() -> None:
    known = modules(SOURCE.parent)
    assert len(known) > 300
    # saturnmq/__init__.py names every public module for type checkers and imports none of them itself.
    graph = {name: imported(name, path, known) if name != "saturnmq" else set() for name, path in known.items()}
    found = circles(graph)
    assert not found - CIRCLES, f"new import circles: {[sorted(circle) for circle in found - CIRCLES]}"
    assert not CIRCLES - found, f"take these off the list: {[sorted(circle) for circle in CIRCLES - found]}"


def test_circle_under_type_checking_is_found(tmp_path: Path) -> None:
    package = tmp_path / "p"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B\n")
    (package / "b.py").write_text("def f():\n    from . import c\n")
    (package / "c.py").write_text("import p.a\n")
    (package / "d.py").write_text("from p import a, b\n")
    known = modules(tmp_path)
    assert circles({name: imported(name, path, known) for name, path in known.items()}) == {
        frozenset({"p.a", "p.b", "p.c"})
    }
