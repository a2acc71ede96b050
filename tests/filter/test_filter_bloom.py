"""Bloom filter: sizes, positions and bit maps, compared with files written by Apache RocketMQ."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.filter import BloomFilter, GroupFilters
from saturnmq.filter.bloom import has_bits, murmur3_128, position_text, set_bits
from saturnmq.protocol.bodies import SubscriptionData
from saturnmq.protocol.errors import ConfigError


@pytest.mark.spec("FIL-07", "CQ-14")
@pytest.mark.parametrize(
    ("percent", "consumers", "hashes", "bits"),
    [
        (20, 32, 3, 112),
        (20, 64, 3, 216),
        (10, 128, 4, 616),
        (1, 1, 7, 16),
        (50, 7, 1, 16),
        (99, 1, 1, 8),
        (25, 1000, 2, 2888),
    ],
)
def test_bloom_size_follows_error_rate_and_consumers(percent: int, consumers: int, hashes: int, bits: int) -> None:
    bloom = BloomFilter(percent, consumers)
    assert (bloom.hash_count, bloom.bits, bloom.map_bytes) == (hashes, bits, bits // 8)


@pytest.mark.spec("FIL-07", "CQ-14")
def test_bloom_defaults_are_20_percent_and_32_consumers() -> None:
    bloom = BloomFilter()
    assert (bloom.hash_count, bloom.bits, bloom.map_bytes) == (3, 112, 14)
    assert 20 + bloom.map_bytes == 34, "bytes of a unit in the extension file"


@pytest.mark.spec("FIL-07")
@pytest.mark.parametrize(("percent", "consumers", "problems"), [(0, 1, 1), (100, 1, 1), (20, 0, 1), (-1, -1, 2)])
def test_invalid_bloom_settings_are_rejected_together(percent: int, consumers: int, problems: int) -> None:
    with pytest.raises(ConfigError) as caught:
        BloomFilter(percent, consumers)
    assert len(caught.value.problems) == problems


@pytest.mark.spec("FIL-07")
def test_bloom_positions_match_known_values() -> None:
    bloom = BloomFilter()
    assert bloom.positions("GroupA#TopicTest") == [105, 17, 70]
    assert bloom.positions(position_text("vec_sql_group", "VecSql")) == [12, 93, 81]


# murmur3_x64_128, seed 0: the empty text, then texts shorter than, longer than, and several times one block of 16 bytes.
MURMUR = {
    "": "00000000000000000000000000000000",
    "hello": "cbd8a7b341bd9b025b1e906a48ae1d19",
    "hello, world": "342fac623a5ebc8e4cdcbc079642414d",
    "19 Jan 2038 at 3:14:07 AM": "b89e5988b737affc664fc2950231b2cb",
    "The quick brown fox jumps over the lazy dog.": "cd99481f9ee902c9695da1a38987b6e7",
}


@pytest.mark.spec("FIL-07")
@pytest.mark.parametrize("text", MURMUR)
def test_murmur3_matches_published_values(text: str) -> None:
    assert "{:016x}{:016x}".format(*murmur3_128(text.encode())) == MURMUR[text]


@pytest.mark.spec("FIL-07")
@given(st.text(), st.integers(1, 99), st.integers(1, 500))
def test_bloom_positions_are_within_map(text: str, percent: int, consumers: int) -> None:
    bloom = BloomFilter(percent, consumers)
    positions = bloom.positions(text)
    assert len(positions) == bloom.hash_count
    assert all(0 <= position < bloom.bits for position in positions)
    assert bloom.bits % 8 == 0
    assert bloom.is_compatible(bloom.bits, positions)


@pytest.mark.spec("FIL-07", "CQ-14")
def test_bit_map_uses_least_significant_bit_first() -> None:
    bits = bytearray(3)
    set_bits(bits, [0, 9, 23])
    assert bits.hex() == "010280"
    assert has_bits(bits, [0, 23]) and not has_bits(bits, [0, 1])


@pytest.mark.spec("FIL-07")
@given(st.lists(st.integers(0, 111)), st.lists(st.integers(0, 111)))
def test_bit_map_contains_exactly_the_set_bits(mine: list[int], asked: list[int]) -> None:
    bits = bytearray(14)
    set_bits(bits, mine)
    assert has_bits(bits, asked) is (set(asked) <= set(mine))


# ---- consume queue extension files written by Apache RocketMQ


def units(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (store time, bit map) of each unit of an extension file."""
    data, at = path.read_bytes(), 0
    while at + 20 <= len(data):
        size, _tags_code, store_time, map_bytes = struct.unpack_from(">hqqh", data, at)
        if size <= 0:
            return
        yield store_time, data[at + 20 : at + 20 + map_bytes]
        at += size


@pytest.mark.spec("FIL-06", "FIL-07", "CQ-14")
def test_golden_bit_maps_are_reproduced_exactly(vectors: Path) -> None:
    store = vectors / "store" / "broker-rollover-ext"
    filters = GroupFilters()
    subscription = SubscriptionData("VecSql", sub_string="x > 1", expression_type="SQL92", sub_version=5)
    sent = [json.loads(line) for line in (store / "sent.jsonl").read_text().splitlines()]
    properties = [each["properties_sent"] for each in sent if each.get("topic") == "VecSql"]
    stored = list(units(store / "consumequeue_ext" / "VecSql" / "0" / "00000000000000000000"))
    assert len(stored) == len(properties) == 8
    seen = []
    for (_, bit_map), given_properties in zip(stored, properties, strict=True):
        if bit_map and not len(filters):  # the consumer subscribed at this point
            filters.register("vec_sql_group", subscription, now_ms=1)
        assert (filters.bit_map("VecSql", given_properties) or b"") == bit_map
        seen.append(bit_map)
    assert seen[:4] == [b""] * 4 and seen[4] == bytes(14) and any(seen[5])


@pytest.mark.spec("FIL-06")
def test_golden_extension_rules_out_non_matching_messages(vectors: Path) -> None:
    store = vectors / "store" / "broker-rollover-ext"
    filters = GroupFilters()
    filters.load((store / "config" / "consumerFilter.json").read_bytes(), now_ms=1795223700000)
    record = filters.get("VecSql", "vec_sql_group")
    assert record is not None
    answers = [record.by_extension(*unit) for unit in units(store / "consumequeue_ext/VecSql/0/00000000000000000000")]
    assert answers == [True] * 4 + [False] + [True] * 3, (
        "before its birth all must be read, then only what x > 1 matched"
    )
