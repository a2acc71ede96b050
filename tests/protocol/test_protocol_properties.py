"""Encoded property strings, read and edited without decoding, against what their pairs say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol import properties
from saturnmq.protocol.message import Host, Message, encode_record, java_hash, store_timestamp_of
from saturnmq.protocol.properties import (
    MessageProperties,
    find,
    find_bytes,
    find_last_bytes,
    key_words,
    keys_of,
    tags_code,
    take,
    with_property,
    without,
)

# Names that are parts of others, so that a search finds them in the wrong place; values that look like names.
NAMES = st.sampled_from(["K", "aK", "KEYS", "TAGS", "S", "UNIQ_KEY"])
VALUES = st.sampled_from(["", "v", "K", "KEYS", "two words", "TAGS"])
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=5)


SPECIAL = {"DELAY", "TIMER_DELAY_MS", "TRAN_MSG", "PGROUP"}


def encoded(pairs: list[tuple[str, str]], closed: bool) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in pairs) + ("\x02" if closed and pairs else "")


@given(PAIRS, st.booleans(), NAMES)
def test_found_property_is_the_first_or_last_of_its_name(pairs: list[tuple[str, str]], closed: bool, name: str) -> None:
    text = encoded(pairs, closed)
    values = [value for key, value in pairs if key == name]
    first = values[0] if values else ""
    start = f"{name}\x01".encode()
    assert find(text, name) == (first or None)
    assert find_bytes(text.encode(), start) == first.encode()
    assert find_last_bytes(text.encode(), start) == ([value for value in values if value] or [""])[-1].encode()


@given(PAIRS, st.booleans(), NAMES)
def test_taken_property_is_the_first_of_its_name(pairs: list[tuple[str, str]], closed: bool, name: str) -> None:
    text = encoded(pairs, closed)
    at = next((at for at, pair in enumerate(pairs) if pair[0] == name), None)
    rest, value = take(text, name)
    assert value == ("" if at is None else pairs[at][1]) and without(text, name) == rest
    kept = pairs if at is None else pairs[:at] + pairs[at + 1 :]
    assert rest.removesuffix("\x02") == encoded(kept, False)
    assert with_property(text, name, "new") == encoded([*kept, (name, "new")], False)


RESERVED = st.sampled_from(
    ["WAIT", "CLUSTER", "TAGS", "DELAY", "TIMER_DELAY_MS", "TRAN_MSG", "PGROUP", "MODEL", "aWAIT"]
)
SENT = st.lists(st.tuples(RESERVED, st.sampled_from(["", "true", "false", "TRUE", "3", "a WAIT", "WAIT"])), max_size=6)


@pytest.mark.spec("SND-10")
@given(SENT, st.booleans())
def test_view_of_a_message_says_what_its_first_pairs_say(pairs: list[tuple[str, str]], closed: bool) -> None:
    view = MessageProperties(encoded(pairs, closed), "\x02CLUSTER\x01C")
    first = dict(reversed(pairs))
    kept = list(pairs)
    for name in ("WAIT", "CLUSTER"):
        if name in first:
            kept.remove((name, first[name]))
    assert view.text == encoded([*kept, ("CLUSTER", "C")], False)
    assert view.wait is (first.get("WAIT") != "false")
    special = {name: value for name, value in first.items() if name in SPECIAL and value}
    assert view.special == ({} if special.keys() <= {"PGROUP"} and not view.special else special)
    assert view.is_transactional is (first.get("TRAN_MSG", "").lower() == "true")


def test_keys_are_the_unique_key_then_the_words_of_keys() -> None:
    raw = b"UNIQ_KEY\x01U\x02KEYS\x01a  b c"
    assert keys_of(raw) == ["U", "a", "b", "c"] and keys_of(raw, 2) == ["U", "a", "b"] and keys_of(raw, 0) == ["U"]
    assert keys_of(b"KEYS\x01 a") == ["a"] and keys_of(b"UNIQ_KEY\x01U") == ["U"] and keys_of(b"") == []
    assert key_words(b"KEYS\x01ab", 2) == ["ab"] and key_words(b"KEYS\x01a b", 1) == ["a"]


def test_tags_code_is_the_java_hash_of_the_first_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (tags_code(b"TAGS\x01TagA"), tags_code(b"a\x01b\x02TAGS\x01"), tags_code(b"")) == (2_598_919, 0, 0)
    monkeypatch.setattr(properties, "_TAG_HASHES_MAX", 2)
    monkeypatch.setattr(properties, "_tag_hashes", {})
    sizes = []
    for number in range(6):
        assert tags_code(b"TAGS\x01t%d" % number) == java_hash(f"t{number}") == tags_code(b"TAGS\x01t%d" % number)
        sizes.append(len(properties._tag_hashes))
    assert sizes == [1, 2, 3, 1, 2, 3], "forgotten when there are more than the limit"


@pytest.mark.parametrize("born", ["10.0.0.9", "2001:db8::9"])
@pytest.mark.parametrize("stored", ["10.0.0.9", "2001:db8::9"])
def test_store_timestamp_of_a_record(born: str, stored: str) -> None:
    raw = encode_record(
        Message("T", b"b", born_host=Host(born, 5), store_host=Host(stored, 6), store_timestamp_ms=0x0102030405060708)
    )
    assert store_timestamp_of(raw) == store_timestamp_of(memoryview(raw)) == 0x0102030405060708


def test_message_that_is_not_stored_has_no_place() -> None:
    message = Message("T", b"b")
    assert (message.queue_offset, message.physical_offset, message.store_timestamp_ms, message.store_bytes) == (
        0,
        0,
        0,
        0,
    )
    assert (message.queue_id, message.flag, message.sys_flag, message.born_timestamp_ms) == (0, 0, 0, 0)
    assert (message.reconsume_times, message.prepared_transaction_offset, message.body_crc) == (0, 0, 0)
    assert message.born_host == message.store_host == Host("0.0.0.0", 0) and message.properties == {}
