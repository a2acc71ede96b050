"""Options of the source: read, checked, explained. No pyspark needed. Source: spec 06 section 3.1, SPK-10."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from saturnmq.protocol.errors import ConfigError

EARLIEST: Final = -2
LATEST: Final = -1

DEFAULT_COLUMNS: Final = (
    "topic", "brokerName", "queueId", "queueOffset", "flag", "tags", "keys", "uniqKey", "properties", "bornTimestamp",
    "storeTimestamp", "body",
)  # fmt: skip
MORE_COLUMNS: Final = (
    "physicalOffset", "storeSize", "sysFlag", "reconsumeTimes", "bornHost", "storeHost", "preparedTransactionOffset", "bodyCrc",
    "offsetMsgId",
)  # fmt: skip
COLUMNS: Final = DEFAULT_COLUMNS + MORE_COLUMNS
_SPARKS_OWN: Final = ("path", "checkpointlocation", "queryname")

# topic -> broker name -> queue id -> offset
Positions = dict[str, dict[str, dict[int, int]]]


@dataclass(frozen=True)
class SourceOptions:
    """The options of one query. Offsets are a word, or positions for every queue; times are Unix ms."""

    name_server: str
    topics: tuple[str, ...]
    starting: str | Positions = "earliest"
    ending: str | Positions = "latest"
    starting_ms: int | None = None
    expression: str = "*"
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    min_partitions: int = 0
    records_per_partition: int = 0
    offsets_per_trigger: int = 0
    batch_rows: int = 10_000
    pull_batch: int = 1024
    pull_timeout_ms: int = 3000
    read_timeout_ms: int = 120_000
    refresh_ms: int = 1000
    fail_on_data_loss: bool = True
    extra: dict[str, str] = field(default_factory=dict)


def positions_of(text: str, name: str) -> Positions:
    """Offsets from JSON such as {"T":{"broker-a":{"0":12}}}; -2 earliest, -1 latest. Raises ValueError."""
    shape = f'{name} must be JSON like {{"topic":{{"broker-a":{{"0":12,"1":-1}}}}}} (-2 earliest, -1 latest)'
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{shape}; it does not parse: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(shape)
    found: Positions = {}
    for topic, brokers in value.items():
        if not isinstance(brokers, dict):
            raise ValueError(shape)
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise ValueError(shape)
            for queue, offset in queues.items():
                if not queue.isdigit() or type(offset) is not int or offset < EARLIEST:
                    raise ValueError(f"{shape}; {topic}/{broker}/{queue}: {offset!r} is no offset")
                found.setdefault(topic, {}).setdefault(broker, {})[int(queue)] = offset
    return found


def _offsets(name: str, words: tuple[str, ...]) -> Callable[[str], str | Positions]:
    def parse(text: str) -> str | Positions:
        if text.lower() in words:
            return text.lower()
        if text.lstrip().startswith("{"):
            return positions_of(text, name)
        raise ValueError(f"must be {', '.join(words)} or JSON offsets")

    return parse


def _number(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"must be a whole number of at least {low}") from None
        if value < low:
            raise ValueError(f"must be at least {low}")
        return value

    return parse


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ValueError("must name at least one")
    return names


def _columns(text: str) -> tuple[str, ...]:
    names = _names(text)
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: allowed are {', '.join(COLUMNS)}")
    return names


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


# option -> (attribute, parser)
_TABLE: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "nameServer": ("name_server", str),
    "subscribe": ("topics", _names),
    "topic": ("topics", _names),
    "startingOffsets": ("starting", _offsets("startingOffsets", ("earliest", "latest"))),
    "endingOffsets": ("ending", _offsets("endingOffsets", ("latest",))),
    "startingTimestamp": ("starting_ms", _number(0)),
    "subExpression": ("expression", str),
    "columns": ("columns", _columns),
    "minPartitions": ("min_partitions", _number(0)),
    "maxRecordsPerPartition": ("records_per_partition", _number(0)),
    "maxOffsetsPerTrigger": ("offsets_per_trigger", _number(1)),
    "batchRows": ("batch_rows", _number(1)),
    "pullBatchSize": ("pull_batch", _number(1)),
    "pullTimeoutMs": ("pull_timeout_ms", _number(1)),
    "readTimeoutMs": ("read_timeout_ms", _number(1)),
    "metadataRefreshMs": ("refresh_ms", _number(0)),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
}
OPTION_NAMES: Final = tuple(_TABLE)


def parse_options(given: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """The options, checked. Raises ConfigError with every problem at once; an unknown name comes with the nearest."""
    known = {name.lower(): name for name in _TABLE}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for lowered, text in {key.lower(): str(value) for key, value in given.items()}.items():
        name = known.get(lowered)
        if name is None:
            if lowered not in _SPARKS_OWN:
                near = difflib.get_close_matches(lowered, known, n=1)
                hint = f", did you mean {known[near[0]]!r}?" if near else f"; allowed are {', '.join(OPTION_NAMES)}"
                problems.append(f"unknown option {lowered!r}{hint}")
            continue
        attribute, parse = _TABLE[name]
        if attribute in values:
            problems.append(f"option {name!r}: give only one of subscribe and topic")
            continue
        try:
            values[attribute] = parse(text)
        except ValueError as error:
            problems.append(f"option {name}={text!r}: {error}")
    values.setdefault("name_server", os.environ.get("NAMESRV_ADDR", ""))
    if not values["name_server"]:
        problems.append("option nameServer is missing: host:port;host:port of the name servers, or set NAMESRV_ADDR")
    if "topics" not in values and not any("option subscribe" in p or "option topic" in p for p in problems):
        problems.append("option topic (or subscribe) is missing: the topics to read, separated by commas")
    if streaming and "ending" in values:
        problems.append("option endingOffsets is for batch reads; a stream has no end")
    if streaming:
        values.setdefault("starting", "latest")
    if problems:
        raise ConfigError(problems)
    return SourceOptions(**values)
