"""The guide and the README, executed from top to bottom against one default `saturnmq standalone`, as a user would."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recorded import SHORT_JAVA

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_ADDRESS = "127.0.0.1:9876"
BLOCK_SECONDS_MAX = 60
SPARK_SECONDS_MAX = 240
Start = Callable[..., Any]


def blocks(page: str) -> list[tuple[str, str]]:
    """Language with kind, and code, of every fenced block, in order."""
    return re.findall(r"^```(\w[^\n]*)\n(.*?)^```$", (REPOSITORY / page).read_text(encoding="utf-8"), re.S | re.M)


def pasted(code: str) -> str:
    """Code for the interactive prompt, without blank lines inside indented blocks, where the prompt would end the block."""
    return re.sub(r"\n+(?=\n[ \t])", "", code) + "\n"


class Prompt:
    """A `python -m asyncio` prompt into which blocks are pasted one after the other; they share their names."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "asyncio"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors: list[str] = []
        assert self.process.stdout is not None and self.process.stderr is not None
        self._readers = [
            threading.Thread(target=lambda: [self._lines.put(line) for line in self.process.stdout or ()]),
            threading.Thread(target=lambda: [self._errors.append(line) for line in self.process.stderr or ()]),
        ]
        for reader in self._readers:
            reader.start()

    def paste(self, code: str) -> list[str]:
        """Return the lines that a block prints. Fails when it raises or takes more than BLOCK_SECONDS_MAX."""
        assert self.process.stdin is not None
        before = len(self._errors)
        self.process.stdin.write(pasted(code) + '\nprint("-- end of block")\n')
        self.process.stdin.flush()
        printed: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=BLOCK_SECONDS_MAX).removeprefix(">>> ")
            except queue.Empty:
                raise AssertionError(f"no end within {BLOCK_SECONDS_MAX} s:\n{code}\n{''.join(self._errors)}") from None
            if "-- end of block" in line:
                break
            printed.append(line.rstrip("\n"))
        said = "".join(self._errors[before:])
        assert "Error" not in said and "Traceback" not in said, f"{code}\n{said}"
        return printed

    def close(self) -> None:
        """Close stdin and wait for the process to end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=15)
        finally:
            self.process.kill()
            self.process.wait()
            for reader in self._readers:
                reader.join(timeout=5)
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def prompt(tmp_path: Path) -> Iterator[Prompt]:
    started = Prompt(tmp_path)
    yield started
    started.close()


def run(*command: str, folder: Path, seconds_max: float = BLOCK_SECONDS_MAX) -> str:
    """Run a short Python program and return its stdout. Fails when its exit code is not 0."""
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=seconds_max, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.spec("TST-08", "UX-01")
def test_guide_runs_top_to_bottom_on_default_standalone(serve: Start, prompt: Prompt, tmp_path: Path) -> None:
    first, *others = blocks("docs/guide.md")
    assert first == ("shell", "saturnmq standalone --data ./data\n")
    ports = ("--namesrv-port", "0", "--port", "0")  # free ports are the only difference from the guide
    address = serve("standalone", "--data", str(tmp_path / "data"), *ports).facts["namesrv"]
    kinds = [kind for kind, _ in others]
    assert kinds.count("python") >= 11 and set(kinds) <= {"python", "python sync", "python test", "shell"}
    assert DEFAULT_ADDRESS in others[0][1]
    for number, (kind, written) in enumerate(others):
        code = written.replace(DEFAULT_ADDRESS, address)
        if kind == "python":
            prompt.paste(code)
        elif kind == "python sync":
            run("-c", f"URL = 'rmq://{address}'\n{code}", folder=tmp_path)
        elif kind == "python test":
            (tmp_path / f"test_{number}.py").write_text(code)
        else:
            for line in code.splitlines():
                assert line.startswith("saturnmq "), line
                run("-m", "saturnmq.cli", *line.split()[1:], folder=tmp_path)
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", ".", folder=tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.spark
@pytest.mark.spec("UX-01")
def test_readme_runs_top_to_bottom_on_default_standalone(
    serve: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SHORT_JAVA.items():
        monkeypatch.setenv(name, value)
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert "    saturnmq standalone --data ./data\n" in text
    ports = ("--namesrv-port", "0", "--port", "0")
    address = serve("standalone", "--data", str(tmp_path / "data"), *ports).facts["namesrv"]
    (ten_lines, spark) = (code for kind, code in blocks("README.md") if kind == "python")
    assert len([line for line in ten_lines.splitlines() if line.startswith("    ")]) <= 10
    assert DEFAULT_ADDRESS in ten_lines and DEFAULT_ADDRESS in spark
    printed = run("-c", ten_lines.replace(DEFAULT_ADDRESS, address), folder=tmp_path)
    assert "Receipt(" in printed and "b'hello' paid" in printed
    assert "paid" in run("-c", spark.replace(DEFAULT_ADDRESS, address), folder=tmp_path, seconds_max=SPARK_SECONDS_MAX)
