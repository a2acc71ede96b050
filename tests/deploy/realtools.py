"""The programs that check files for other systems, where they are installed: `make deploy-tools` puts them into build/tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = REPOSITORY / "build" / "tools" / "bin"


def checked_by(tool: str, *arguments: str | Path) -> str:
    """Run a tool and return what it prints. Skips the test where the tool is not installed, fails where it finds something."""
    program = shutil.which(tool, path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip(f"{tool} is not installed: make deploy-tools")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
