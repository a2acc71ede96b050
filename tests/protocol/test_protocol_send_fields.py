"""The fields of a send, parsed under either header."""

from __future__ import annotations

import pytest

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import HeaderError
from saturnmq.protocol.headers.send_fields import SEND_V1_BY_V2, SendFields

V2 = {"a": "producers", "b": "T", "c": "TBW102", "d": "4", "e": "-1", "f": "8", "g": "1700000000000", "h": "5"}
FURTHER = {"i": "KEYS\x01k", "j": "3", "k": "true", "l": "16", "m": "true"}


def fields(code: int, **changed: str | None) -> SendFields:
    """The fields of a header with these values under V2 names; None: without that field."""
    ext = {name: value for name, value in (V2 | changed).items() if value is not None}
    return SendFields(code, {SEND_V1_BY_V2[name]: value for name, value in ext.items()} if is_v1(code) else ext)


def is_v1(code: int) -> bool:
    return code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)


CODES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)


@pytest.mark.parametrize("code", CODES)
def test_fields_of_a_send_are_the_same_under_both_headers(code: int) -> None:
    sent = fields(code, **FURTHER)
    assert (sent.topic, sent.queue_id, sent.sys_flag, sent.born_ms, sent.flag) == ("T", -1, 8, 1_700_000_000_000, 5)
    assert (sent.properties, sent.reconsume_times, sent.unit_mode, sent.is_batch) == ("KEYS\x01k", 3, True, True)
    assert (sent.producer_group, sent.default_topic, sent.default_topic_queue_nums) == ("producers", "TBW102", 4)
    assert sent.max_reconsume_times(1) == 16


@pytest.mark.parametrize("code", CODES)
def test_absent_fields_of_a_send_have_defaults(code: int) -> None:
    sent = fields(code)
    assert (sent.properties, sent.reconsume_times, sent.unit_mode, sent.max_reconsume_times(7)) == ("", 0, False, 7)
    assert sent.is_batch is (code == RequestCode.SEND_BATCH_MESSAGE)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", ["b", "e", "f", "g", "h"])
def test_error_names_the_field_as_the_sender_wrote_it(code: int, name: str) -> None:
    written = SEND_V1_BY_V2[name] if is_v1(code) else name
    with pytest.raises(KeyError, match=written):
        fields(code, **{name: None})
    if name != "b":
        with pytest.raises(HeaderError, match=f"header field {written} is 'x'"):
            fields(code, **{name: "x"})


@pytest.mark.parametrize("name", ["a", "c", "d"])
def test_a_field_that_few_sends_need_may_be_absent(name: str) -> None:
    sent = fields(RequestCode.SEND_MESSAGE, **{name: None})
    with pytest.raises(KeyError, match=SEND_V1_BY_V2[name]):
        _ = sent.producer_group, sent.default_topic, sent.default_topic_queue_nums
