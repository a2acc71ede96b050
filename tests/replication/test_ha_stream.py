"""The HA stream against the bytes of docs/spec/02 section 16: positions, limits, and any split of the bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.offsets import PhysicalOffset as At
from saturnmq.replication.masterslave.stream import (
    DATA_BYTES_MAX,
    Extent,
    Frame,
    SlavePosition,
    TransferDecoder,
    check_frame,
    encode_heartbeat,
    encode_report,
)

FILE = 1000


def extent(end: int, first: int = 0) -> Extent:
    return Extent(At(first), At(end), FILE)


def report(offset: int) -> bytes:
    return offset.to_bytes(8, "big", signed=True)


def frame(offset: int, data: bytes) -> bytes:
    return offset.to_bytes(8, "big", signed=True) + len(data).to_bytes(4, "big", signed=True) + data


def slices(position: SlavePosition, log: Extent, batch: int) -> Iterator[tuple[int, int]]:
    while True:
        offset, size = position.next_data(log, batch)
        if not size:
            return
        yield offset, size
        position.sent(size)


def test_first_exchange_with_an_empty_slave() -> None:
    """The example of the specification: the report of an empty slave, a master with 300 bytes."""
    assert encode_report(At(0)) == bytes.fromhex("0000000000000000")
    position = SlavePosition()
    assert position.received(bytes(8), extent(300))
    assert position.next_data(extent(300), 32768) == (0, 300)
    found = list(TransferDecoder().feed(bytes.fromhex("0000000000000000 0000012C") + b"x" * 300))
    assert found == [Frame(0, b"x" * 300)]
    assert encode_heartbeat(At(300)) == bytes.fromhex("000000000000012C 00000000")


def test_nothing_is_sent_before_the_first_report() -> None:
    position = SlavePosition()
    assert position.next_data(extent(300), 100) == (0, 0)
    assert not position.received(report(0)[:7], extent(300))
    assert position.next_data(extent(300), 100) == (0, 0)
    assert position.received(report(0)[7:], extent(300))
    assert position.next_data(extent(300), 100) == (0, 100)


@pytest.mark.parametrize(
    ("offset", "first", "end", "oldest", "start"),
    [
        (0, 0, 2500, False, 2000),
        (0, 0, 2000, False, 2000),
        (0, 1000, 2500, True, 1000),
        (0, 0, 0, False, 0),
        (1, 0, 2500, False, 1),
        (1234, 1000, 2500, False, 1234),
        (2500, 0, 2500, False, 2500),
    ],
)
def test_first_report_decides_where_the_stream_begins(
    offset: int, first: int, end: int, oldest: bool, start: int
) -> None:
    position = SlavePosition(from_oldest=oldest)
    position.received(report(offset), extent(end, first))
    assert (position.position, position.acknowledged) == (start, offset)


@pytest.mark.parametrize(("offset", "why"), [(2501, "lost"), (999, "deleted"), (-1, "deleted"), (1 << 62, "lost")])
def test_first_report_outside_the_log_is_refused(offset: int, why: str) -> None:
    position = SlavePosition()
    with pytest.raises(RemoteProtocolError, match=why):
        position.received(report(offset), extent(2500, 1000))
    assert position.position is None and position.acknowledged == 0


@pytest.mark.parametrize("offset", [1301, 2500, 1 << 62, -1])
def test_report_beyond_what_was_sent_is_refused(offset: int) -> None:
    position = SlavePosition()
    position.received(report(1200), extent(2500))
    position.sent(100)
    with pytest.raises(RemoteProtocolError, match="up to 1300"):
        position.received(report(offset), extent(2500))
    assert position.acknowledged == 1200


def test_of_several_reports_the_last_whole_one_counts() -> None:
    position = SlavePosition()
    position.received(report(0), extent(900))
    position.sent(900)
    assert position.received(report(100) + report(1 << 60) + report(500) + report(700)[:3], extent(900))
    assert position.acknowledged == 500
    assert position.received(report(700)[3:], extent(900))
    assert position.acknowledged == 700
    assert position.received(report(600), extent(900))
    assert position.acknowledged == 700, "an acknowledgement does not go back"


def test_data_never_crosses_a_file_and_ends_with_the_log() -> None:
    position = SlavePosition()
    position.received(report(950), extent(2300))
    assert list(slices(position, extent(2300), 400)) == [
        (950, 50), (1000, 400), (1400, 400), (1800, 200), (2000, 300),
    ]  # fmt: skip
    assert position.next_data(extent(2200), 400) == (2300, 0), "a log that became shorter"


@given(st.data(), st.lists(st.binary(max_size=50), max_size=8))
def test_any_split_of_the_stream_gives_the_same_frames(data: st.DataObject, bodies: list[bytes]) -> None:
    offset, sent, wanted = 5000, b"", []
    for body in bodies:
        sent += frame(offset, body)
        wanted.append(Frame(offset, body))
        offset += len(body)
    decoder, found = TransferDecoder(), []
    while sent:
        cut = data.draw(st.integers(1, len(sent)))
        found += decoder.feed(sent[:cut])
        sent = sent[cut:]
    assert found == wanted


@pytest.mark.parametrize(
    "header",
    [
        (-1).to_bytes(8, "big", signed=True) + bytes(4),
        bytes(8) + (-1).to_bytes(4, "big", signed=True),
        bytes(8) + (DATA_BYTES_MAX + 1).to_bytes(4, "big"),
    ],
)
def test_header_outside_the_limits_is_refused_before_its_data(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="allowed"):
        list(TransferDecoder().feed(header))


@pytest.mark.parametrize(
    ("offset", "size", "end"),
    [(0, 10, 0), (3000, 1000, 0), (3000, 0, 0), (3500, 0, 0), (1500, 500, 1500), (1500, 0, 1500)],
)
def test_frame_that_continues_the_log_is_accepted(offset: int, size: int, end: int) -> None:
    check_frame(Frame(offset, bytes(size)), end, FILE)


@pytest.mark.parametrize(
    ("offset", "size", "end", "why"),
    [
        (1501, 10, 1500, "ends at 1500"),
        (0, 10, 1500, "ends at 1500"),
        (1400, 0, 1500, "ends at 1500"),
        (1500, 501, 1500, "mappedFileSizeCommitLog=1000"),
        (3500, 10, 0, "mappedFileSizeCommitLog=1000"),
    ],
)
def test_frame_that_does_not_continue_the_log_is_refused(offset: int, size: int, end: int, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        check_frame(Frame(offset, bytes(size)), end, FILE)
