"""The decision log: foreign files, damaged and earlier logs, failing disks, growth, and the cost of check-backs."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from saturnmq.client.receipt import TransactionState
from saturnmq.errors import ConnectFailed
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.spark import decision_log, transactional
from saturnmq.spark.connect import ConnectionOptions
from saturnmq.spark.decision_log import KEPT_BATCHES, QUIET_MS, BatchDecision, DecisionLog, Fence, StoredHalf

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


def half(n: int, broker: str = "b") -> StoredHalf:
    return StoredHalf(f"ID{n}", "T", broker, QueueOffset(n), offset_message_id(("127.0.0.1", 1), PhysicalOffset(n)))


def decision(batch: str, count: int = 3) -> BatchDecision:
    return BatchDecision("q", batch, frozenset({"t"}), tuple(half(n) for n in range(count)))


FENCE = Fence("q", "7", 0, 0, "t")


def test_decision_log_ignores_files_of_others(tmp_path: Path) -> None:
    log = DecisionLog(str(tmp_path))
    log.decide(decision("7"))
    for name in (
        "notes.json",
        "\u00b2.json",
        "7 (copy).json",
        "7.x.json",
        "08.json",
        ".DS_Store",
        "x.done",
        "\u00b2.done",
    ):
        (tmp_path / name).write_text("not a decision")
    (tmp_path / "9.d").mkdir()
    assert log.batches() == ["7"] and log.last() == 7 and len(log.open_ends()) == 3
    log.finish("7")
    assert (tmp_path / "notes.json").exists() and (tmp_path / "x.done").exists()


def test_log_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    """Earlier versions kept one journal per batch, appended to it after a torn line, and kept it when the batch was finished."""
    log = DecisionLog(str(tmp_path))
    log.decide(decision("7", 5))
    (tmp_path / "7.journal").write_text("T ID0 1000\nD ID0 1001\nT ID1 10T ID2 2000\nT ID3 3")
    claim = log.claim("7", iter([half(n) for n in range(5)]), 9)
    assert claim is not None and [item.uniq for item in claim.halves] == ["ID1", "ID3", "ID4"]
    assert log.verdict(FENCE, "ID0") is ROLLBACK and log.verdict(FENCE, "ID2") is COMMIT
    (tmp_path / "8.json").write_text((tmp_path / "7.json").read_text().replace('"7"', '"8"'))
    (tmp_path / "8.journal").write_text("what is this\n")
    with pytest.raises(StoreError, match=r"8.journal is damaged: line 'what is this' is no entry; restore the file"):
        log.claim("8", iter([half(0)]), 9)
    (tmp_path / "8.done").touch()
    (tmp_path / ".8.json.0123").touch()  # a writer killed before it removed its temporary file
    log.decide(decision("200"))
    log.finish("200")
    assert not [path for path in tmp_path.iterdir() if "8." in path.name]


@pytest.mark.parametrize("failing", ["fsync", "link"])
def test_decision_log_error_names_folder_and_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    log = DecisionLog(str(tmp_path / "log"))
    log.decide(decision("6"))
    claim = log.claim("6", iter([half(0)]), 9)
    assert claim is not None

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, fail)
    writes = [lambda: log.decide(decision("7")), lambda: log.abort("q", "8", frozenset({"x"}))]
    if failing == "fsync":
        writes += [lambda: log.acknowledge("6", claim, claim.halves), lambda: log.finish("6")]
    for write in writes:
        with pytest.raises(OSError, match="No space left on device; make this folder writable") as caught:
            write()
        assert str(log.folder) in str(caught.value) and "option decisionLog" in str(caught.value)
        assert caught.value.errno == errno.ENOSPC
    assert not list(log.folder.glob(".*"))


def test_files_of_finished_batch_writes_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that foreachBatch writes is a batch write: without a limit the folder grew by two files for each."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(decision_log, "KEPT_SECONDS", -1)
    monkeypatch.setattr(transactional, "linked", linked_to(Broker()))
    log = DecisionLog(str(tmp_path))
    for n in range(KEPT_BATCHES + 50):
        run = f"run-{n}"
        if n % 2:
            transactional.abort(ConnectionOptions(), log, "g", [], "-", run)
        else:
            log.decide(decision(run))
            log.finish(run)
        os.utime(tmp_path / f"{run}.done", (n, n))
    log.finish(f"run-{KEPT_BATCHES + 49}")
    assert log.batches() == sorted(f"run-{n}" for n in range(50, KEPT_BATCHES + 50))
    assert len(list(tmp_path.iterdir())) == 2 * KEPT_BATCHES


@pytest.mark.parametrize(("age_s", "kept"), [(3590, True), (3610, False)])
def test_files_of_batch_writes_are_kept_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int, kept: bool
) -> None:
    """A broker may ask about a half for so long, however many batch writes there were meanwhile."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    log = DecisionLog(str(tmp_path))
    now = time.time()
    monkeypatch.setattr(decision_log.time, "time", lambda: now)
    for n in range(KEPT_BATCHES + 1):
        log.decide(decision(f"run-{n}"))
        (tmp_path / f"run-{n}.done").touch()
        os.utime(tmp_path / f"run-{n}.done", (now - age_s + n, now - age_s + n))
    log.finish(f"run-{KEPT_BATCHES}")
    assert ("run-0" in log.batches(), "run-1" in log.batches()) == (kept, True)


