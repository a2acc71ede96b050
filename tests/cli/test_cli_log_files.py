"""The servers write their log to the files of `logDirectory` while they run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from saturnmq.cli import servers
from saturnmq.cli.output import EXIT_DONE, EXIT_USAGE
from saturnmq.cli.run import main


@pytest.mark.parametrize("command", ["broker", "standalone"])
def test_log_goes_to_files_while_a_server_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(_: Any) -> int:
        logging.getLogger("saturnmq.stats").info("while it runs")
        return EXIT_DONE

    monkeypatch.setattr(servers, "serve", serve)
    logs = tmp_path / "logs"
    options = [command, "--data", str(tmp_path / "store")]
    assert main([*options, "--set", f"logDirectory={logs}"]) == EXIT_DONE
    logging.getLogger("saturnmq.stats").warning("after it")
    assert [line.partition(" - ")[2] for line in (logs / "stats.log").read_text().splitlines()] == ["while it runs"]
    (tmp_path / "file").write_text("")
    assert main([*options, "--set", f"logDirectory={tmp_path / 'file'}"]) == EXIT_USAGE
    assert "logDirectory" in capsys.readouterr().err
