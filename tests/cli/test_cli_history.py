"""`saturnmq collect` and `saturnmq history` against a standalone server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from saturnmq.sync import Client

Cli = Callable[..., Any]


@pytest.mark.realtime
@pytest.mark.spec("EXP-05", "CLI-02")
def test_history_of_a_topic_is_collected_and_shown(standalone: Callable[..., Any], cli: Cli, tmp_path: Path) -> None:
    address = standalone().facts["namesrv"]
    with Client.from_url(f"rmq://{address}") as client, client.producer("p") as out:
        out.send_many("orders", [b"x"] * 5)
    data = str(tmp_path / "history.db")
    done = cli("collect", "-n", address, "--data", data, "--once")
    assert done.returncode == 0 and done.stdout.startswith("saturnmq: ready name_servers="), done.stderr
    done = cli("history", "--data", data, "--topic", "orders", "--json")
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["total"], row["kept"], row["rate"]) == (5, 5, None)
    assert row["at_ms"] == 1000 * datetime.fromisoformat(row["at"]).timestamp() and row["at"].endswith("+00:00")
    assert "at_ms" not in cli("history", "--data", data, "--topic", "orders").stdout, "for programs only"
    done = cli("history", "--data", data)
    assert "orders" in done.stdout and "broker" in done.stdout


def test_history_names_what_is_wrong(cli: Cli, tmp_path: Path) -> None:
    done = cli("history", "--data", str(tmp_path / "none.db"))
    assert done.returncode == 2 and "saturnmq collect writes one" in done.stderr
    (tmp_path / "h.db").touch()
    for words, message in (
        (("--group", "g"), "--group needs --topic"),
        (("--topic", "t", "--since", "soon"), "--since 'soon' must be a duration"),
    ):
        done = cli("history", "--data", str(tmp_path / "h.db"), *words)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    done = cli("history", "--data", str(tmp_path / "h.db"), "--topic", "t")
    assert done.returncode == 3 and "no samples" in done.stderr
