"""Where the folders of tests are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.gate import folders

pytest_plugins = ["pytester"]


@pytest.fixture
def memory(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /dev/shm, in a session without the variable."""
    path = pytester.mkdir("memory")
    monkeypatch.setattr(folders, "MEMORY", path)
    monkeypatch.setenv(folders.VARIABLE, "")  # restored at the end, whatever the session sets
    monkeypatch.delenv(folders.VARIABLE)
    monkeypatch.setattr(folders, "FREE_BYTES_MIN", 1)
    return path


def configured(pytester: pytest.Pytester, *options: str) -> str | None:
    """The folder for temporary folders in a session with these options."""
    pytester.parseconfigure("-p", "harness.gate.folders", *options)
    return os.environ.get(folders.VARIABLE)


def test_folders_are_in_memory_with_the_option_only(pytester: pytest.Pytester, memory: Path) -> None:
    assert configured(pytester) is None
    assert configured(pytester, "--folders-in-memory") == str(memory)


def test_a_root_that_the_environment_names_is_kept(
    pytester: pytest.Pytester, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(folders.VARIABLE, "/elsewhere")
    assert configured(pytester, "--folders-in-memory") == "/elsewhere"


def test_folders_stay_on_disk_without_memory(
    pytester: pytest.Pytester, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "FREE_BYTES_MIN", 1 << 60)  # as where /dev/shm has 64 MB
    assert configured(pytester, "--folders-in-memory") is None
    monkeypatch.setattr(folders, "FREE_BYTES_MIN", 1)
    memory.rmdir()
    assert configured(pytester, "--folders-in-memory") is None
