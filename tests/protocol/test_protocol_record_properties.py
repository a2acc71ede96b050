"""`record_properties`: the properties of a record, read without decoding the rest of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.message import Host, Message, decode_record, encode_record, record_properties

HOSTS = (Host("10.0.0.9", 5), Host("2001:db8::9", 5))


@pytest.mark.spec("MSG-02", "BP-01")
@pytest.mark.parametrize(("born", "stored"), list(itertools.product(HOSTS, HOSTS)))
@pytest.mark.parametrize(
    ("body", "properties"), [(b"", b""), (b"body" * 100, b"a\x011\x02TAGS\x01x"), (b"b", b"p" * 32767)]
)
def test_record_properties_equal_those_of_decoded_record(
    born: Host, stored: Host, body: bytes, properties: bytes
) -> None:
    raw = encode_record(Message("Topic", body, properties, born_host=born, store_host=stored))
    assert record_properties(raw) == decode_record(raw).properties_raw == properties
    assert record_properties(memoryview(b"before" + raw + b"behind"), 6) == properties


@pytest.mark.spec("MSG-02", "FUZ-04")
def test_record_properties_reject_truncation_and_wrong_lengths() -> None:
    raw = encode_record(Message("Topic", b"body", b"a\x011\x02b\x012", born_host=HOSTS[0], store_host=HOSTS[0]))
    for end in range(len(raw)):
        with pytest.raises(MessageError):
            record_properties(raw[:end])
    for at, value in (
        (84, b"\xff\xff\xff\xff"),
        (84, b"\x7f\xff\xff\xff"),
        (92, b"\xff"),
        (98, b"\xff\xff"),
        (99, b"\x01"),
    ):
        with pytest.raises(MessageError):
            record_properties(raw[:at] + value + raw[at + len(value) :])


@pytest.mark.spec("FUZ-04")
@given(st.binary(max_size=200), st.integers(0, 60))
def test_record_properties_of_any_bytes_return_or_raise_message_error(raw: bytes, at: int) -> None:
    try:
        found = record_properties(raw, at)
    except MessageError:
        return
    assert found in raw
