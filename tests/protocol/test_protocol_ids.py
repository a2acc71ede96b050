"""Offset ids and unique ids (MSG-04, MSG-05, docs/spec/00 section 4.3), and ids assigned by Apache RocketMQ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol.errors import LocalProtocolError, MessageError
from saturnmq.protocol.ids import UniqueIds, offset_message_id, parse_offset_message_id
from saturnmq.protocol.message import Host, decode_record


@pytest.mark.spec("MSG-04")
def test_offset_id_matches_documented_value() -> None:
    assert offset_message_id(("192.168.1.3", 10911), 0) == "C0A8010300002A9F0000000000000000"
    assert parse_offset_message_id("C0A8010300002A9F0000000000000000") == (Host("192.168.1.3", 10911), 0)


@pytest.mark.spec("MSG-04")
def test_offset_id_of_ipv6_store_has_56_digits() -> None:
    made = offset_message_id(("2001:db8::1", 10911), 255)
    assert made == "20010DB8000000000000000000000001" + "00002A9F" + "00000000000000FF"
    assert len(made) == 56
    assert parse_offset_message_id(made.lower()) == (Host("2001:db8::1", 10911), 255)


@pytest.mark.spec("MSG-04")
@given(st.ip_addresses().map(str), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_any_offset_id_round_trips(ip: str, port: int, offset: int) -> None:
    assert parse_offset_message_id(offset_message_id((ip, port), offset)) == (Host(ip, port), offset)


@pytest.mark.spec("MSG-04")
@pytest.mark.parametrize("text", ["", "C0A8", "x" * 32, "0" * 31, "0" * 33, "0" * 40, "名" * 32, "0" * 10_000])
def test_invalid_offset_id_is_rejected(text: str) -> None:
    with pytest.raises(MessageError):
        parse_offset_message_id(text)
    with pytest.raises(LocalProtocolError):
        offset_message_id(("no address", 1), 0)


@pytest.mark.spec("MSG-04", "MSG-05")
def test_ids_returned_to_senders_match_stored_records(vectors: Path, golden_records: list[Any]) -> None:
    by_place = {
        (where.split("/")[0], facts["physical_offset"]): decode_record(log, facts["at"])
        for where, log, facts in golden_records
        if not facts.get("blank")
    }
    checked = 0
    for path in sorted((vectors / "store").glob("broker*/sent.jsonl")):
        for line in path.read_text().splitlines():
            sent = json.loads(line)
            for made, unique in zip(
                (sent.get("offset_msg_id") or "").split(","), (sent.get("msg_id") or "").split(","), strict=False
            ):
                if not made:
                    continue
                host, offset = parse_offset_message_id(made)
                stored = by_place.get((path.parent.name, offset))
                if stored is None:
                    continue
                assert stored.store_host == host, line
                assert offset_message_id(stored.store_host, stored.physical_offset) == made, line
                assert stored.properties["UNIQ_KEY"] == unique, line
                checked += 1
    assert checked > 10


@pytest.mark.spec("MSG-05")
def test_unique_id_matches_documented_layout() -> None:
    ids = UniqueIds("192.168.1.3", 0x15140, 0x0A0B0C0D, month_start_ms=1_000_000)
    made = ids.next(1_000_000 + 0x01020304)
    assert made == "C0A80103" + "5140" + "0A0B0C0D" + "01020304" + made[28:]
    assert len(made) == 32
    assert int(ids.next(1_000_000)[28:], 16) == int(made[28:], 16) + 1


@pytest.mark.spec("MSG-05")
def test_unique_id_of_ipv6_client_has_56_digits() -> None:
    made = UniqueIds("2001:db8::1", 1, 2, month_start_ms=0).next(3)
    assert made.startswith("20010DB8000000000000000000000001" + "0001" + "00000002" + "00000003")
    assert len(made) == 56


@pytest.mark.spec("MSG-05")
def test_unique_ids_differ_until_counter_wraps() -> None:
    ids = UniqueIds("10.0.0.1", 1, 2, month_start_ms=0)
    made = [ids.next(5) for _ in range(65536)]
    assert len(set(made)) == 65536
    assert ids.next(5) == made[0]


@pytest.mark.spec("MSG-05")
def test_unique_id_clamps_time_before_month_start() -> None:
    ids = UniqueIds("10.0.0.1", 1, 2, month_start_ms=1_000_000)
    assert ids.next(999_000)[20:28] == "00000000"
    ids.set_month_start(999_000)
    assert ids.next(999_007)[20:28] == "00000007"
