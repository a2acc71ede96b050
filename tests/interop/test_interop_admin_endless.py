"""`clusterRT`, which runs until it is interrupted, prints what `mqadmin` prints, on a broker of ours and on one of Apache's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import apache
import pytest
import saturn
from admin_compare import Line, masked
from javatools import java_command, java_environment
from processes import ServerProcess

TABLE = Line("clusterRT -a 3 -s 20 -i 1", masks=((r"\d+\.\d\d +", "RT "),))
OF_A_LOG = Line(
    "clusterRT -a 3 -i 1 -p true -m east", masks=((r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\|", "TIME|"), (r"\|\d+$", "|RT"))
)
ROUNDS = {TABLE: 4, OF_A_LOG: 3}  # lines that are compared; a table begins with its head
LINES_S = 60.0


def first_lines(command: list[str], environment: dict[str, str], folder: Path, lines: int) -> list[str]:
    """What a command prints first on stdout or stderr; it is ended after that."""
    process = ServerProcess(command, name=command[-1], env=environment, cwd=folder)
    try:
        process.wait_for_line("", LINES_S, after=lines - 1)
        return process.lines[:lines]
    finally:
        process.stop()


@pytest.mark.interop_full
@pytest.mark.spec("C-20")
@pytest.mark.parametrize("kind", [saturn.SaturnCluster, apache.ApacheCluster])
def test_cluster_rt_prints_the_same_until_interrupted(
    kind: type[saturn.SaturnCluster | apache.ApacheCluster], home: Path, tmp_path: Path
) -> None:
    with kind(tmp_path / "cluster") as cluster:
        for line, lines in ROUNDS.items():
            words = [*line.words.split(), "-n", cluster.name_servers]
            java = java_command("org.apache.rocketmq.tools.command.MQAdminStartup", words, home=home)
            theirs = "\n".join(first_lines(java, java_environment(home), tmp_path, lines))
            ours = [sys.executable, "-m", "saturnmq.cli", "admin", *words]
            assert masked("\n".join(first_lines(ours, dict(os.environ), tmp_path, lines)), line) == masked(theirs, line)
