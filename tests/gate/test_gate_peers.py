"""Tests without their peer: one block at the end, and a failure in the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
MODULE = """
import pytest
from harness.gate.peers import missing

@pytest.fixture(scope="module")
def java(): missing("no java on the PATH; install a JDK 17")

@pytest.mark.parametrize("number", range(2))
def test_with_java(java, number): pass

def test_without(): pass

def test_other(): pytest.skip("not on this system")
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with the plugin loaded, outside the gate."""
    monkeypatch.delenv("SATURNMQ_GATE", raising=False)
    pytester.makeini("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")
    pytester.syspathinsert(Path(__file__).resolve().parents[1])
    pytester.makeconftest('pytest_plugins = ["harness.gate.peers"]')
    pytester.makepyfile(MODULE)
    return pytester


def test_missing_peers_are_listed_at_the_end(session: pytest.Pytester) -> None:
    result = session.runpytest()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines(
        ["*tests without their peer on this machine*", "2 skipped: no java on the PATH; install a JDK 17"]
    )


def test_missing_peer_fails_the_gate(session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATURNMQ_GATE", str(session.path / "gate"))
    result = session.runpytest()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED: the gate needs every peer"])
    assert (session.path / "gate" / "skipped.txt").read_text() == "2 tests: no java on the PATH; install a JDK 17\n"


def test_other_skips_pass_the_gate(session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATURNMQ_GATE", str(session.path / "gate"))
    result = session.runpytest("-k", "not with_java")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*tests without their peer*")
