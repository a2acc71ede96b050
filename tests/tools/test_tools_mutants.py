"""`make mutants`: what it plants, which tests it chooses, and its verdicts on a project of one module."""

from __future__ import annotations

import ast
import contextlib
import itertools
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from mutants import __main__ as command
from mutants.contexts import RESULTS
from mutants.covering import Choice, Covering, Project, fingerprint, lines_by_context
from mutants.defects import Defect, defects, draw, without_effect
from mutants.running import Outcome, Workspace, limit_seconds

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SOURCE = REPOSITORY / "src"
TABLE = REPOSITORY / "tools" / "mutants" / "without_effect.txt"
MODULE = '''"""Sizes."""

LIMIT = 4


def is_large(size: int) -> bool:
    """Whether a size is over the limit."""
    return size > LIMIT


def doubled(size: int) -> int:
    return size * 2


def unused(size: int) -> int:
    return size - 1
'''
TESTS = """from tiny.sizes import doubled, is_large


def test_large():
    assert is_large(5) and not is_large(4)


def test_doubled():
    assert doubled(0) == 0
"""


def planted(source: str) -> list[str]:
    """The changed line of every defect of a module."""
    return [defect.after for place in defects("m.py", source) for defect in place]


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("def f(a):\n    return a < 3", ["return (a <= 3)", "return (a > 3)", "return a < 4", "return a < 2"]),
        ("def f(a, b):\n    return a and not b", ["return (a or not b)", "return a and b"]),
        ("def f(a):\n    return a is None", ["return (a is not None)"]),
        ("def f(a, b):\n    return a + b", ["return (a - b)"]),
        ("def f(a):\n    a += 20", ["a -= 20", "a += 40", "a += 10"]),
        ("def f(flag=True): return flag", ["def f(flag=False): return flag"]),
        ("def f(a):\n    a.sync()", ["pass"]),
        ("async def f(a):\n    await a.sync()", ["pass"]),
        ("def f(a):\n    raise ValueError(1)", ["pass"]),
        ("def f(a, b):\n    a.b = b", ["pass"]),
        ("def f(a, b):\n    return g(a, b)", ["return g(b, a)"]),
        ("def f(a, b):\n    return min(a, b)", ["return max(a, b)"]),
        ("def f(a):\n    return a['key']", ["return a['']"]),
        ("def f(a):\n    return g(a) + '.tmp'", ["return g(a) + ''"]),
    ],
)
def test_defect_of_each_kind(source: str, after: list[str]) -> None:
    assert planted(source) == after


@pytest.mark.parametrize(
    "source",
    [
        '"""A module."""',
        "__all__ = ['f']",
        "Name = int | None",
        "def f(a: int | None = None) -> 'int': ...",
        "def f():\n    _log.info('opened size=%d', 7)",
        "def f():\n    self._log.warning('opened', 7)",
        "def f(a):\n    return f'{a + 1} files'",
        "def f():\n    return 'a message for people'",
        "def f(a):\n    return cast('int', a)",
        "def f(a, b):\n    return zip(a, strict=True)",
        "@cache(4)\ndef f(): ...",
        "if TYPE_CHECKING:\n    from a import b\n    SIZE = 4",
        "class A:\n    def __repr__(self):\n        return 'A' + 'b'",
    ],
)
def test_what_no_behaviour_depends_on_is_left_alone(source: str) -> None:
    assert planted(source) == []


def test_lines_keep_their_numbers() -> None:
    source = "def f(a):\n    g(\n        a,\n        1,\n    )\n    return a\n"
    dropped = next(defect for place in defects("m.py", source) for defect in place if defect.kind == "call")
    assert dropped.plant(source).splitlines()[5] == "    return a"


