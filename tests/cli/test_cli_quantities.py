"""Sizes and durations: the same texts are valid, with the same values, in files, URLs, options of Spark and of commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from saturnmq.cli.commands import build_parser
from saturnmq.client.connection.url import make_settings, parse_url
from saturnmq.config.settings import load
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.options import parse_options
from saturnmq.store.settings import StoreSettings

SIZES = {"1048576": 1 << 20, "64k": 65_536, "64KiB": 65_536, "1.5m": 3 << 19, "4 MB": 4 << 20, "65536b": 65_536}
DURATIONS = {
    "90000": 90_000, "90s": 90_000, "5min": 300_000, "5m": 300_000, "0.5H": 1_800_000, "10 seconds": 10_000, "1500 ms": 1500,
    "1d": 86_400_000,
}  # fmt: skip
SPARK = {"nameServer": "h:1", "topic": "t"}


def from_command(words: list[str], name: str) -> int:
    """The value of an option. Raises ConfigError where a command ends with 2."""
    try:
        return int(getattr(build_parser().parse_args(words), name))
    except SystemExit:
        raise ConfigError("usage") from None


DOORS: dict[str, dict[str, Callable[[str], int]]] = {
    "size": {
        "file": lambda text: load(StoreSettings, ("f", {"maxMessageSize": text})).settings.message_bytes_max,
        "url": lambda text: make_settings(parse_url(f"rmq://h?body_bytes_max={text}")).body_bytes_max,
        "spark": lambda text: parse_options(SPARK | {"maxBytesPerPartition": text}).bytes_per_partition,
        "command": lambda text: from_command(["bench", "send", "--size", text], "size"),
    },
    "duration": {
        "file": lambda text: load(StoreSettings, ("f", {"flushCommitLogThoroughInterval": text}))
        .settings.flush_thorough_ms,
        "url": lambda text: make_settings(parse_url(f"rmq://h?route_poll_ms={text}")).route_poll_ms,
        "spark": lambda text: parse_options(SPARK | {"readTimeoutMs": text}).read_timeout_ms,
        "command": lambda text: from_command(["send", "t", "--delay", text], "delay"),
    },
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS["size"])
@pytest.mark.parametrize("text", [*SIZES, "64 XiB", "many", "5min", "-1k"])
def test_sizes_are_the_same_texts_everywhere(door: str, text: str) -> None:
    if text in SIZES:
        assert DOORS["size"][door](text) == SIZES[text]
    else:
        with pytest.raises(ConfigError):
            DOORS["size"][door](text)


@pytest.mark.parametrize("door", DOORS["duration"])
@pytest.mark.parametrize("text", [*DURATIONS, "5 years", "soon", "64MiB", "-1s"])
def test_durations_are_the_same_texts_everywhere(door: str, text: str) -> None:
    if text in DURATIONS and (door, text) != ("url", "1d"):  # above the range of that setting
        assert DOORS["duration"][door](text) == DURATIONS[text]
    else:
        with pytest.raises(ConfigError):
            DOORS["duration"][door](text)
