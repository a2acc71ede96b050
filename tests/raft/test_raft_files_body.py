"""Body check of entries: which damage it detects, and that no entry is read without it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from saturnmq.protocol.errors import CorruptRecord, MessageError
from saturnmq.protocol.message import Host, Message, decode_record, encode_record
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.entry import entry_position as place_of
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message

V4, V6 = Host("127.0.0.1", 10911), Host("::1", 10911)


def record(number: int, born: Host = V4, store: Host = V4) -> bytes:
    body = b"payload %d" % number
    return encode_record(Message("Topic", body, b"TAGS\x01a", born_host=born, store_host=store))


def as_decoded(body: bytes) -> bool:
    """Reference implementation of the check, which decodes the record."""
    try:
        return decode_record(body, 0, check_crc=True).store_bytes == len(body)
    except MessageError:
        return False


@pytest.mark.spec("DUR-08", "DL-X16")
@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("store", [V4, V6])
def test_body_check_equals_decoding(born: Host, store: Host) -> None:
    good = record(1, born, store)
    assert message_is_good(memoryview(good))
    cases = [good[:cut] for cut in range(len(good))] + [good + b"\0", noop_message(("127.0.0.1", 1), 5)]
    cases += [good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :] for at in range(len(good)) for bit in (1, 64, 128)]
    rng = random.Random(7)
    for _ in range(2000):
        noisy = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            noisy[rng.randrange(len(noisy))] = rng.choice((0, 1, 127, 128, 255))
        cases.append(bytes(noisy))
    for case in cases:
        assert message_is_good(memoryview(case)) == as_decoded(case), case


@pytest.mark.spec("DUR-08", "DL-X16")
def test_body_check_detects_every_flipped_payload_bit() -> None:
    good = record(2)
    at = good.index(b"payload")
    for place in range(at, at + len(b"payload 2")):
        for bit in range(8):
            hurt = good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :]
            assert not message_is_good(memoryview(hurt))


@pytest.mark.spec("DUR-08", "DUR-10", "DL-X16")
def test_damaged_entry_raises_error_naming_file_and_byte(tmp_path: Path) -> None:
    files = LedgerFiles(tmp_path, file_bytes=1024, index_file_units=64, body_is_good=message_is_good)
    files.open()
    for number in range(8):
        body, end = record(number), files.end_pos
        pos = end if end % 1024 + 56 + len(body) <= 1024 else end - end % 1024 + 1024
        files.append([Entry(number, 0, pos, body)])
    hurt = files.entry(7)
    assert hurt is not None
    assert hurt.pos >= 1024
    file = files.data.files[hurt.pos // 1024]
    at = hurt.pos - file.start
    place = at + 48 + hurt.body.index(b"payload")
    file.map[place : place + 1] = b"P"
    with pytest.raises(CorruptRecord) as caught:
        files.entry(7)
    assert f"{file.path}, byte {at + 48}: the body of entry 7 ({len(hurt.body)} bytes) is damaged" in str(caught.value)
    assert files.entry(6) is not None
    file.map[place : place + 1] = b"p"
    assert files.entry(7) == hurt
    file.map[at + 4 : at + 8] = b"\0\0\0\1"
    with pytest.raises(CorruptRecord, match=rf"{file.path}, byte {at}, should hold entry 7"):
        files.entry(7)
    files.close()


@pytest.mark.spec("DUR-08", "DUR-10", "DL-S06")
@pytest.mark.parametrize("hurt_byte", [0, 4, 20])  # byte of the unit: magic, position, index
def test_entry_missing_in_index_is_damaged_not_deleted(tmp_path: Path, hurt_byte: int) -> None:
    """Were it read as None, the leader would silently push nothing after it, and followers would never catch up."""
    files = LedgerFiles(tmp_path, file_bytes=1024, index_file_units=4, body_is_good=message_is_good)
    files.open()
    for number in range(7):
        body = record(number)
        files.append([Entry(number, 0, place_of(files.end_pos, 48 + len(body), 1024), body)])
    good = files.entry(5)
    assert good is not None
    file, at = files.index.files[1], 32 + hurt_byte
    kept = file.map[at]
    file.map[at] = kept ^ 64
    with pytest.raises(CorruptRecord) as caught:
        files.entry(5)
    assert f"{file.path}, byte 32: " in str(caught.value)
    assert "entry 5" in str(caught.value)
    assert files.entry(7) is None
    assert files.entry(-1) is None
    file.map[at] = kept
    assert files.entry(5) == good
    files.close()
