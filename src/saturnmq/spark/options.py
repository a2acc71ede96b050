"""Options of the source: parsing, validation, defaults. Does not import pyspark.

Requirements: SPK-10, SPK-11, SRC-02..SRC-06, SRC-15, STR-04..STR-06.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from saturnmq.client.filters import ALL, TAG, Filter, sql, tag
from saturnmq.filter import SQL92
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import option_table as table
from saturnmq.spark.connect import ConnectionOptions
from saturnmq.spark.local_paths import path_or_url

MAPPERS_ENVIRONMENT: Final = "SATURNMQ_SPARK_MAPPERS"  # of the driver or of planners: what option mapArrow may name
EARLIEST: Final = -2
LATEST: Final = -1

DEFAULT_COLUMNS: Final = (
    "topic", "brokerName", "queueId", "queueOffset", "flag", "tags", "keys", "uniqKey", "properties", "bornTimestamp",
    "storeTimestamp", "body",
)  # fmt: skip
MORE_COLUMNS: Final = (
    "physicalOffset", "storeSize", "sysFlag", "reconsumeTimes", "bornHost", "storeHost", "preparedTransactionOffset", "bodyCrc",
    "offsetMsgId", "tagsCode", "propertiesMap",
)  # fmt: skip
COLUMNS: Final = DEFAULT_COLUMNS + MORE_COLUMNS

# topic -> broker name -> queue id -> offset
Positions = dict[str, dict[str, dict[int, int]]]
Queues = dict[str, dict[str, list[int]]]


@dataclass(frozen=True)
class SourceOptions(ConnectionOptions):
    """The options of one query. Offsets are a keyword or positions for every queue; times are Unix ms, one for all or per queue.

    keys: words of KEYS, any of which a row has; uniq_keys, queue_ids: allowed values. Empty ones allow every value.
    """

    mode: str = "broker"
    path: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assign: Queues | None = None
    starting: str | Positions = "earliest"
    ending: str | Positions = "latest"
    starting_ms: int | None = None
    ending_ms: int | None = None
    starting_times: Positions | None = None
    ending_times: Positions | None = None
    time_strategy: str = "error"
    group: str | None = None
    group_fallback: str = "error"
    expression: str = ALL
    expression_type: str = TAG
    keys: tuple[str, ...] = ()
    uniq_keys: tuple[str, ...] = ()
    queue_ids: tuple[int, ...] = ()
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    min_partitions: int = 0
    records_per_partition: int = 0
    bytes_per_partition: int = 0
    offsets_per_trigger: int = 0
    bytes_per_trigger: int = 0
    min_offsets_per_trigger: int = 0
    trigger_delay_ms: int = 900_000
    batch_rows: int = 10_000
    pull_batch: int = 1024
    pull_depth: int = 4
    read_timeout_ms: int = 120_000
    refresh_ms: int = 1000
    fail_on_data_loss: bool = True
    data_loss_log: str | None = None
    verify_crc: bool | None = None
    decompress: bool = True
    map_arrow: str | None = None
    include_system: bool = False
    corrupt: str = "fail"
    split: str = "walk"
    plan: str = "auto"
    uncommitted: bool = False
    broker_name: str | None = None
    properties_format: str = "raw"
    base_offset: int | None = None

    def form_of(self, column: str) -> str:
        """Return the column name as decoders expect it: `properties` in a format other than raw carries it after a colon."""
        return (
            f"properties:{self.properties_format}"
            if column == "properties" and self.properties_format != "raw"
            else column
        )

    @property
    def filter_text(self) -> str:
        """The broker-side filter as stored in stream offsets, "" for none."""
        expression = self.expression.strip()
        if expression in ("", ALL):
            return ""
        return expression if self.expression_type == TAG else f"{self.expression_type}: {expression}"

    @property
    def filter(self) -> Filter:
        """The filter sent to the broker."""
        return sql(self.expression) if self.expression_type == SQL92 else tag(self.expression)


def _tree(text: str, name: str, example: str, leaf: Callable[[str, Any], Any]) -> dict[str, dict[str, Any]]:
    """Parse JSON of topic -> broker -> value, each value converted by `leaf`. Raises ValueError."""
    shape = f"{name} must be JSON like {example}"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{shape}; it does not parse: {error}") from None
    if not isinstance(value, dict) or not value:
        raise ValueError(shape)
    tree: dict[str, dict[str, Any]] = {}
    for topic, brokers in value.items():
        if not isinstance(brokers, dict):
            raise ValueError(shape)
        for broker, queues in brokers.items():
            try:
                tree.setdefault(topic, {})[broker] = leaf(f"{topic}/{broker}", queues)
            except TypeError as error:
                raise ValueError(f"{shape}{f'; {error}' if str(error) else ''}") from None
    return tree


def positions_of(text: str, name: str, low: int = EARLIEST) -> Positions:
    """Parse offsets from JSON such as {"T":{"broker-a":{"0":12}}}; -2 earliest, -1 latest. Raises ValueError."""

    def leaf(where: str, queues: Any) -> dict[int, int]:
        if not isinstance(queues, dict):
            raise TypeError
        for queue, offset in queues.items():
            if not queue.isdigit() or type(offset) is not int or not low <= offset < 2**63:
                raise TypeError(f"{where}/{queue}: {offset!r} is no {'offset' if low < 0 else 'time in ms'}")
        return {int(queue): offset for queue, offset in queues.items()}

    example = '{"topic":{"broker-a":{"0":12,"1":-1}}} (-2 earliest, -1 latest)' if low < 0 else (
        '{"topic":{"broker-a":{"0":1700000000000}}}')  # fmt: skip
    return _tree(text, name, example, leaf)


def queues_of(text: str) -> Queues:
    """Parse queues from JSON such as {"T":{"broker-a":[0,1]}}. Raises ValueError."""

    def leaf(where: str, queues: Any) -> list[int]:
        if not isinstance(queues, list) or not all(type(q) is int and q >= 0 for q in queues):
            raise TypeError(f"{where}: {queues!r} is no list of queue ids")
        return sorted(set(queues))

    return _tree(text, "assign", '{"topic":{"broker-a":[0,1]}}', leaf)


def _offsets(name: str, keywords: tuple[str, ...]) -> Callable[[str], str | Positions]:
    def parse(text: str) -> str | Positions:
        if text.lower() in keywords:
            return text.lower()
        if text.lstrip().startswith("{"):
            return positions_of(text, name)
        raise ValueError(f"must be {', '.join(keywords)} or JSON offsets")

    return parse


def _columns(text: str) -> tuple[str, ...]:
    columns = table.names(text)
    unsupported = [name for name in columns if name not in COLUMNS]
    if unsupported:
        raise ValueError(
            "; ".join(
                table.unknown_name("column", name, COLUMNS, table.SOURCE_COLUMNS_OF_KAFKA) for name in unsupported
            )
        )
    return columns


def _tags(text: str) -> tuple[str, ...]:
    tags = table.listed(text)
    unusable = [tag for tag in tags if "|" in tag or tag.strip() != tag or tag == ALL]
    if unusable:
        raise ValueError(
            f"{unusable[0]!r} is no tag: brokers accept no '|', no blanks around a tag, and read '*' as all tags"
        )
    return tags


def _keys(text: str) -> tuple[str, ...]:
    keys = table.listed(text)
    unusable = [key for key in keys if " " in key]
    if unusable:
        raise ValueError(f"{unusable[0]!r} is no key: blanks separate the keys of a message, name each of them")
    return keys


def _queue_ids(text: str) -> tuple[int, ...]:
    ids = table.names(text.strip().removeprefix("[").removesuffix("]"))
    if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in ids):
        raise ValueError("must be queue ids separated by commas, such as 0,3")
    return tuple(sorted({int(part) for part in ids}))


def _no_pushdown(text: str) -> bool:
    if table.flag(text):
        raise ValueError(
            "is not offered: Spark keeps one read plan per load(), so a filter that the source evaluates for one query would "
            "also narrow every other query of that DataFrame or view. Use the options tags, sql, keys, uniqKeys, queues, "
            "startingTimestamp and endingTimestamp, or saturnmq.spark.topic(spark, TOPIC).where(tags=..., keys=...), "
            "which reloads for each query"
        )
    return False


def _times(name: str) -> Callable[[str], Positions]:
    return lambda text: positions_of(text, name, low=0)


def _function(text: str) -> str:
    module, colon, function = text.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), function]):
        raise ValueError("must be MODULE:FUNCTION, importable in the workers")
    return text


def mapper_names(text: str) -> list[str]:
    """Split the value of the environment variable that permits values of option mapArrow."""
    return [name for part in text.split(",") if (name := part.strip())]


def _check_mapper(values: Mapping[str, Any], problems: list[str], mappers: Iterable[str]) -> None:
    """Options come from SQL too, and an import executes the module: only permitted functions are imported."""
    name = values.get("map_arrow")
    if name is not None and name not in {*mappers, *mapper_names(os.environ.get(MAPPERS_ENVIRONMENT, ""))}:
        problems.append(
            f"option mapArrow={name!r}: is not permitted: name it in register(spark, mappers=[...]) or "
            f"session(..., mappers=[...]), or in {MAPPERS_ENVIRONMENT} of the driver"
        )


# option -> (attribute, parser)
_TABLE: Final[table.OptionTable] = {
    **table.CONNECTION,
    "mode": ("mode", table.one_of("broker", "files")),
    "path": ("path", lambda text: path_or_url(table.text(text))),
    "subscribe": ("topics", table.names),
    "topic": ("topics", table.names),
    "subscribePattern": ("pattern", table.pattern),
    "assign": ("assign", queues_of),
    "startingOffsets": ("starting", _offsets("startingOffsets", ("earliest", "latest", "group"))),
    "endingOffsets": ("ending", _offsets("endingOffsets", ("latest",))),
    "startingTimestamp": ("starting_ms", table.number(0, 2**63 - 1)),
    "endingTimestamp": ("ending_ms", table.number(0, 2**63 - 1)),
    "startingOffsetsByTimestamp": ("starting_times", _times("startingOffsetsByTimestamp")),
    "endingOffsetsByTimestamp": ("ending_times", _times("endingOffsetsByTimestamp")),
    "startingOffsetsByTimestampStrategy": ("time_strategy", table.one_of("error", "latest")),
    "group": ("group", table.text),
    "groupOffsetFallback": ("group_fallback", table.one_of("error", "earliest", "latest")),
    "subExpression": ("expression", str),
    "expressionType": ("expression_type", table.one_of(TAG, SQL92)),
    "tags": ("tags", _tags),
    "sql": ("sql", table.text),
    "keys": ("keys", _keys),
    "uniqKeys": ("uniq_keys", table.listed),
    "queues": ("queue_ids", _queue_ids),
    "columns": ("columns", _columns),
    "pushdown": ("pushdown", _no_pushdown),
    "minPartitions": ("min_partitions", table.number(0)),
    "maxRecordsPerPartition": ("records_per_partition", table.number(0)),
    "maxBytesPerPartition": ("bytes_per_partition", table.size),
    "maxOffsetsPerTrigger": ("offsets_per_trigger", table.number(1)),
    "maxBytesPerTrigger": ("bytes_per_trigger", table.size),
    "minOffsetsPerTrigger": ("min_offsets_per_trigger", table.number(1)),
    "maxTriggerDelay": ("trigger_delay_ms", table.duration_ms()),
    "batchRows": ("batch_rows", table.number(1)),
    "pullBatchSize": ("pull_batch", table.number(1)),
    "pullDepth": ("pull_depth", table.number(1, 64)),
    "pullTimeoutMs": ("pull_timeout_ms", table.duration_ms(1)),
    "readTimeoutMs": ("read_timeout_ms", table.duration_ms(1)),
    "metadataRefreshMs": ("refresh_ms", table.duration_ms()),
    "failOnDataLoss": ("fail_on_data_loss", table.flag),
    "dataLossLog": ("data_loss_log", table.text),
    "verifyCrc": ("verify_crc", table.flag),
    "decompress": ("decompress", table.flag),
    "mapArrow": ("map_arrow", _function),
    "includeSystem": ("include_system", table.flag),
    "corrupt": ("corrupt", table.one_of("fail", "skip", "report")),
    "uncommitted": ("uncommitted", table.flag),
    "brokerName": ("broker_name", table.text),
    "readFrom": ("read_from", table.one_of("auto", "master", "slave")),
    "propertiesFormat": ("properties_format", table.one_of("raw", "json", "map")),
    "split": ("split", table.one_of("walk", "file", "resync")),
    "baseOffset": ("base_offset", table.number(0)),
    "plan": ("plan", table.one_of("auto", "queues", "log")),
}
OPTION_NAMES: Final = tuple(_TABLE)
_ALIKE: Final = {"topics": "subscribe and topic"}
_BATCH_ONLY: Final = {
    "ending": "endingOffsets",
    "ending_ms": "endingTimestamp",
    "ending_times": "endingOffsetsByTimestamp",
}
_STREAM_ONLY: Final = {
    "offsets_per_trigger": "maxOffsetsPerTrigger",
    "bytes_per_trigger": "maxBytesPerTrigger",
    "min_offsets_per_trigger": "minOffsetsPerTrigger",
}
_STORED_ONLY: Final = {"keys": "keys", "uniq_keys": "uniqKeys"}
# attribute -> (option, the value that every mode has)
_BROKER_ONLY: Final = {
    "starting": ("startingOffsets", "earliest"),
    "ending": ("endingOffsets", "latest"),
    "starting_times": ("startingOffsetsByTimestamp", None),
    "ending_times": ("endingOffsetsByTimestamp", None),
    "group": ("group", None),
}
_FILES_ONLY: Final = {
    "base_offset": ("baseOffset", None),
    "include_system": ("includeSystem", False),
    "uncommitted": ("uncommitted", False),
    "broker_name": ("brokerName", None),
}


def parse_options(
    raw_options: Mapping[str, str], *, streaming: bool | None = False, mappers: Iterable[str] = ()
) -> SourceOptions:
    """Parse and validate the options.

    Raises ConfigError with every problem at once; for an unknown name it suggests the nearest. streaming None: not known yet, so
    checks that depend on it are skipped. mappers: what option mapArrow may name, besides the environment's.
    """
    values, problems = table.read_options(_TABLE, raw_options, _ALIKE)
    files = values.get("mode") == "files"
    table.connection_values(values, problems)
    if not values.get("name_server") and not files:
        problems.append("option nameServer is missing: host:port;host:port of the name servers, or set NAMESRV_ADDR")
    if files and not values.get("path"):
        problems.append("option path is missing: the store folder, or its commitlog folder")
    ways = [name for name in ("topics", "pattern", "assign") if name in values]
    spoken = any(p.startswith(("option subscribe", "option topic", "option assign")) for p in problems)
    if len(ways) > 1:
        problems.append("give exactly one of subscribe (or topic), subscribePattern and assign")
    elif not ways and not spoken and not files:
        problems.append("option topic (or subscribe) is missing: the topics to read, separated by commas")
    values.pop("pushdown", None)
    _unite_filters(values, problems)
    _check_together(values, problems, files=files)
    _check_mapper(values, problems, mappers)
    if streaming:
        problems += [f"option {name} is for batch reads, which look keys up among stored messages; filter a stream in Spark"
                     for key, name in _STORED_ONLY.items() if key in values]  # fmt: skip
        problems += [f"option {name} is for batch reads; a stream has no end" for key, name in _BATCH_ONLY.items()
                     if key in values]  # fmt: skip
        if files:
            problems.append("option mode=files is for batch reads")
        values.setdefault("starting", "latest")
    elif streaming is False:
        problems += [f"option {name} is for streams" for key, name in _STREAM_ONLY.items() if key in values]
    if problems:
        raise ConfigError(problems)
    options = SourceOptions(**values)
    return replace(options, columns=tuple(map(options.form_of, options.columns)))


def _unite_filters(values: dict[str, Any], problems: list[str]) -> None:
    """Replace tags and sql by the filter expression that they abbreviate; brokers evaluate one filter per read."""
    short = [name for name in ("tags", "sql") if name in values]
    long = [name for name in ("expression", "expression_type") if name in values]
    if len(short) + bool(long) > 1:
        problems.append(
            "give only one of tags, sql and subExpression (with expressionType); in SQL a tag is the property TAGS, "
            "such as sql=\"TAGS IN ('paid') AND total > 5\""
        )
    tags, condition = values.pop("tags", ()), values.pop("sql", None)
    if tags:
        values["expression"] = " || ".join(tags)
    elif condition is not None:
        values |= {"expression": condition, "expression_type": SQL92}


def _check_together(values: dict[str, Any], problems: list[str], *, files: bool) -> None:
    """Check what depends on more than one option."""
    if values.get("starting") == "group" and "group" not in values:
        problems.append("option startingOffsets=group needs option group")
    least, most = values.get("min_offsets_per_trigger", 0), values.get("offsets_per_trigger", 0)
    if least and most and least > most:
        problems.append(f"option minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    kind, expression = values.get("expression_type", TAG), values.get("expression", ALL)
    try:
        if kind == SQL92:
            sql(expression)
        else:
            tag(expression)
    except ConfigError as error:
        problems.append(f"option subExpression={expression!r}: {error}")
    if files and kind == SQL92:
        problems.append("option sql or expressionType=SQL92 needs a broker; with mode=files filter in Spark")
    if "assign" in values and "queue_ids" in values:
        problems.append("give only one of queues and assign")
    for attribute, name in (("pattern", "subscribePattern"), ("assign", "assign")):
        if files and attribute in values:
            problems.append(f"option {name} needs a broker; with mode=files name topics by option topic")
    foreign = _BROKER_ONLY if files else _FILES_ONLY
    names = [name for key, (name, common) in foreign.items() if values.get(key, common) != common]
    if names:
        mode = "mode=broker; limit a read of files by startingTimestamp and endingTimestamp" if files else "mode=files"
        problems.append(f"option {', '.join(names)}: only with {mode}")
    for edge in ("starting", "ending"):
        if f"{edge}_ms" in values and f"{edge}_times" in values:
            problems.append(f"give only one of {edge}Timestamp and {edge}OffsetsByTimestamp")
    if not files and "path" in values:
        values.pop("path")  # set by Spark for load(PATH); has no meaning with mode=broker