def test_files_of_finished_stream_batches_are_kept_for_a_hundred_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unfinished batch keeps its files whatever its number, and batch writes beside the stream keep theirs."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    log = DecisionLog(str(tmp_path))
    for batch in ("3", "4", "run-old", "5", "104"):
        log.decide(decision(batch))
    for batch in ("4", "5", "run-old", "104"):
        log.finish(batch)
    assert log.batches() == ["run-old", "3", "4", "5", "104"]
    log.decide(decision("105"))
    log.finish("105")
    assert log.batches() == ["run-old", "3", "5", "104", "105"] and log.last() == 105


def test_check_backs_do_not_read_the_whole_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers ask about thousands of halves at once: neither aborts, nor journals, nor the folder are read for each of them."""
    log = DecisionLog(str(tmp_path))
    for n in range(50):
        log.abort("q", "8", frozenset({f"a{n}"}))
    log.decide(decision("7", 40))
    rest = iter([half(n) for n in range(40)])
    while (claim := log.claim("7", rest, 2)) is not None:
        log.acknowledge("7", claim, claim.halves[:1])
    reads: Counter[str] = Counter()
    read_text, iterdir = Path.read_text, Path.iterdir

    def read(path: Path) -> str:
        reads[path.suffix] += 1
        return read_text(path)

    def listed(path: Path) -> Iterator[Path]:
        reads["folder"] += 1
        return iterdir(path)

    monkeypatch.setattr(decision_log, "LAST_SECONDS", 1000.0)
    fresh = DecisionLog(str(tmp_path))
    fresh._last = (-1000.0, None)
    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(Path, "iterdir", listed)
    for _ in range(10):
        assert fresh.verdict(FENCE, "ID0") is ROLLBACK and fresh.verdict(FENCE, "ID1") is UNKNOWN
        assert fresh.verdict(FENCE._replace(batch="8", token="a3"), "ID1") is ROLLBACK
    assert reads["folder"] == 1 and reads[".journal"] <= 21 and reads[".json"] <= 50 + 10 * 3 + 5
    fresh.decide(decision("9"))
    assert (
        fresh.verdict(FENCE._replace(batch="8", token="new"), "ID1") is ROLLBACK
    )  # decided by this object: seen at once


def test_check_back_of_another_query_is_unknown_beside_a_decision(tmp_path: Path) -> None:
    """The newest decision may have been read just before this query's first one was recorded."""
    log = DecisionLog(str(tmp_path))
    assert log.verdict(FENCE._replace(query="q2"), "ID0") is UNKNOWN
    DecisionLog(str(tmp_path)).decide(decision("7"))
    assert log.verdict(FENCE._replace(query="q2"), "ID0") is UNKNOWN
    assert log.verdict(FENCE, "ID9") is ROLLBACK


