"""A stream whose broker is away for a while waits for it: it neither fails nor reports data loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from simulated_topics import KnownBounds, SimulatedTopics, reader_of

from saturnmq.errors import BrokerNotExist, ConnectFailed, RouteNotFound
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.spark import stream
from saturnmq.spark.fetch import DataLossError
from saturnmq.spark.pipelines import pipeline, running
from saturnmq.spark.queue_state import QueueState
from saturnmq.spark.ranges import Bounds, Key, Preceding, to_offset
from saturnmq.spark.stream import StreamReader
from saturnmq.spark.stream_queries import Snapshot

A, B, C = ("T", "a", 0), ("T", "b", 0), ("T", "b", 1)
WHOLE = {A: Bounds(0, 50), B: Bounds(0, 70), C: Bounds(5, 9)}
START, END = to_offset(dict.fromkeys(WHOLE, 5)), to_offset({A: 50, B: 70, C: 9})


def no_route() -> ConfigError:
    error = ConfigError("option topic: 'T' cannot be read")
    error.__cause__ = RouteNotFound("no route")
    return error


class Script(KnownBounds):
    """Gives these answers, the last one repeatedly. Brokers without a queue in an answer are down."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__({})
        self._answers = answers

    def snapshot(self) -> Snapshot:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, SaturnError):
            raise answer
        self.bounds = answer
        self.down = {"a", "b"} - {broker for _, broker, _ in answer}
        return super().snapshot()


