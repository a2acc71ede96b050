"""Every row that `verify` reports for a kind of damage: file, byte, offset, text and advice. Expected rows: verify_reports.txt."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from test_store_tools import GIVEN, HARMS, LOG_BYTES, changed, filled, log_file, message, settings_of

from saturnmq.store import MessageStore
from saturnmq.store.tools.verify import PROBLEMS_MAX, VerifyReport, Weight, verify

EXPECTED: Final = Path(__file__).with_name("verify_reports.txt")
Harm = Callable[[Path, list[int]], object]


def queue_file(path: Path) -> Path:
    return path / "consumequeue" / "T" / "0" / f"{0:020d}"


def index_files(path: Path) -> list[Path]:
    return sorted((path / "index").iterdir())


def record(at: int, data: bytes, number: int = 30) -> Harm:
    """Overwrite bytes of a record."""
    return lambda path, offsets: changed(log_file(path, offsets[number]), offsets[number] % LOG_BYTES + at, data)


def without_list(path: Path) -> None:
    for file in path.glob("queues.json*"):
        file.unlink()


def header(at: int, number: int) -> Harm:
    return lambda path, _: changed(index_files(path)[1], at, struct.pack(">i", number))


def all_of(*harms: Harm) -> Harm:
    def harm(path: Path, offsets: list[int]) -> None:
        for each in harms:
            each(path, offsets)

    return harm


FURTHER: dict[str, Harm] = {
    "log file cut": lambda path, offsets: os.truncate(log_file(path, offsets[-1]), LOG_BYTES - 10),
    "log file too long": lambda path, offsets: os.truncate(log_file(path, offsets[-1]), LOG_BYTES + 10),
    "log file missing": lambda path, _: log_file(path, LOG_BYTES).unlink(),
    "log file of zeros": lambda path, _: changed(log_file(path, LOG_BYTES), 0, bytes(LOG_BYTES)),
    "bytes behind the log": lambda path, offsets: changed(log_file(path, offsets[-1]), LOG_BYTES - 100, b"garbage"),
    "last record missing": record(0, bytes(245), -1),
    "store time before": record(56, struct.pack(">q", 1_600_000_000_000)),
    "store time impossible": record(56, struct.pack(">q", -5)),
    "queue offset": record(20, struct.pack(">q", 77)),
    "queue file cut": lambda path, _: os.truncate(queue_file(path), 197),
    "queue file missing": lambda path, _: queue_file(path).unlink(),
    "hole in a queue": lambda path, _: changed(queue_file(path), 40, bytes(20)),
    "unit of size 0": lambda path, _: changed(queue_file(path), 48, bytes(4)),
    "listed queue missing": lambda path, _: shutil.rmtree(path / "consumequeue" / "T" / "1"),
    "queue missing": all_of(
        lambda path, _: shutil.rmtree(path / "consumequeue" / "T" / "1"), lambda path, _: without_list(path)
    ),
    "topic missing": all_of(
        lambda path, _: shutil.rmtree(path / "consumequeue" / "U"), lambda path, _: without_list(path)
    ),
    "queue shorter than listed": lambda path, _: changed(queue_file(path), 180, bytes(20)),
    "index missing": lambda path, _: shutil.rmtree(path / "index"),
    "index and checkpoint missing": all_of(
        lambda path, _: shutil.rmtree(path / "index"), lambda path, _: (path / "checkpoint").unlink()
    ),
    "index file missing": lambda path, _: index_files(path)[1].unlink(),
    "index slots in use": header(32, 1),
    "checkpoint damaged": lambda path, _: (path / "checkpoint").write_bytes(b"\xff" * 100),
    "checkpoint missing": lambda path, _: (path / "checkpoint").unlink(),
    "list damaged": lambda path, _: [file.write_bytes(b"{") for file in path.glob("queues.json*")],
    "flush failed": lambda path, _: (path / "flush-failed.json").write_bytes(b"{}"),
}
ALL: dict[str, Harm] = {name: harm for name, harm, _, _ in HARMS} | FURTHER


def rows(report: VerifyReport, root: Path) -> Iterator[str]:
    """The report as text; index files, which are named by local time, by their number."""
    names = (
        {path.name: f"file {number}" for number, path in enumerate(index_files(root))}
        if (root / "index").is_dir()
        else {}
    )
    yield (
        f"sound={report.sound} damage={report.damage_total} problems={report.problems_total} records={report.records} "
        f"units={report.queue_units} entries={report.index_entries} log={report.log_start}..{report.log_end}"
    )
    for problem in report.problems:
        path = problem.path.relative_to(root)
        shown = path.with_name(names.get(path.name, path.name))
        what = problem.description.replace(str(root), "ROOT")
        yield f"{problem.weight.name} {shown} byte={problem.at} offset={problem.offset}: {what} -> {problem.next}"


def expected() -> dict[str, list[str]]:
    blocks = EXPECTED.read_text(encoding="utf-8").strip().split("\n\n")
    return {block.splitlines()[0].removeprefix("# "): block.splitlines()[1:] for block in blocks}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    root = tmp_path_factory.mktemp("verify") / "store"
    return root, filled(root)


def test_every_harm_has_expected_rows() -> None:
    assert list(expected()) == list(ALL)


@pytest.mark.parametrize("name", ALL)
def test_report_of_damage(store: tuple[Path, list[int]], tmp_path: Path, name: str) -> None:
    whole, offsets = store
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    ALL[name](root, offsets)
    assert list(rows(verify(settings_of(root), GIVEN), root)) == expected()[name]


def test_files_of_a_report_are_all_files_of_the_store(store: tuple[Path, list[int]]) -> None:
    root, offsets = store
    report = verify(settings_of(root), GIVEN)
    shown = [(row.kind, row.path.parent.name, row.bytes, row.count, row.first, row.last) for row in report.files]
    logs = [[at for at in offsets if at // LOG_BYTES == n] for n in range(4)]
    assert shown[:4] == [("commit log", "commitlog", LOG_BYTES, len(each), each[0], each[-1]) for each in logs]
    assert shown[4:10] == [("consume queue", str(n % 3), 200, 10, 0, 9) for n in range(6)]
    assert [(kind, count) for kind, _, _, count, _, _ in shown[10:]] == [("index", 49)] * 3 + [("index", 33)]
    assert [(first, last) for _, _, _, _, first, last in shown[10:]][-1] == (offsets[49], offsets[59])
    assert {size for kind, _, size, _, _, _ in shown if kind == "index"} == {40 + 4 * 16 + 20 * 50}


def test_report_keeps_a_bounded_number_of_problems(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "config").mkdir()
    for number in range(PROBLEMS_MAX + 5):
        (tmp_path / "config" / f"{number:04d}.json").write_bytes(b"{")
    report = verify(settings_of(tmp_path), GIVEN)
    assert len(report.problems) == PROBLEMS_MAX < report.problems_total == report.damage_total == PROBLEMS_MAX + 5


def test_store_that_never_had_an_index_is_sound(tmp_path: Path) -> None:
    store = MessageStore(settings_of(tmp_path, message_index_enable=False))
    store.open()
    for number in range(3):
        store.put(message(number))
    asyncio.run(store.stop())
    report = verify(settings_of(tmp_path), GIVEN)
    assert report.sound and [(row.weight, row.path, row.offset) for row in report.problems] == [
        (Weight.REMARK, tmp_path / "index", 0)
    ]
    assert report.problems[0].description.startswith("there is no index: 3 records with keys, the first at offset 0,")
    assert verify(settings_of(tmp_path, message_index_enable=False), GIVEN).problems == []
