"""Address rules: every form of the specification, what is refused, and bounded time for any text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.acl.addresses import NOTHING, AddressList, parse_list, parse_rule
from saturnmq.protocol.addresses import host_of, join_host_port
from saturnmq.protocol.errors import ConfigError

FORMS = [
    ("", [], ["127.0.0.1", "::1", ""]),
    ("   ", [], ["127.0.0.1"]),
    ("*", ["1.2.3.4", "::1", "anything"], []),
    ("*.*.*.*", ["1.2.3.4", "::1"], []),
    ("*:*:*:*:*:*:*:*", ["1.2.3.4", "::1"], []),
    ("10.0.0.{1,20,255}", ["10.0.0.1", "10.0.0.20", "10.0.0.255"], ["10.0.0.2", "10.0.1.1"]),
    ("1:2:3:4:5:6:7:{8,a}", ["1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:A", "1:2:3:4:5:6:7:000a"], ["1:2:3:4:5:6:7:9"]),
    ("fe80::{1,2}", ["fe80::1", "FE80:0:0:0:0:0:0:2"], ["fe80::3"]),
    ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"], ["10.0.0.3"]),
    ("10.0.0.1,::1", ["10.0.0.1", "::1", "0:0:0:0:0:0:0:1"], ["::2"]),
    ("10.1.*.*", ["10.1.0.0", "10.1.255.255"], ["10.2.0.0", "11.1.0.0", "::1", "host"]),
    ("10.*.*.*", ["10.0.0.1", "10.255.0.1"], ["11.0.0.1"]),
    ("10.1.2.*", ["10.1.2.0", "10.1.2.255"], ["10.1.3.0", "10.1.20.1"]),
    ("10.1.10-20.*", ["10.1.10.0", "10.1.20.255"], ["10.1.9.1", "10.1.21.1", "10.1.1.1"]),
    ("10.1.2.10-20", ["10.1.2.10", "10.1.2.20"], ["10.1.2.9", "10.1.2.21", "10.1.2.100"]),
    ("10.1.10-20.5", ["10.1.15.5", "10.1.15.6"], ["10.1.21.5"]),  # the first range decides
    ("10.1.2.0-0", ["10.1.2.0"], ["10.1.2.1"]),
    ("10.1-2.*.5", ["10.1.0.5", "10.2.255.6"], ["10.0.0.5", "10.3.0.5"]),
    ("10.*.1-2.3-4", ["10.0.9.9", "10.255.0.0"], ["11.0.1.3"]),  # parts behind the one that decides are only checked
    ("1:2:*", ["1:2:3:4:5:6:7:8", "1:2::"], ["1:3::", "1.2.3.4"]),
    ("1:2:3:4:5:6:7:*", ["1:2:3:4:5:6:7:ffff"], ["1:2:3:4:5:6:8:1"]),
    ("2::ac5:78:*", ["2::ac5:78:0", "2:0:0:0:0:AC5:78:ffff"], ["2::ac5:79:0", "2:1::ac5:78:0"]),
    ("1:2:3:4:5:6:7:1-200", ["1:2:3:4:5:6:7:1", "1:2:3:4:5:6:7:200"], ["1:2:3:4:5:6:7:201", "1:2:3:4:5:6:7:0"]),
    ("2::ac5:78:1-200:*", ["2::ac5:78:1:9", "2::ac5:78:200:ffff"], ["2::ac5:78:201:9", "2::ac5:78:0:9"]),
    ("fe80::*", ["fe80::", "fe80::ffff"], ["fe80::1:0"]),
    ("::1-2", ["::1", "::2"], ["::3", "::1:1"]),
    ("192.168.0.1", ["192.168.0.1", "::ffff:192.168.0.1"], ["192.168.0.10", "192.168.0.1:80"]),
    ("fe80::1", ["fe80::1", "FE80:0000::0001"], ["fe80::2", "fe80::1%eth0"]),
]
ADDRESS = "Netaddress examine Exception netaddress is "
SCOPE = "Netaddress examine scope Exception netaddress is "
REFUSED = [
    ("localhost", ADDRESS + "localhost"),
    ("256.0.0.1", ADDRESS + "256.0.0.1"),
    ("1.2.3", ADDRESS + "1.2.3"),
    ("01.2.3.4", ADDRESS + "01.2.3.4"),
    ("1.2.3.4.5", ADDRESS + "1.2.3.4.5"),
    ("1.2.3.4/24", ADDRESS + "1.2.3.4/24"),
    (",", ADDRESS + ","),
    ("1.2.3.4,host", ADDRESS + "host"),
    ("1.2.3.4, 1.2.3.5", ADDRESS + " 1.2.3.5"),
    ("1.2.3.{4,x}", ADDRESS + "1.2.3.x"),
    ("1.2.3.{}", ADDRESS + "1.2.3.{}"),
    ("1.2.{3,4}.{5,6}", SCOPE),
    ("1.2.3.4}", SCOPE),
    ("1.2.3{4,5}", SCOPE),
    ("*.2.3.4", SCOPE),
    ("1-2.2.3.4", SCOPE),
    ("1.2.*", SCOPE),
    ("1.2.3.*.5", SCOPE),
    ("1.2.3.-5", SCOPE),
    ("1.2.3.5-", SCOPE),
    ("1.2.3.20-10", SCOPE),
    ("1.2.3.0-256", SCOPE),
    ("1.2.3.1-2-3", SCOPE),
    ("256.2.3.*", SCOPE),
    ("01.2.3.*", SCOPE),
    ("1.2.3.010-20", SCOPE),
    ("1.2.3.00-20", SCOPE),
    ("a.2.3.*", SCOPE),
    ("1.2.*.x", SCOPE),
    ("1.2.*.256", SCOPE),
    ("1.2.*.9-3", SCOPE),
    ("1.*.0-256.3", SCOPE),
    ("1.*.1-2-3.4", SCOPE),
    ("1.2-3.4.5-", SCOPE),
    ("1:*:3", SCOPE),
    ("1:2-3:4", SCOPE),
    ("1:g:*", SCOPE),
    ("1:2:3:4:5:6:7:8:*", SCOPE),
    ("1::2::3:*", SCOPE),
    ("1:2:3::4:5:6:7:*", SCOPE),
    ("1:2:3::4:5:6:1-2:*", SCOPE),
    ("1:2:20-10", SCOPE),
    ("1:2:1-10000", SCOPE),
    (":::*", SCOPE),
    ("1:2:" + " " * 122 + "1-2", SCOPE),  # 129 characters
    ("1:::*", SCOPE),
]


@pytest.mark.spec("ACL-07", "UPG-11")
@pytest.mark.parametrize(("rule", "matching", "others"), FORMS)
def test_every_form_matches_what_the_table_says(rule: str, matching: list[str], others: list[str]) -> None:
    parsed = parse_rule(rule)
    assert [host for host in matching if not parsed.matches(host)] == []
    assert [host for host in others if parsed.matches(host)] == []


def test_range_has_at_most_128_characters() -> None:
    assert parse_rule("1::2:" + " " * 120 + "1-2").matches("1::2:2")


@pytest.mark.spec("ACL-07")
@pytest.mark.parametrize(("rule", "text"), REFUSED)
def test_other_texts_are_refused_by_name(rule: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rule(rule)
    assert str(caught.value) == (text if not text.endswith(" is ") else text + rule)


@pytest.mark.spec("ACL-07")
@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("10.0.0.1:4711", "10.0.0.1"),
        ("fe80::1:4711", "fe80::1"),
        ("[fe80::1]:4711", "fe80::1"),
        ("local", "local"),
        ("", ""),
    ],
)
def test_the_peer_address_is_the_text_before_the_last_colon(peer: str, host: str) -> None:
    assert host_of(peer) == host


@pytest.mark.parametrize(
    ("host", "address"), [("10.0.0.1", "10.0.0.1:1"), ("::1", "[::1]:1"), ("[::1]", "[::1]:1"), ("h", "h:1")]
)
def test_an_ipv6_host_of_an_address_has_brackets_once(host: str, address: str) -> None:
    assert join_host_port(host, 1) == address


def test_a_list_matches_if_one_of_its_rules_does() -> None:
    rules = parse_list("127.0.0.1, 10.0.0.{1,2},fe80::*")
    assert [rules.matches(host) for host in ("127.0.0.1", "10.0.0.2", "fe80::5", "10.0.0.3")] == [
        True,
        True,
        True,
        False,
    ]
    assert rules.texts == ("127.0.0.1", "10.0.0.{1,2}", "fe80::*") and rules
    assert not AddressList() and not parse_list("") and not AddressList([NOTHING]).matches("1.2.3.4")
    assert parse_list("1.2.3.4,*").matches("::1")


@pytest.mark.spec("FUZ-09")
@given(st.text(alphabet="0123456789abfx.:*-{}, %/\u0660", max_size=40) | st.text(max_size=20))
def test_any_text_is_a_rule_or_a_configuration_error(text: str) -> None:
    try:
        rule = parse_rule(text)
        rules = parse_list(text)
    except ConfigError:
        return
    for host in ("127.0.0.1", "::1", text, ""):
        assert rule.matches(host) in (True, False)
        assert rules.matches(host) in (True, False)


SHAPES = ["1.2.3.4,", "1.2.3.{", "1.", ":", "1:", "-", "*", "*.", "{", "}", "1.2.3.{4,5},", "a-"]


@pytest.mark.spec("FUZ-09")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("end", ["", "}", "*", "1"])
def test_parse_time_grows_with_the_length_only(shape: str, end: str) -> None:
    def cpu_seconds(length: int) -> float:
        text = shape * (length // len(shape)) + end
        best = 60.0
        for _ in range(3):
            started = time.thread_time()
            for parse in (parse_rule, parse_list):
                try:
                    parse(text)
                except ConfigError as error:
                    assert len(str(error)) < 400
            best = min(best, time.thread_time() - started)
        return best

    assert cpu_seconds(64_000) < 16 * max(cpu_seconds(16_000), 0.001)


@pytest.mark.spec("FUZ-09")
def test_a_long_peer_address_matches_in_constant_time() -> None:
    rule = parse_rule("1:2:*")
    started = time.thread_time()
    for _ in range(100):
        assert not rule.matches("1:" * 500_000)
    assert time.thread_time() - started < 0.5
