"""How test files are shared out to processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.gate import workers

pytest_plugins = ["pytester"]


TOP = Path(__file__).resolve().parents[2]


def test_files_that_share_a_spark_session_are_two_scopes() -> None:
    names = ("audit", "pipelines", "sink", "source", "options")
    *files, options = (f"tests/spark/test_spark_{name}.py" for name in names)
    first, second = workers.SESSIONS
    assert [workers.scope(f"{file}::test_x[1::2]", TOP) for file in files] == [first, first, second, second]
    assert workers.scope(f"{options}::test_x[1::2]", TOP) == options
    assert workers.scope("tests/raft/test_a.py::test_x[1::2]", TOP) == "tests/raft/test_a.py"


def test_files_and_folders_that_take_longest_exist_and_come_first() -> None:
    first = workers.FIRST[2:]
    places = [prefix + ("test_x.py" if prefix.endswith("/") else ".py") for prefix in first]
    assert workers.FIRST[:2] == workers.SESSIONS
    assert [workers.rank(place) for place in (*workers.SESSIONS, *places)] == list(range(len(workers.FIRST)))
    assert workers.rank("tests/net/test_x.py") == len(workers.FIRST)
    assert all((TOP / prefix).is_dir() or (TOP / f"{prefix}.py").is_file() for prefix in first)


def test_two_processes_share_files_and_keep_scopes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    pytester.makeini(f"[pytest]\npythonpath = {Path(__file__).resolve().parents[1]}\naddopts = -p no:cacheprovider\n")
    pytester.makeconftest('pytest_plugins = ["harness.gate.workers"]')
    body = "import os\ndef test_one(): print('RAN', __name__, os.environ['PYTEST_XDIST_WORKER'])\ndef test_two(): test_one()\n"
    session = "import pytest\n@pytest.fixture\ndef spark(): pass\ndef test_three(spark: None): pass\n"
    for name in ("net/test_n", "raft/test_r", "spark/test_spark_s", "spark/test_t", "spark/test_u"):
        path = pytester.path / "tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body + session * (name in ("spark/test_spark_s", "spark/test_u")))
    result = pytester.runpytest_subprocess("-n2", "--dist=loadfile", "-rA")
    result.assert_outcomes(passed=12)
    ran = {tuple(line.split()[1:]) for line in result.outlines if line.startswith("RAN")}
    processes = dict(ran)
    assert len(ran) == len(processes) == 5
    assert processes["test_spark_s"] == processes["test_u"]


def test_workers_begin_to_collect_in_different_places(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makeini(f"[pytest]\npythonpath = {Path(__file__).resolve().parents[1]}\naddopts = -p no:cacheprovider\n")
    pytester.makeconftest('pytest_plugins = ["harness.gate.workers"]')
    body = (
        "import os, pathlib\nworker = os.environ['PYTEST_XDIST_WORKER']\n"
        "with pathlib.Path(worker + '.txt').open('a') as file: print(__name__, file=file)\n"
        "def test_one(): pass\ndef test_another(): pass\n"
    )
    names = [f"test_{letter}" for letter in "abcdefgh"]
    pytester.mkdir("tests")
    for name in names:
        (pytester.path / "tests" / f"{name}.py").write_text(body)
    pytester.runpytest_subprocess("-n4", "--dist=loadfile", "tests").assert_outcomes(passed=16)
    imported = [(pytester.path / f"gw{number}.txt").read_text().split() for number in range(4)]
    assert imported == [names[first:] + names[:first] for first in (0, 2, 4, 6)]