class Broker:
    """A link to brokers: those named away are unreachable, those named busy reject every end as busy."""

    def __init__(self, *, away: str = "", busy: str = "") -> None:
        self.away, self.busy, self.now_ms = away, busy, 10**12
        self.calls: Counter[str] = Counter()
        self.core = self.remote = self

    def run(self, work: Any) -> Any:
        return asyncio.run(work)

    async def master_address(self, topic: str, broker: str) -> str:
        return broker

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.calls[address] += 1
        self.now_ms += 100
        if address == self.away:
            raise ConnectFailed("connection refused", sent=False)
        is_end = "tranStateTableOffset" in command.ext
        return Command(ResponseCode.SYSTEM_BUSY if address == self.busy and is_end else ResponseCode.SUCCESS)

    async def call_all(
        self, address: str, commands: Sequence[Command], timeout_ms: int
    ) -> list[Command | ConnectFailed]:
        outcomes: list[Command | ConnectFailed] = []
        for command in commands:
            try:
                outcomes.append(await self.call(address, command, timeout_ms))
            except ConnectFailed as error:
                outcomes.append(error)
        return outcomes


def linked_to(broker: Broker) -> Any:
    @contextmanager
    def linked(connection: ConnectionOptions) -> Iterator[Broker]:
        yield broker

    return linked


def patched(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    monkeypatch.setattr(transactional, "linked", linked_to(broker))
    monkeypatch.setattr(transactional, "REACH_SECONDS", 0.0)
    monkeypatch.setattr(transactional, "PAUSE_S", (0.0, 0.0))
    for module in (decision_log, transactional):
        monkeypatch.setattr(module, "now_ms", lambda: broker.now_ms)


def test_commit_does_not_wait_for_a_broker_without_unsent_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check-back settles ends whose response was lost, so the query need not wait until their broker is back."""
    patched(monkeypatch, broker := Broker(away="away"))
    log, halves = DecisionLog(str(tmp_path)), (half(0, "away"), half(1, "b"))
    fence = FENCE._replace(batch="0")
    log.decide(BatchDecision("q", "0", frozenset({"t"}), halves))
    assert log.claim("0", iter(halves[:1]), 1)
    assert transactional.commit(ConnectionOptions(), log, "g", [transactional.Halves(fence, halves)], "0") == 1
    assert "away" not in broker.calls


def test_commit_stops_at_a_broker_that_stays_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise claim after claim expires, and check-backs have to commit the whole batch."""
    patched(monkeypatch, Broker(busy="busy"))
    log, halves = DecisionLog(str(tmp_path)), tuple(half(n, "busy") for n in range(1000))
    with pytest.raises(StoreError, match="broker busy accepts no ends: "):
        transactional.commit(ConnectionOptions(), log, "g", [transactional.Halves(FENCE, halves)], "7")
    assert len(log.noted("7")[0]) == 4 * transactional.ENDS_AT_ONCE and QUIET_MS


def test_rollback_asks_an_unreachable_broker_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With 200,000 halves and connections that time out an abort took hours, and logged a line for each half."""
    patched(monkeypatch, broker := Broker(away="away"))
    halves = tuple(half(n, "away" if n % 2 else "b") for n in range(2000))
    written = [transactional.Halves(FENCE, halves)]
    assert transactional.abort(ConnectionOptions(), DecisionLog(str(tmp_path)), "g", written, "q", "7") == 1000
    assert broker.calls["away"] <= transactional.ENDS_AT_ONCE and broker.calls["b"] == 1000
    assert "half message ends not sent broker=away count=" in caplog.text and len(caplog.records) < 100
