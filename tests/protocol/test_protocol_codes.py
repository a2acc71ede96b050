"""Numbers, names and bits of the protocol equal the tables of docs/spec/00, and the reserved topics those of docs/spec/01."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from saturnmq.protocol import codes
from saturnmq.protocol.codes import (
    FORBIDDEN_SEND_TOPICS,
    RESERVED_PROPERTIES,
    SYSTEM_TOPICS,
    CommandFlag,
    Perm,
    PropertyKey,
    PullSysFlag,
    RequestCode,
    ResponseCode,
    SysFlag,
    perm_text,
    request_name,
)

SPEC = (Path(__file__).resolve().parent.parent.parent / "docs" / "spec" / "00-remoting-protocol.md").read_text()
OF_5X = {"GET_TOPIC_CONFIG": 351, "GET_SUBSCRIPTIONGROUP_CONFIG": 352, "LITE_PULL_MESSAGE": 361}
# Rows of the specification that shorten a name, as "203 / 204: GET_CONSUMER_ / GET_PRODUCER_CONNECTION_LIST".
SHORTENED = {
    "PUT_KV_CONFIG": 100, "GET_KV_CONFIG": 101, "DELETE_KV_CONFIG": 102, "GET_CONSUMER_CONNECTION_LIST": 203,
    "WIPE_WRITE_PERM_OF_BROKER": 205, "UPDATE_NAMESRV_CONFIG": 318, "SEND_REPLY_MESSAGE_V2": 325,
}  # fmt: skip
# Properties of SaturnMQ and 5.x, which the table of 4.9.7 does not have.
TIMER_KEYS = {"TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_OUT_MS", "TIMER_WAKE_MS"}


def rows(section: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    text = SPEC.split(f"\n{section}", 1)[1].split("\n#", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def numbered(section: str) -> dict[str, int]:
    """Name to number of a table whose rows may name several of both, or a range; `_B` after `X_A` is X_B."""
    found: dict[str, int] = {}
    for numbers, names, *_ in rows(section):
        values = [int(text) for text in re.findall(r"\d+", numbers)]
        if "-" in numbers:
            values = list(range(values[0], values[1] + 1))
        words = re.findall(r"[A-Z_0-9]{4,}", names)
        words = [f"{words[0].split('_')[0]}{word}" if word.startswith("_") else word for word in words]
        found |= dict(zip(words, values, strict=False))
    return found


def test_response_codes_are_those_of_the_specification() -> None:
    assert {code.name: int(code) for code in ResponseCode} == numbered("## 6. Response codes")


def test_request_codes_are_those_of_the_specification() -> None:
    whole = {name: number for name, number in numbered("## 5. Request codes").items() if not name.endswith("_")}
    assert {code.name: int(code) for code in RequestCode} == whole | SHORTENED | OF_5X
    assert (request_name(310), request_name(4711)) == ("SEND_MESSAGE_V2", "4711")


def test_property_keys_are_those_of_the_specification() -> None:
    reserved, every = set(), set()
    for names, mark, *_ in rows("### 4.5 Reserved property keys"):
        words = set(re.findall(r"\w{3,}", re.sub(r"\(.*?\)", "", names)))
        every |= words
        reserved |= words if mark == "R" else set()
    assert {value for name, value in vars(PropertyKey).items() if name.isupper()} == every | TIMER_KEYS
    assert reserved | TIMER_KEYS == RESERVED_PROPERTIES


def test_bits_are_those_of_the_specification() -> None:
    assert {flag.name: int(flag) for flag in SysFlag.__members__.values()} == {
        "COMPRESSED": 1, "MULTI_TAGS": 2, "PREPARED": 4, "COMMIT": 8, "ROLLBACK": 12, "BORN_HOST_V6": 16, "STORE_HOST_V6": 32,
        "NEED_UNWRAP": 64, "INNER_BATCH": 128, "LZ4": 256, "ZSTD": 512, "ZLIB": 768,
    }  # fmt: skip
    assert (codes.TRANSACTION_MASK, codes.COMPRESSION_MASK) == (12, 0x700)
    assert [int(flag) for flag in PullSysFlag] == [1, 2, 4, 8, 16]
    assert [int(flag) for flag in CommandFlag] == [1, 2] and [int(flag) for flag in codes.TopicSysFlag] == [1, 2]
    assert {flag.name: int(flag) for flag in Perm} == {"INHERIT": 1, "WRITE": 2, "READ": 4, "PRIORITY": 8}


@pytest.mark.parametrize(
    ("perm", "text"), [(0, "---"), (1, "--X"), (2, "-W-"), (4, "R--"), (6, "RW-"), (7, "RWX"), (14, "RW-")]
)
def test_permission_as_text(perm: int, text: str) -> None:
    assert perm_text(perm) == text


def test_reserved_topics_are_those_of_the_specification() -> None:
    """SND-05, and the list of system topics in docs/spec/05."""
    forbidden = {
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    }  # fmt: skip
    assert forbidden | {"rmq_sys_SATURN_TIMER"} == FORBIDDEN_SEND_TOPICS
    assert forbidden | {"TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"} == SYSTEM_TOPICS
    assert (codes.RETRY_PREFIX, codes.DLQ_PREFIX, codes.LMQ_PREFIX) == ("%RETRY%", "%DLQ%", "%LMQ%")
    assert (codes.REPLY_TOPIC_SUFFIX, codes.SYSTEM_TOPIC_PREFIX) == ("REPLY_TOPIC", "rmq_sys_")
    assert (codes.ORDER_TOPIC_NAMESPACE, codes.MASTER_ID) == ("ORDER_TOPIC_CONFIG", 0)
    assert (codes.NAME_LENGTH_MAX, codes.GROUP_LENGTH_MAX) == (127, 255)
    groups = (codes.INNER_PRODUCER_GROUP, codes.DEFAULT_PRODUCER_GROUP, codes.DEFAULT_CONSUMER_GROUP)
    assert groups == ("CLIENT_INNER_PRODUCER", "DEFAULT_PRODUCER", "DEFAULT_CONSUMER")


def test_numbers_are_unique() -> None:
    for kind in (RequestCode, ResponseCode):
        assert not [
            pair for pair in itertools.pairwise(sorted(map(int, kind.__members__.values()))) if pair[0] == pair[1]
        ]
