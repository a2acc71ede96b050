"""How test files are shared out to processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.gate import workers

pytest_plugins = ["pytester"]


def test_files_that_share_a_spark_session_are_one_scope() -> None:
    assert workers.scope("tests/spark/test_a.py::test_x[1::2]") == workers.scope("tests/spark/test_b.py::test_y")
    assert workers.scope("tests/raft/test_a.py::test_x[1::2]") == "tests/raft/test_a.py"


def test_folders_that_take_longest_exist_and_come_first() -> None:
    assert [workers.rank(f"{folder}test_x.py::test_y") for folder in workers.FIRST] == list(range(len(workers.FIRST)))
    assert workers.rank("tests/net/test_x.py::test_y") == len(workers.FIRST)
    assert all((Path(__file__).resolve().parents[2] / folder).is_dir() for folder in workers.FIRST)


def test_two_processes_share_files_and_keep_scopes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    pytester.makeini(f"[pytest]\npythonpath = {Path(__file__).resolve().parents[1]}\naddopts = -p no:cacheprovider\n")
    pytester.makeconftest('pytest_plugins = ["harness.gate.workers"]')
    body = "import os\ndef test_one(): print('RAN', __name__, os.environ['PYTEST_XDIST_WORKER'])\ndef test_two(): test_one()\n"
    for name in ("net/test_n", "raft/test_r", "spark/test_s", "spark/test_t"):
        path = pytester.path / "tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
    result = pytester.runpytest_subprocess("-n2", "--dist=loadfile", "-rA")
    result.assert_outcomes(passed=8)
    ran = {tuple(line.split()[1:]) for line in result.outlines if line.startswith("RAN")}
    processes = dict(ran)
    assert len(ran) == len(processes) == 4
    assert processes["test_s"] == processes["test_t"] != processes["test_r"]