@pytest.fixture
def clock() -> list[float]:
    """The time of readers, one number, in seconds."""
    return [0.0]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> Callable[..., tuple[StreamReader, list[float]]]:
    """A reader that gets these broker answers, the last one repeatedly, and the list of its waits in seconds."""

    def make(*answers: Any, **options: str) -> tuple[StreamReader, list[float]]:
        waited: list[float] = []

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            clock[0] += seconds

        monkeypatch.setattr(stream, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
        defaults = {"topic": "T", "metadataRefreshMs": "1000", "readTimeoutMs": "120000"}
        return reader_of(Script(list(answers)), **(defaults | options)), waited

    return make


@pytest.mark.spec("SRC-13", "SRC-15", "STR-15")
def test_batch_waits_for_unavailable_broker(made: Any) -> None:
    """Killed and restarted: first nothing answers, then the topic has no route, then only one of two brokers is registered."""
    without_b = {A: WHOLE[A]}
    reader, waited = made(ConnectFailed("refused"), no_route(), without_b, without_b, WHOLE)
    pieces = [p.piece for p in reader.partitions(START, END)]
    assert [piece[:5] for piece in pieces] == [(*A, 5, 50), (*B, 5, 70), (*C, 5, 9)]
    assert waited == [0.1, 0.2, 0.4, 0.8]
    reader, waited = made(without_b)
    assert len(reader.partitions(START, to_offset({A: 50, B: 5, C: 5}))) == 1 and not waited, (
        "nothing of b is asked for"
    )


@pytest.mark.spec("SRC-13", "SRC-15")
def test_wait_for_broker_is_bounded_by_read_timeout(made: Any) -> None:
    reader, waited = made(ConnectFailed("refused by 1.2.3.4"), readTimeoutMs="20000")
    with pytest.raises(ConnectFailed, match=r"1\.2\.3\.4"):
        reader.partitions(START, END)
    assert 20 <= sum(waited) <= 26
    reader, waited = made({A: WHOLE[A]}, readTimeoutMs="20000")
    with pytest.raises(BrokerNotExist, match=r"T/b/0, T/b/1 cannot be read: broker b is not registered .* 20000 ms"):
        reader.partitions(START, END)  # no data loss
    assert sum(waited) >= 20
    reader, waited = made({A: WHOLE[A], B: WHOLE[B]})
    with pytest.raises(DataLossError, match="broker b, queue 1"):
        reader.partitions(START, END)
    assert not waited, "its broker is there, and does not have the queue"
    reader, waited = made(ConfigError("something else"))
    with pytest.raises(ConfigError):
        reader.partitions(START, END)
    assert not waited


@pytest.mark.spec("SRC-13", "STR-09")
def test_latest_offset_keeps_last_known_ends_without_answer(made: Any, clock: list[float]) -> None:
    reader, waited = made(
        WHOLE, no_route(), ConnectFailed("refused"), WHOLE | {A: Bounds(0, 60)}, metadataRefreshMs="0"
    )
    limit = reader.getDefaultReadLimit()
    ends = []
    for _ in range(4):
        ends.append(reader.latestOffset(START, limit))
        clock[0] += 5  # the time to the next poll after failed ones
    assert ends[:3] == [END] * 3 and ends[3] == to_offset({A: 60, B: 70, C: 9}) and not waited
    reader, waited = made(no_route())
    with pytest.raises(ConfigError):  # a starting query fails at once
        reader.latestOffset(START, limit)
    assert not waited


@pytest.mark.parametrize(("refresh_ms", "most"), [("0", 18), ("1000", 14), ("10000", 6)])
def test_stream_polls_less_often_while_a_broker_is_away(
    made: Any, clock: list[float], refresh_ms: str, most: int
) -> None:
    """Spark asks every 10 ms for a minute; each poll is two requests a queue, also to the brokers that answer."""
    reader, _ = made(WHOLE, ConnectFailed("refused"), metadataRefreshMs=refresh_ms)
    limit = reader.getDefaultReadLimit()
    asked: list[float] = []
    snapshot = reader._queries.snapshot

    def counted() -> Snapshot:
        asked.append(clock[0])
        return snapshot()  # type: ignore[no-any-return]

    reader._queries.snapshot = counted
    for _ in range(6000):
        assert reader.latestOffset(END, limit) == END
        clock[0] += 0.01
    pauses = [later - at for at, later in itertools.pairwise(asked)]
    assert 6 <= len(asked) <= most and max(pauses) < max(5.0, int(refresh_ms) / 1000) + 0.1, pauses
    reader._queries._answers = [WHOLE]
    clock[0] += 10
    asked.clear()
    for _ in range(20):
        reader.latestOffset(END, limit)
        clock[0] += 0.5
    assert len(asked) == {"0": 40, "1000": 10, "10000": 1}[refresh_ms], "at the usual interval again"


class SlaveAnswers(SimulatedTopics):
    """Topics whose bounds and records a slave answers, differently from its master; only the state comes from the master."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[Key, Bounds] = {}
        self.copies: dict[Key, Preceding] = {}
        self.has_master = True

    def snapshot(self) -> Snapshot:
        snapshot = super().snapshot()
        return snapshot._replace(bounds=snapshot.bounds | self.limits)

    def records(self, offsets: Mapping[Key, int]) -> dict[Key, Preceding]:
        return super().records(offsets) | {key: self.copies[key] for key in offsets if key in self.copies}

    def states(self, offsets: Mapping[Key, int]) -> dict[Key, QueueState]:
        if self.has_master:
            return super().states(offsets)
        return {key: QueueState(reason=f"broker {key[1]} has no master at the name server") for key in offsets}


@pytest.mark.parametrize("tolerant", ["true", "false"])
@pytest.mark.parametrize(
    ("limits", "copy", "moves"),
    [(Bounds(0, 4), None, True), (Bounds(6, 10), None, False), (Bounds(0, 10), Preceding(1, 1), True)],
    ids=["behind", "begins later", "another record"],
)
def test_slave_answer_is_no_proof_of_loss(
    tmp_path: Path, limits: Bounds, copy: Preceding | None, moves: bool, tolerant: str
) -> None:
    """Waited for, then an error that is not data loss, also with failOnDataLoss=false; the master's answer decides."""
    topics = SlaveAnswers()
    topics.create(A)
    names = topics.append(A, 10)
    options = {"failOnDataLoss": str(tolerant == "false").lower(), "dataLossLog": str(tmp_path / "loss")}
    first = reader_of(topics, startingOffsets="earliest", **options)
    start, limit = first.initialOffset(), first.getDefaultReadLimit()
    end = first.latestOffset(start, limit)
    topics.limits = {A: limits}
    topics.copies = {A: copy} if copy else {}
    topics.has_master = False
    reader = reader_of(topics, **options)
    for plan in [lambda: reader.partitions(start, end), *([lambda: reader.latestOffset(end, limit)] if moves else [])]:
        with pytest.raises(BrokerNotExist, match=r"T/a/0 cannot be read: broker a has no master .* up to 1 ms"):
            plan()
    topics.has_master = True
    assert reader.latestOffset(end, limit) == end
    assert [name for part in reader.partitions(start, end) for name in topics.read(part.piece)] == names  # type: ignore[attr-defined]
    assert not (tmp_path / "loss").exists()


@pytest.mark.spec("PIP-05")
def test_killed_jvm_ends_driver_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The session cannot be stopped any more; that must not hide the cause or change the exit code."""

    class Gone:
        def stop(self) -> None:
            raise ConnectionRefusedError("no JVM")

    def killed(*_: Any) -> Any:
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(running, "session", lambda *_, **__: Gone())
    found = replace(pipeline("compact"), run=killed)
    assert running.run(found, ["./lake/t", "--quiet"]) == 1
    assert capsys.readouterr().err == "saturnmq spark compact: Answer from Java side is empty\n"
