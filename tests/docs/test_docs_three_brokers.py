"""docs/three-brokers.md, run from top to bottom by bash, with free ports and fewer messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from code_blocks import REPOSITORY

from ports import free_port, free_ports

PAGE = (REPOSITORY / "docs" / "three-brokers.md").read_text(encoding="utf-8")
MESSAGES = 200


@pytest.mark.long
def test_a_killed_leader_loses_no_acknowledged_message(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.S | re.M)
    (program,) = (code for kind, code in blocks if kind == "python")
    script = "".join(code for kind, code in blocks if kind == "bash")
    name_server, *replication = free_ports(4)
    brokers = [free_port((0, -2)) for _ in range(3)]
    script = script.replace(
        "listenPort=1${n}911", f"listenPort=$(echo {' '.join(map(str, brokers))} | cut -d' ' -f$((n+1)))"
    )
    for port, free in zip(("40911", "41911", "42911", "9876"), (*replication, name_server), strict=True):
        script = script.replace(port, str(free))
    program = (
        program.replace("9876", str(name_server)).replace("1000", str(MESSAGES)).replace("500", str(MESSAGES // 2))
    )
    (tmp_path / "send.py").write_text(program, encoding="utf-8")
    script = f"trap 'kill $(jobs -p); wait' EXIT\n{script}"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    printed = done.stdout.splitlines()
    assert f"{MESSAGES} acknowledged" in printed and str(MESSAGES) in [line.strip() for line in printed], done.stderr
    assert printed[-3:].count("") == 0 and sum("LEADER" in line for line in printed[-3:]) == 1
