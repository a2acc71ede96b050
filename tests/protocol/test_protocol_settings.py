"""Settings: properties files, sizes, durations, times, and complete reporting of problems (CLI-10, CLI-11)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.config.settings import (
    MASK,
    format_properties,
    key,
    keys_of,
    load,
    parse_duration_ms,
    parse_properties,
    parse_size,
    parse_time_ms,
    to_properties,
)
from saturnmq.protocol.errors import ConfigError


class Mode(Enum):
    ASYNC_FLUSH = "async"
    SYNC_FLUSH = "sync"


@dataclass(frozen=True)
class Sample:
    name: str = key("brokerName", "broker-a")
    port: int = key("listenPort", 10911, low=0, high=65535)
    size: int = key("mapedFileSize", 1024, unit="bytes", low=1)
    wait_ms: int = key("waitTime", 1000, unit="ms")
    ratio: float = key("ratio", 0.5, low=0, high=1)
    mode: Mode = key("flushDiskType", Mode.ASYNC_FLUSH)
    kind: str = key("kind", "a", choices=("a", "b"))
    secret: str = key("secretKey", "", secret=True)
    on: bool = key("enabled", False)

    def validate(self) -> list[str]:
        return ["brokerName must not be empty"] if not self.name else []


@pytest.mark.spec("CLI-10")
def test_later_sources_override_and_origins_are_kept() -> None:
    loaded = load(
        Sample, ("file a", {"brokerName": "x", "listenPort": "1"}), ("--set", {"listenPort": "2", "enabled": "TRUE"})
    )
    assert loaded.settings == Sample(name="x", port=2, on=True)
    assert loaded.origins == {"brokerName": "file a", "listenPort": "--set", "enabled": "--set"}


@pytest.mark.spec("CLI-10")
def test_unknown_keys_are_kept_with_closest_known_key() -> None:
    loaded = load(Sample, ("f", {"brokerNam": "x", "zzz": "1"}))
    assert loaded.unknown_keys == {"brokerNam": "x", "zzz": "1"}
    assert loaded.unknown_hints(keys_of(Sample)) == [
        "unknown key 'brokerNam', did you mean 'brokerName'?",
        "unknown key 'zzz'",
    ]


def test_all_problems_are_reported_at_once() -> None:
    bad = {
        "listenPort": "65536", "mapedFileSize": "big", "waitTime": "1 fortnight", "ratio": "2", "flushDiskType": "MAYBE",
        "kind": "c", "enabled": "yes",
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        load(Sample, ("conf", bad))
    assert len(caught.value.problems) == len(bad)
    for (name, text), problem in zip(bad.items(), caught.value.problems, strict=True):
        assert problem.startswith(f"{name}={text!r} (conf): must be")
    assert "0..65535" in caught.value.problems[0]
    with pytest.raises(ConfigError, match="brokerName must not be empty"):
        load(Sample, ("conf", {"brokerName": ""}))


def test_valid_later_value_replaces_invalid_earlier_one() -> None:
    assert load(Sample, ("a", {"listenPort": "x"}), ("b", {"listenPort": "7"})).settings.port == 7


@pytest.mark.spec("CLI-10")
def test_secrets_are_masked_in_properties() -> None:
    settings = Sample(secret="hunter22", mode=Mode.SYNC_FLUSH)
    shown = to_properties(settings)
    assert shown["secretKey"] == MASK
    assert shown["flushDiskType"] == "SYNC_FLUSH"
    assert shown["enabled"] == "false"
    assert "hunter22" not in repr(settings)
    assert to_properties(Sample())["secretKey"] == ""


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("67108864", 67108864),
        ("64MiB", 67108864),
        ("64m", 67108864),
        ("1GiB", 2**30),
        ("1.5k", 1536),
        (" 2 kb ", 2048),
        ("0", 0),
    ],
)
def test_sizes_accept_units(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize(
    ("text", "expected"),
    [("90000", 90000), ("90s", 90000), ("500ms", 500), ("1.5min", 90000), ("2h", 7200000), ("1d", 86400000)],
)
def test_durations_accept_units(text: str, expected: int) -> None:
    assert parse_duration_ms(text) == expected


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize("text", ["", "x", "64 XiB", "1e3", "--1", "1.2.3", "s"])
def test_invalid_size_or_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_size(text)
    with pytest.raises(ValueError, match="must be"):
        parse_duration_ms(text)


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", 77),
        ("1600000000000", 1600000000000),
        ("-1", -1),
        ("2020-09-13T12:26:40Z", 1600000000000),
        ("2020-09-13T12:26:40.5", 1600000000500),
        ("2020-09-13T14:26:40+02:00", 1600000000000),
        ("2020-09-13", 1599955200000),
    ],
)
def test_times_accept_now_milliseconds_and_iso_8601(text: str, expected: int) -> None:
    assert parse_time_ms(text, 77) == expected
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_time_ms("yesterday", 77)


PROPERTIES = r"""
# comment
! comment too
 brokerName = broker-a
listenPort=10911
empty=
colon: value = with = signs
blank   value with blanks
long = one \
       two\
  three
escaped\ key\=x = tab\there \u540d \q \\
listenPort=10912
path=C:\\data
unicode=a b"""


def test_properties_files_parse_like_java() -> None:
    assert parse_properties(PROPERTIES) == {
        "brokerName": "broker-a",
        "listenPort": "10912",
        "empty": "",
        "colon": "value = with = signs",
        "blank": "value with blanks",
        "long": "one twothree",
        "escaped key=x": "tab\there 名 q \\",
        "path": "C:\\data",
        "unicode": "a b",
    }


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_properties_lines_end_at_java_line_terminators_only(end: str) -> None:
    text = f"a=x\u2028y\x1cz\x85{end}b=2{end}"
    assert parse_properties(text) == {"a": "x\u2028y\x1cz\x85", "b": "2"}


def test_properties_are_formatted_one_line_per_key() -> None:
    assert format_properties({"a": True, "b": Mode.SYNC_FLUSH, "c": None, "d": 1}) == "a=true\nb=SYNC_FLUSH\nc=\nd=1\n"


@given(st.text(max_size=200))
def test_any_text_parses_as_properties(text: str) -> None:
    for name, value in parse_properties(text).items():
        assert "\n" not in name or "\\n" in text
        assert isinstance(value, str)


plain = st.text(st.characters(codec="utf-8", exclude_characters="\\=:#!\r\n\t\f "), min_size=1, max_size=10)


@given(st.dictionaries(plain, plain, max_size=5))
def test_plain_properties_round_trip(pairs: dict[str, str]) -> None:
    assert parse_properties(format_properties(pairs)) == pairs
