"""Options, ranges, offsets, Java and progress: parts that need no Spark."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import java_home, planning
from saturnmq.spark.fetch import DataLossError
from saturnmq.spark.options import OPTION_NAMES, parse_options
from saturnmq.spark.planning import checked
from saturnmq.spark.progress import ProgressReport
from saturnmq.spark.queue_state import QueueState
from saturnmq.spark.ranges import (
    Bounds,
    Key,
    QueueRange,
    from_offset,
    key_of,
    limited,
    resolved_offsets,
    split,
    to_offset,
)
from saturnmq.spark.sink_options import OPTION_NAMES as SINK_OPTION_NAMES

GIVEN = {"nameServer": "127.0.0.1:9876", "topic": "T"}


@pytest.mark.spec("SPK-10")
def test_all_wrong_options_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    wrong = {
        "topc": "T", "startingOffsets": "soon", "batchRows": "0", "columns": "body,nothing", "failOnDataLoss": "maybe",
        "endingOffsets": '{"T":5}',
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        parse_options(wrong)
    text = str(caught.value)
    for words in ("did you mean 'topic'", "earliest, latest, group or JSON", "at least 1",
                  "unknown column 'nothing'; allowed are topic", "true or false",
                  "endingOffsets must be JSON", "nameServer is missing"):  # fmt: skip
        assert words in text
    assert len(caught.value.problems) >= 7


@pytest.mark.spec("SPK-10")
def test_option_names_ignore_case_and_spark_options_pass() -> None:
    own = {"path": "x", "checkpointLocation": "y", "queryName": "z"}
    options = parse_options({"NAMESERVER": "h:1", "Subscribe": "A, B,A", **own})
    assert (options.name_server, options.topics) == ("h:1", ("A", "B"))
    assert parse_options(GIVEN, streaming=True).starting == "latest"
    with pytest.raises(ConfigError, match="a stream has no end"):
        parse_options(GIVEN | {"endingOffsets": "latest"}, streaming=True)


@pytest.mark.spec("SPK-10")
def test_every_option_is_documented() -> None:
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "spark.md").read_text()
    assert [name for name in (*OPTION_NAMES, *SINK_OPTION_NAMES) if f"`{name}`" not in page] == []


QUEUES = {MessageQueue("T", "b", n): Bounds(10 * n, 100) for n in range(3)}


@pytest.mark.spec("SRC-02")
def test_json_offsets_must_name_exactly_the_queues() -> None:
    offsets = parse_options(GIVEN | {"startingOffsets": '{"T":{"b":{"0":5,"1":-2,"2":-1}}}'}).starting
    assert list(resolved_offsets(QUEUES, offsets, "startingOffsets").values()) == [5, 10, 100]
    short = parse_options(GIVEN | {"startingOffsets": '{"T":{"b":{"0":5,"7":1}}}'}).starting
    with pytest.raises(ConfigError, match=r"does not name T/b/1, T/b/2 and names T/b/7"):
        resolved_offsets(QUEUES, short, "startingOffsets")
    for table, words in (
        ({"0": 5, "1": 5}, "startingOffsets does not name T/b/2"),
        ({"0": 5, "1": 5, "2": 5, "7": 5}, "startingOffsets names T/b/7, which"),
    ):
        named = parse_options(GIVEN | {"startingOffsets": json.dumps({"T": {"b": table}})}).starting
        with pytest.raises(ConfigError, match=words):
            resolved_offsets(QUEUES, named, "startingOffsets")


@pytest.mark.spec("SRC-02")
async def test_bounds_of_the_queues_of_all_brokers_are_asked_at_once() -> None:
    queues = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(2)]
    asked: list[tuple[str, MessageQueue]] = []
    all_asked = asyncio.Event()

    async def ask(bound: str, queue: MessageQueue) -> None:
        asked.append((bound, queue))
        if len(asked) == 2 * len(queues):
            all_asked.set()
        await all_asked.wait()

    class Puller:
        async def queues(self, topic: str) -> list[MessageQueue]:
            return queues

        async def min_offset(self, queue: MessageQueue) -> int:
            await ask("min", queue)
            return queue.queue_id

        async def max_offset(self, queue: MessageQueue) -> int:
            await ask("max", queue)
            return 100 + queue.queue_id

    link: Any = SimpleNamespace(puller=Puller())
    async with asyncio.timeout(10):
        bounds = await planning.bounds(link, parse_options(GIVEN))
    assert bounds == {queue: Bounds(queue.queue_id, 100 + queue.queue_id) for queue in queues}
    assert len(asked) == len(set(asked)) == 8


@pytest.mark.spec("SRC-02", "SRC-15")
def test_offset_outside_queue_is_error_or_clamped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masters confirm the bounds; take-over by slaves is in test_spark_takeover."""

    async def states(_core: Any, _group: str, offsets: dict[MessageQueue, int]) -> dict[Key, QueueState]:
        return {key_of(queue): QueueState(QUEUES[queue]) for queue in offsets}

    def clamped(offset: int, **options: str) -> list[int]:
        link: Any = SimpleNamespace(core=None, puller=SimpleNamespace(group="readers"))
        offsets = dict.fromkeys(QUEUES, offset)
        work = checked(link, dict(QUEUES), offsets, parse_options(GIVEN | options), "startingOffsets")
        return list(asyncio.run(work).values())

    monkeypatch.setattr(planning, "queue_states", states)
    with pytest.raises(DataLossError, match=r"offset 5 of T/b/1 is outside 10\.\.100"):
        clamped(5)
    with pytest.raises(DataLossError, match=r"offset 101 of T/b/0 is outside 0\.\.100"):
        clamped(101)
    assert clamped(5, failOnDataLoss="false") == [5, 10, 20]
    assert clamped(101, failOnDataLoss="false") == [100, 100, 100]


