"""The Makefile on a machine that has only python3 and make."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# A Debian python3 without python3-venv: venv creates half an environment before it notices that ensurepip is missing.
NO_ENSUREPIP = f"""#!/bin/sh
case "$*" in
  "-m venv"*) mkdir -p .venv/bin; echo "no ensurepip" >&2; exit 1;;
  *ensurepip*) echo "ModuleNotFoundError: No module named 'ensurepip'" >&2; exit 1;;
esac
exec {sys.executable} "$@"
"""
OLD_PYTHON = """#!/bin/sh
exit 1
"""


def make(folder: Path, python: str, goal: str) -> subprocess.CompletedProcess[str]:
    """Run `make GOAL` in a copy of the Makefile, with a fake python3."""
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(REPOSITORY / name, folder / name)
    fake = folder / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text(python)
    fake.chmod(0o755)
    env = os.environ | {"PATH": f"{fake.parent}:{os.environ['PATH']}"}
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        env.pop(name, None)
    return subprocess.run(["make", goal], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.spec("UX-05")
@pytest.mark.parametrize("goal", ["demo", "setup", "test"])
def test_make_without_ensurepip_names_missing_package(tmp_path: Path, goal: str) -> None:
    done = make(tmp_path, NO_ENSUREPIP, goal)
    assert done.returncode == 2
    said, stopped = done.stderr.splitlines()
    assert "python3-venv" in said and "apt install" in said
    assert stopped.startswith("make: ***")
    assert done.stdout == ""
    assert not (tmp_path / ".venv").exists()
    assert "python3-venv" in (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.mark.spec("UX-05")
def test_make_with_old_python_fails_with_message(tmp_path: Path) -> None:
    done = make(tmp_path, OLD_PYTHON, "setup")
    assert done.returncode == 2
    assert "older than 3.11" in done.stderr.splitlines()[0]
    assert not (tmp_path / ".venv").exists()


def test_make_lets_python_cache_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "[$PYTHONDONTWRITEBYTECODE]"\n')
    python.chmod(0o755)
    for seconds, stamp in ((2**31, ".light"), (2**32, ".ready")):  # newer than the copy of pyproject.toml
        (tmp_path / ".venv" / stamp).touch()
        os.utime(tmp_path / ".venv" / stamp, (seconds, seconds))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    done = make(tmp_path, OLD_PYTHON, "test")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]"