@pytest.mark.parametrize("package", ["acl", "filter", "store/queue"])
def test_every_defect_of_a_package_is_valid_python(package: str) -> None:
    for path in sorted((SOURCE / "saturnmq" / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for place in itertools.islice(defects(path.name, source), 0, None, 7):
            for defect in place:
                assert ast.dump(ast.parse(defect.plant(source))) != ast.dump(ast.parse(source)), defect


def test_a_seed_draws_the_same_defects() -> None:
    files = {"sizes.py": MODULE}
    assert draw(files, 3, seed=5) == draw(files, 3, seed=5)
    assert {tuple(draw(files, 1, seed)) for seed in range(20)} != {tuple(draw(files, 1, 5))}


def test_listed_defects_are_not_drawn(tmp_path: Path) -> None:
    table = tmp_path / "table.txt"
    table.write_text(
        "# path | line | changed line | reason\nsizes.py | return size * 2 | return (size // 2) | no caller\n"
    )
    assert without_effect(table) == {"sizes.py | return size * 2 | return (size // 2)": "no caller"}
    drawn = {
        defect.key() for seed in range(20) for defect in draw({"sizes.py": MODULE}, 99, seed, without_effect(table))
    }
    assert drawn and drawn.isdisjoint(without_effect(table))


def test_listed_defects_can_still_be_planted() -> None:
    rows = without_effect(TABLE)
    for path in {key.partition(" | ")[0] for key in rows}:
        source = (SOURCE / path).read_text(encoding="utf-8")
        current = {defect.key() for place in defects(path, source) for defect in place}
        stale = {key for key in rows if key.startswith(f"{path} | ")} - current
        assert stale == set(), "the code has changed: judge the defect again"
    assert all(reason.strip() for reason in rows.values())


def defect_at(line: int, name: str = "", in_function: bool = True) -> Defect:
    return Defect("tiny/sizes.py", line, 0, line, 1, line, name, in_function, "constant", "", "", "")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "src" / "tiny").mkdir(parents=True)
    (tmp_path / "src" / "tiny" / "__init__.py").touch()
    (tmp_path / "src" / "tiny" / "sizes.py").write_text(MODULE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sizes.py").write_text(TESTS)
    (tmp_path / "tests" / "test_other.py").write_text("def test_nothing(): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return Project(tmp_path, tmp_path / "src", "tiny", "tiny", ("tests",), "not long")


def test_part_of_a_package_is_drawn_from_all_of_it_is_measured(project: Project) -> None:
    (project.source / "tiny" / "queue").mkdir()
    (project.source / "tiny" / "queue" / "units.py").write_text(MODULE)
    assert set(project.files()) == {"tiny/__init__.py", "tiny/queue/units.py", "tiny/sizes.py"}
    for part, drawn in (("tiny/queue", {"tiny/queue/units.py"}), ("tiny/sizes.py", {"tiny/sizes.py"})):
        assert set(replace(project, part=part).drawn_files()) == drawn


def covering(project: Project, seconds: float = 1.0) -> Covering:
    """test_large executes line 8, test_doubled line 12, the import lines 1 to 15."""
    result = Covering(project)
    large, doubled = "tests/test_sizes.py::test_large", "tests/test_sizes.py::test_doubled"
    lines = {
        "": {"tiny/sizes.py": [1, 3, 6, 11, 15]},
        large: {"tiny/sizes.py": [8]},
        doubled: {"tiny/sizes.py": [12]},
    }
    tests = {large: [seconds, True, False], doubled: [seconds, True, False]}
    result.add("tests/test_sizes.py", {"tests": tests, "lines": lines})
    result.add("tests/test_other.py", {"tests": {"tests/test_other.py::test_nothing": [1.0, True, False]}, "lines": {}})
    return result


def test_tests_that_execute_the_line_are_chosen(project: Project) -> None:
    choice = covering(project).choose(defect_at(12), 60)
    assert choice == Choice(["tests/test_sizes.py::test_doubled"], [], 0, 1.0, 0.0)
    assert covering(project).choose(defect_at(16), 60) == Choice([], [], 0, 0.0, 0.0), "no test executes it"


def test_quick_tests_run_first_and_slow_ones_up_to_the_limit(project: Project) -> None:
    result = Covering(project)
    names = [f"tests/test_sizes.py::test_{number}" for number in range(4)]
    tests = {name: [seconds, True, False] for name, seconds in zip(names, (30.0, 6.0, 3.0, 20.0), strict=True)}
    result.add("tests/test_sizes.py", {"tests": tests, "lines": {name: {"tiny/sizes.py": [8]} for name in names}})
    result.add(
        "tests/test_server.py",
        {"tests": {"tests/test_server.py::test_a": [8.0, True, False]}, "lines": {"": {"tiny/sizes.py": [8]}}},
    )
    quick = [names[2], names[1]]
    assert result.choose(defect_at(8), 99) == Choice(quick, ["tests/test_server.py", names[0], names[3]], 0, 9.0, 58.0)
    assert result.choose(defect_at(8), 30) == Choice(quick, [names[3]], 2, 9.0, 20.0)
    assert result.choose(defect_at(8), 1) == Choice([names[2]], [], 4, 3.0, 0.0), "one at least"


def test_tests_marked_realtime_run_last(project: Project) -> None:
    """They may start a session of many seconds, which the seconds of a single test do not show."""
    result = Covering(project)
    names = [f"tests/test_sizes.py::test_{number}" for number in range(3)]
    tests = {name: [seconds, True, name == names[1]] for name, seconds in zip(names, (2.0, 0.1, 1.0), strict=True)}
    result.add("tests/test_sizes.py", {"tests": tests, "lines": {name: {"tiny/sizes.py": [8]} for name in names}})
    assert result.choose(defect_at(8), 60) == Choice([names[2], names[0]], [names[1]], 0, 3.0, pytest.approx(0.1))
    tests = {"tests/test_server.py::test_a": [0.5, True, True]}
    result.add("tests/test_server.py", {"tests": tests, "lines": {"": {"tiny/sizes.py": [8, 16]}}})
    assert result.choose(defect_at(8), 60).further == ["tests/test_server.py", names[1]]
    assert result.choose(defect_at(16), 60).quick == ["tests/test_server.py"], "there are no others"


def test_near_files_import_a_module_with_a_defect(tmp_path: Path) -> None:
    texts = {
        "test_a.py": "from big.rules import f", "test_b.py": "from big import other, rules",
        "test_c.py": "import big.rules", "test_d.py": "from big import other",
        "test_e.py": "from big.deep.sizes import f", "test_f.py": "from big.rulesets import f",
    }  # fmt: skip
    (tmp_path / "tests").mkdir()
    for name, text in texts.items():
        (tmp_path / "tests" / name).write_text(text)
    found = Project(tmp_path, tmp_path, "big", "big", ("tests",), "")

    def near(*paths: str) -> list[str]:
        return [path.name for path in found.near_files(replace(defect_at(1), path=path) for path in paths)]

    assert near("big/rules.py") == ["test_a.py", "test_b.py", "test_c.py"]
    assert near("big/other.py", "big/deep/places.py") == ["test_b.py", "test_d.py", "test_e.py"]


def test_broken_data_of_a_killed_process_is_left_out(project: Project, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "data.killed")) as database:
        database.execute("create table coverage_schema (version integer)")
    assert lines_by_context(project, tmp_path.glob("data.*")) == {}


def test_spark_is_measured_with_the_tests_of_a_session() -> None:
    found = {package: command.project(command.arguments([package])).marks for package in ("spark", "store")}
    assert found == {"spark": "not interop and not long", "store": "not interop and not long and not spark"}
    chosen = command.arguments(["spark/decode.py", "--marks", "not spark"])
    assert command.project(chosen).marks == "not spark"


def test_constant_of_a_module_is_tested_where_it_is_used(project: Project) -> None:
    choice = covering(project).choose(defect_at(3, "LIMIT", in_function=False), 60)
    assert choice.quick == ["tests/test_sizes.py::test_large"]


def test_quick_whole_file_runs_before_the_tests(project: Project) -> None:
    """The table of all settings is compared with their documentation, which executes no line that names one."""
    result = covering(project, seconds=0.1)
    for name, seconds in (("tests/test_page.py", 0.5), ("tests/test_server.py", 1.5)):
        tests = {f"{name}::test_a": [seconds, True, False]}
        result.add(name, {"tests": tests, "lines": {"": {"tiny/sizes.py": [1, 3]}}})
    choice = result.choose(defect_at(3, "LIMIT", in_function=False), 60)
    assert choice.quick == ["tests/test_page.py", "tests/test_sizes.py::test_large", "tests/test_server.py"]


def test_failing_test_is_not_chosen(project: Project) -> None:
    result = Covering(project)
    name = "tests/test_sizes.py::test_large"
    result.add("tests/test_sizes.py", {"tests": {name: [1.0, False, False]}, "lines": {name: {"tiny/sizes.py": [8]}}})
    assert result.failing() == [name]
    assert result.choose(defect_at(8), 60).quick == []


def test_measurement_is_renewed_when_sources_or_tests_change(project: Project) -> None:
    test_file = project.root / "tests" / "test_sizes.py"
    seen = {fingerprint(project, test_file)}
    (project.source / "tiny" / "sizes.py").write_text(MODULE.replace("4", "5"))
    seen.add(fingerprint(project, test_file))
    test_file.write_text(TESTS + "\n")
    seen.add(fingerprint(project, test_file))
    (project.root / "tests" / "conftest.py").touch()
    seen.add(fingerprint(project, test_file))
    (project.root / "tests" / "test_other.py").touch()
    assert len(seen) == 4
    assert fingerprint(project, test_file) in seen


def test_known_survivor_and_known_killed(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RESULTS, raising=False)
    options = [
        "",
        "--root",
        str(project.root),
        "--top",
        "tiny",
        "--tests",
        "tests",
        "--count",
        "3",
        "--seed",
        "0",
        "--verbose",
    ]
    assert command.main([*options, "--bar", "90"]) == 1
    output = capsys.readouterr().out
    verdicts = dict(itertools.pairwise(line.strip() for line in output.splitlines()))
    verdict_of = {line: verdict for verdict, line in verdicts.items() if verdict.startswith("tiny/sizes.py:")}
    assert "test_large" in verdict_of["return size > LIMIT"], output
    assert "NOT NOTICED" in verdict_of["return size * 2"], "0 * 2 and 0 // 2 are equal"
    assert "NOT NOTICED" in verdict_of["return size - 1"]
    assert "no test executes it" in output
    assert "seed 0; not noticed: " in output
    assert (project.source / "tiny" / "sizes.py").read_text() == MODULE, "the working tree is untouched"


@pytest.mark.parametrize(("noticed", "below"), [(9, False), (8, True)])
def test_bar_is_a_percentage(noticed: int, below: bool) -> None:
    outcomes = [Outcome(defect_at(8), "test" if number < noticed else "", "", 1.0) for number in range(10)]
    assert command.is_below(outcomes, 90) is below


def test_endless_loop_ends_at_the_time_limit(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutants.running.LIMIT_EXTRA_S", 3.0)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    (project.source / "tiny" / "sizes.py").write_text(
        MODULE.replace("    return size * 2", "    while size > 9: pass\n    return 0")
    )
    workspace = Workspace(project, tmp_path / "work")
    defect = next(
        defect for place in defects("tiny/sizes.py", (project.source / "tiny" / "sizes.py").read_text()) for defect in place
        if defect.after == "while (size < 9): pass"
    )  # fmt: skip
    assert workspace.judge(defect, covering(project, seconds=0.1), 60).killer == "time limit"


@pytest.mark.parametrize(("load", "limit"), [(0.0, 50.0), (2.0, 50.0), (18.0, 450.0)])
def test_time_limit_grows_with_the_load_of_the_machine(
    load: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a load of 18 on two processors, tests that had not begun after 20 s counted as noticing a defect."""
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert limit_seconds(10.0) == limit


def test_names_that_do_not_exist_are_errors(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--root", str(project.root), "--top", "tiny"]
    assert command.main(["absent", *options]) == 2
    assert command.main(["", *options, "--tests", "tests/absent"]) == 2
    errors = capsys.readouterr().err
    assert "absent does not exist" in errors and "tests/absent does not exist" in errors
