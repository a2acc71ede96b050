"""`consumerProgress --since`: the change of lag and consumption, from a history file and the offsets of a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from admincli import AdminCli

import saturnmq.sync
from saturnmq.cli.mqadmin.since import catch_up
from saturnmq.history import GroupChange, History, Sample, Series
from saturnmq.testing.embedded import SyncEmbeddedBroker

SENT = 12
COMMITTED = 8
HOUR = 3600
ADDED = ["#Since", "#Diff Then", "#Consumed", "#Produced", "#Catch Up"]


@pytest.fixture(scope="module")
def client(embedded: SyncEmbeddedBroker) -> Iterator[saturnmq.sync.Client]:
    """A client; of 12 messages the group `slow` has consumed 8, and `new` has consumed all."""
    with saturnmq.sync.Client.from_url(embedded.url) as client, client.producer("p") as out:
        for topic in ("since", "empty"):
            client.create_topic(topic, queues=1)
        for group in ("slow", "new"):  # a member creates the retry topic, by which tools find the group
            with client.consumer(group) as inbox:
                inbox.subscribe("empty", "*")
        out.send_many("since", [b"x"] * SENT)
        puller = client.puller()
        (queue,) = puller.queues("since")
        puller.commit("slow", queue, COMMITTED)
        puller.commit("new", queue, SENT)
        yield client


def recorded(path: Path, hours: float, total: int, lag: int) -> int:
    """Record the group `slow` as it was some hours ago; returns the minute."""
    at = int(time.time() - hours * HOUR)
    with History(path) as history:
        history.record(at, [Sample(Series("group", "DefaultCluster", topic="since", group="slow"), total, lag)])
    return at - at % 60


@pytest.mark.spec("EXP-05")
def test_since_shows_how_a_group_changed(admin_cli: AdminCli, client: saturnmq.sync.Client, tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    recorded(path, 5, 0, 0)
    at = recorded(path, 1, 2, 7)  # of 9 messages
    given = ("consumerProgress", "-g", "slow", "--since", "2h", "--history", str(path))
    document = admin_cli.json(*given)
    assert document["diff_total"] == SENT - COMMITTED
    assert (document["since_ms"], document["diff_then"], document["consumed"], document["produced"]) == (
        at * 1000, 7, 6, 3,
    )  # fmt: skip
    assert document["catch_up_seconds"] == pytest.approx(4 * HOUR / (6 - 3), rel=0.05)
    plain = admin_cli.text(*given[:3])
    text = admin_cli.text(*given)
    assert text.startswith(plain)
    added = text.removeprefix(plain).splitlines()
    assert [line.partition(":")[0] for line in added] == [name.lstrip("#") for name in ADDED]
    assert added[1:4] == ["Diff Then: 7", "Consumed: 6", "Produced: 3"] and added[4].startswith("Catch Up: 1h 2")
    assert admin_cli.json("consumerProgress", "-g", "slow", "--since", "6h", "--history", str(path))["consumed"] == 8


@pytest.mark.spec("EXP-05")
def test_since_adds_columns_to_the_list(admin_cli: AdminCli, client: saturnmq.sync.Client, tmp_path: Path) -> None:
    recorded(tmp_path / "h.db", 1, 2, 7)
    given = ("consumerProgress", "--since", "90min", "--history", str(tmp_path / "h.db"))
    plain = admin_cli.text("consumerProgress").splitlines()
    lines = admin_cli.text(*given).splitlines()
    assert all(line.startswith(before) for line, before in zip(lines, plain, strict=True))
    assert lines[0].endswith("#Catch Up") and all(name in lines[0] for name in ADDED)
    rows = {row["group"]: row for row in admin_cli.json(*given)["rows"]}
    assert (rows["slow"]["diff_then"], rows["slow"]["diff_total"], rows["slow"]["consumed"]) == (7, 4, 6)
    assert rows["new"]["since"] is None and rows["new"]["consumed"] is None and rows["new"]["diff_total"] == 0
    assert "diff_then" not in admin_cli.json("consumerProgress")["rows"][0]


def test_since_without_history_names_what_to_start(
    admin_cli: AdminCli, client: saturnmq.sync.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = admin_cli.run("consumerProgress", "--since", "2h")
    assert code == 1 and not out and "no file history.db or console/history.db" in err
    assert "saturnmq collect -n" in err and not (tmp_path / "history.db").exists()
    recorded(tmp_path / "history.db", 3, 0, 0)
    code, out, err = admin_cli.run("consumerProgress", "--since", "2h")
    assert code == 1 and not out and "no sample of a group in the last 2h" in err and "saturnmq collect" in err
    assert admin_cli.json("consumerProgress", "-g", "slow", "--since", "4h")["consumed"] == COMMITTED
    for words in (("--since", "soon"), ("--history", "h.db")):
        code, out, err = admin_cli.run("consumerProgress", *words)
        assert code == 1 and words[0] in err


@pytest.mark.parametrize(
    ("consumed", "produced", "lag", "text", "seconds"),
    [(30, 20, 10, "1h", 3600.0), (20, 30, 10, "never at these rates", None), (20, 20, 10, "never at these rates", None),
     (5, 9, 0, "0s", 0.0), (3600, 0, 90_061, "1d 1h", 90_061.0), (-5, 0, 9, "never at these rates", None)],
)  # fmt: skip
def test_catch_up_is_estimated(consumed: int, produced: int, lag: int, text: str, seconds: float | None) -> None:
    shown = catch_up(GroupChange(0, lag + consumed - produced, lag, consumed, produced, float(HOUR)))
    assert (shown.text, shown.value) == (text, seconds)
