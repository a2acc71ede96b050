"""Log files of a server: names, sizes, formats, former files, and a directory that cannot be used."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from saturnmq.protocol.errors import ConfigError
from saturnmq.server_admin import log_files as log_files_module
from saturnmq.server_admin.log_files import FILES, MIB, log_files

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_files_have_apaches_names_and_sizes() -> None:
    assert {file.name: (file.bytes_max // MIB, file.former) for file in FILES} == {
        "broker.log": (128, 20), "store.log": (128, 10), "stats.log": (100, 5), "watermark.log": (100, 10),
        "protection.log": (100, 10),
    }  # fmt: skip


@pytest.mark.spec("MON-08", "MON-15", "MON-16")
def test_each_logger_has_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "logs"
    before = list(logging.getLogger().handlers)
    texts = {
        "saturnmq.stats": "[TOPIC_PUT_NUMS] [T] Stats In One Minute, SUM: 60 TPS: 1.00 AVGPT: 10.00",
        "saturnmq.watermark": "[WATERMARK] Send Queue Size: 0 SlowTimeMills: 0",
        "saturnmq.protection": "[PROTECT_BROKER] the consumer[g] consume slowly, 1 bytes, disable it",
        "saturnmq.store.statistics": "[STORETPS] put_tps 1.0",
        "saturnmq.broker.broker": "dispatch behind commit log 0 bytes",
    }
    with log_files(str(folder)):
        for name, text in texts.items():
            logging.getLogger(name).warning("%s", text)
        logging.getLogger("asyncio").warning("a task failed\n2026-01-01 forged")
    logging.getLogger("saturnmq.stats").warning("after the server")
    assert logging.getLogger().handlers == before
    expected = {
        "stats.log": [f"{TIME} WARNING - {re.escape(texts['saturnmq.stats'])}"],
        "watermark.log": [f"{TIME} - {re.escape(texts['saturnmq.watermark'])}"],
        "protection.log": [f"{TIME} - {re.escape(texts['saturnmq.protection'])}"],
        "store.log": [f"{TIME} WARNING saturnmq.store.statistics - {re.escape('[STORETPS] put_tps 1.0')}"],
        "broker.log": [
            f"{TIME} WARNING saturnmq.broker.broker - dispatch behind commit log 0 bytes",
            rf"{TIME} WARNING asyncio - a task failed\\x0a2026-01-01 forged",
        ],
    }
    for name, patterns in expected.items():
        found = lines(folder / name)
        assert len(found) == len(patterns), name
        assert all(re.fullmatch(pattern, line) for pattern, line in zip(patterns, found, strict=True)), found


def test_full_file_is_kept_under_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tuple(file._replace(bytes_max=200) for file in FILES)
    monkeypatch.setattr(log_files_module, "FILES", small)
    stats = logging.getLogger("saturnmq.stats")
    with log_files(str(tmp_path)):
        for number in range(40):
            stats.warning("%s", f"line {number:02d} {'x' * 100}")
    former = sorted(path.name for path in (tmp_path / "otherdays").glob("stats*"))
    assert former == [f"stats.{number}.log" for number in range(1, 6)], "five, as in logback_broker.xml"
    assert (
        "line 39" in (tmp_path / "stats.log").read_text()
        and "line 38" in (tmp_path / "otherdays" / "stats.1.log").read_text()
    )


def test_no_directory_means_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with log_files(""):
        logging.getLogger("saturnmq.stats").warning("x")
    assert list(tmp_path.iterdir()) == []


def test_unusable_directory_is_refused_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = list(logging.getLogger().handlers)
    wanted = r"logDirectory=.*file.* cannot be used: .*name a directory"
    with pytest.raises(ConfigError, match=wanted), log_files(str(tmp_path / "file" / "logs")):
        raise AssertionError("it started")
    assert logging.getLogger().handlers == before


def test_failed_writes_are_reported_once_a_minute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stats = logging.getLogger("saturnmq.stats")
    with log_files(str(tmp_path)):
        handler = next(h for h in stats.handlers if isinstance(h, log_files_module.RotatingFile))
        assert handler.stream is not None
        handler.stream.close()
        for _ in range(100):
            stats.warning("x")
        handler.stream = None
    found = capsys.readouterr().err.splitlines()
    assert len(found) == 1 and found[0].startswith(f"log file not written path={tmp_path / 'stats.log'} error=")
