"""Reruns of realtime tests: pytest run inside pytest, in one process and in two."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = 'pytest_plugins = ["harness.gate.reruns"]'
HELPER = """
import pathlib, pytest

def fails_first(name):
    seen = pathlib.Path(__file__).with_name(name)
    if not seen.exists():
        seen.touch()
        raise AssertionError(f"{name} failed the first time")
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with the plugin loaded and a module `helper`, outside the gate."""
    monkeypatch.delenv("SATURNMQ_GATE", raising=False)
    tests = Path(__file__).resolve().parents[1]
    pytester.makeini(f"[pytest]\npythonpath = {tests} .\naddopts = --strict-markers -p no:cacheprovider\n")
    pytester.syspathinsert(tests)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(helper=HELPER)
    return pytester


def test_failed_realtime_test_runs_again_and_is_counted(session: pytest.Pytester) -> None:
    session.makepyfile(
        """
        import pytest
        from helper import fails_first

        @pytest.mark.realtime
        def test_slow(): fails_first("slow")

        def test_last(): pass
        """
    )
    result = session.runpytest("--reruns-max=3")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines(
        [
            ".*slow failed the first time",
            "RERUN .*::test_slow: passed the second time",
            "1 of at most 3 reruns",
            ".*1 rerun.*",
        ]
    )


def test_realtime_test_that_fails_twice_fails_the_session(session: pytest.Pytester) -> None:
    session.makepyfile(
        """
        import pytest

        @pytest.mark.realtime
        def test_broken(): assert False
        """
    )
    result = session.runpytest("--reruns-max=3")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(["RERUN .*::test_broken: failed again"])


@pytest.mark.parametrize("arguments", [["--reruns-max=3"], []], ids=["pure", "no option"])
def test_other_failures_do_not_run_again(session: pytest.Pytester, arguments: list[str]) -> None:
    marker = "" if arguments else "@pytest.mark.realtime"
    session.makepyfile(
        f"import pytest\nfrom helper import fails_first\n{marker}\ndef test_pure(): fails_first('pure')\n"
    )
    result = session.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("RERUN*")


def test_more_failures_than_allowed_reruns_fail_the_session(session: pytest.Pytester) -> None:
    session.makepyfile(
        """
        import pytest
        from helper import fails_first
        pytestmark = pytest.mark.realtime

        @pytest.mark.parametrize("number", range(4))
        def test_slow(number): fails_first(f"slow{number}")
        """
    )
    result = session.runpytest("--reruns-max=3")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["3 of at most 3 reruns"])


def test_reruns_of_two_processes_are_added(session: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    for name in ("a", "b"):
        session.makepyfile(
            **{
                f"test_{name}": f"""
                import pytest
                from helper import fails_first
                pytestmark = pytest.mark.realtime

                @pytest.mark.parametrize("number", range(2))
                def test_slow(number): fails_first(f"{name}{{number}}")
                """
            }
        )
    arguments = ("-n2", "--dist=loadfile", "-p", "no:timeout")
    result = session.runpytest_subprocess("--reruns-max=3", *arguments)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["4 of at most 3 reruns", "FAILED: more than 3 reruns"])
    for path in session.path.glob("[ab][01]"):
        path.unlink()
    result = session.runpytest_subprocess("--reruns-max=4", *arguments)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["4 of at most 4 reruns"])


def test_rerun_has_new_fixtures_of_every_scope(session: pytest.Pytester) -> None:
    session.makepyfile(
        """
        import pytest
        from helper import fails_first
        made = []

        @pytest.fixture(scope="session")
        def server():
            made.append("server")
            fails_first("server")
            yield len(made)
            fails_first("teardown")

        @pytest.mark.realtime
        def test_first(server): assert server == 2

        def test_without(): pass
        """
    )
    result = session.runpytest("--reruns-max=1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # the teardown of the second run failed
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.re_match_lines([".*server failed the first time", "RERUN .*::test_first: failed again"])


def test_expected_failures_do_not_run_again(session: pytest.Pytester) -> None:
    session.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.realtime

        @pytest.mark.xfail(strict=True)
        def test_known(): assert False

        def test_skipped(): pytest.skip("not here")
        """
    )
    result = session.runpytest("--reruns-max=3")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(xfailed=1, skipped=1)


def test_reruns_of_earlier_sessions_of_a_gate_count(session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATURNMQ_GATE", str(session.path / "gate"))
    session.makepyfile(
        """
        import pytest
        from helper import fails_first

        @pytest.mark.realtime
        def test_slow(): fails_first("slow")
        """
    )
    assert session.runpytest("--reruns-max=1").ret == pytest.ExitCode.OK
    assert (session.path / "gate" / "reruns.txt").read_text().splitlines() == [
        f"{next(session.path.glob('test_*.py')).name}::test_slow"
    ]
    (session.path / "slow").unlink()
    result = session.runpytest("--reruns-max=1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