@pytest.mark.spec("SRC-06")
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500)), max_size=6), st.integers(0, 40), st.integers(0, 100)
)
def test_split_covers_ranges_once_within_limits(lengths: list[tuple[int, int]], at_least: int, most: int) -> None:
    whole = [QueueRange("T", "b", n, begin, begin + length) for n, (begin, length) in enumerate(lengths)]
    pieces = split(whole, at_least, most)
    assert all(p.end > p.begin for p in pieces)
    assert not most or all(p.end - p.begin <= most for p in pieces)
    assert len(pieces) >= min(at_least, sum(r.end - r.begin for r in whole))
    for r in whole:
        mine = sorted(p for p in pieces if p.queue_id == r.queue_id)
        covered = [n for p in mine for n in range(p.begin, p.end)]
        assert covered == list(range(r.begin, r.end))


@pytest.mark.spec("STR-01")
def test_stream_offset_text_is_canonical() -> None:
    positions = {("T", "b", 1): 5, ("T", "a", 0): 7, ("S", "b", 10): 1}
    shuffled = dict(reversed(list(positions.items())))
    assert json.dumps(to_offset(positions)) == json.dumps(to_offset(shuffled))
    assert from_offset(to_offset(positions)) == positions
    with pytest.raises(ConfigError, match="no offset of this source"):
        from_offset({"v": 2, "q": {}})


@pytest.mark.spec("STR-04")
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1000)), min_size=1, max_size=8), st.integers(1, 500))
def test_limited_trigger_advances_every_queue_within_limit(backlog: list[tuple[int, int]], most: int) -> None:
    start = {("T", "b", n): begin for n, (begin, _) in enumerate(backlog)}
    latest = {("T", "b", n): begin + more for n, (begin, more) in enumerate(backlog)}
    reached = limited(start, latest, most)
    taken = sum(reached[k] - start[k] for k in start)
    total = sum(more for _, more in backlog)
    assert taken == total if total <= most else 0 < taken <= most + len(backlog)
    assert all(start[k] <= reached[k] <= latest[k] for k in start)
    assert all(reached[k] > start[k] for k in start if latest[k] > start[k])


@pytest.mark.spec("SPK-05")
def test_java_wrapper_drops_only_vector_module_argument(tmp_path: Path) -> None:
    jdk = tmp_path / "a jdk"
    (jdk / "bin").mkdir(parents=True)
    (jdk / "bin" / "java").write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    (jdk / "bin" / "java").chmod(0o755)
    home = java_home.wrapper_home(jdk, tmp_path / "cache")
    again = java_home.wrapper_home(jdk, tmp_path / "cache")
    assert home == again
    command = [
        str(home / "bin" / "java"),
        "-cp",
        "a b",
        "--add-modules=jdk.incubator.vector",
        "$HOME",
        "--add-modules=x",
    ]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.split("\n")[:-1] == ["[-cp]", "[a b]", "[$HOME]", "[--add-modules=x]"]


@pytest.mark.spec("SPK-04")
def test_too_old_java_is_named_with_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="is Java 11; Spark needs 17 or newer"):
        java_home.java_home()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="no usable bin/java"):
        java_home.java_home()


@pytest.mark.spec("CLI-07")
def test_progress_prints_lines_or_nothing_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("saturnmq.spark.progress.time.monotonic", lambda: now[0])
    out = io.StringIO()
    with ProgressReport("work", 1000, stream=out) as report:
        for n in range(100):
            now[0] += 0.125
            report.advance(10)
            assert out.getvalue().count("\n") == (n + 1) // 40
    assert out.getvalue().splitlines()[-1] == "work: 1,000 of 1,000"
    silent = io.StringIO()
    with ProgressReport("work", 10, quiet=True, stream=silent) as report:
        now[0] += 60
        report.at(10)
    assert silent.getvalue() == ""


@pytest.mark.spec("CLI-07")
@pytest.mark.parametrize("colour", [True, False])
def test_progress_bar_on_terminal_respects_no_color(colour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    with ProgressReport("work", 10) as report:
        report.at(10)
    assert "━" in out.getvalue() and "10/10" in out.getvalue()
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]", out.getvalue())) is colour


@pytest.mark.spec("SPK-03")
def test_clients_and_servers_do_not_import_pyspark() -> None:
    code = (
        "import contextlib, sys, saturnmq, saturnmq.sync, saturnmq.cli, saturnmq.broker, saturnmq.namesrv, saturnmq.spark\n"
        "import saturnmq.admin; saturnmq.Client\n"
        "for words in (['--help'], ['broker', '--help'], ['spark', '--help']):\n"
        "    with contextlib.suppress(SystemExit): saturnmq.cli.main(words)\n"
        "print(sorted({'pyspark', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
