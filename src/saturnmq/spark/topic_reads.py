"""Reads of a topic that reload: `saturnmq.spark.topic(...)`.

Spark plans a Python source once per `load()` and uses that plan for every query of the DataFrame, and of a view of it. Here each
call loads on its own, and narrowing is by options of that load, so that no query depends on another one (decision 0027).

A view that reloads for each query is a view on a catalog table without options: Spark resolves the table in each query and gives
the options of its clause WITH to the source. Within one query Spark creates the source of a table once and ignores other options
given for the same table, so each set of options has a table of its own.

Requirements: SRC-01, SPK-11, SPK-12.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.local_session import NAME_SERVER_CONF

FORMAT: Final = "rocketmq"
VIEW_TABLES: Final = "spark_catalog.default.saturnmq_"  # tables of views; a digest of the options follows
_SECRETS: Final = ("accesskey", "secretkey", "securitytoken", "tlskeypassword")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Texts = str | Sequence[str]
Time = datetime | date | int | str


class TopicReads:
    """The messages of a topic. Create it with `saturnmq.spark.topic`; each method loads what the topic holds when it is called.

        orders = topic(spark, "orders", name_server="localhost:9876")
        orders.where("body is not null", tags=["paid"], since="2026-03-01").count()

    A DataFrame has one plan: its second action reads the same messages as its first. Call the method again for newer ones.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._options = dict(options)

    def load(self) -> DataFrame:
        """Return all messages of the topic.

        orders.load().groupBy("tags").count().show()
        """
        return self.where()

    def where(
        self,
        condition: str | Column | None = None,
        *,
        tags: Texts | None = None,
        sql: str | None = None,
        keys: Texts | None = None,
        uniq_keys: Texts | None = None,
        queues: Sequence[int] | int | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> DataFrame:
        """Return the messages that meet all that is given.

            orders.where("length(body) > 100", keys=["o-17", "o-18"])
            orders.where(sql="region = 'EU' AND total > 5", queues=[0, 3])
            orders.where(since=datetime(2026, 3, 1, tzinfo=UTC), until="2026-03-02")

        condition: SQL text or a Column, evaluated by Spark on every row. The others make the source read less: tags are
        compared by the broker; sql is an SQL92 condition on properties, evaluated by the broker; keys (a message has any of
        them) and uniq_keys are looked up in the key index where it covers the range, queues are queue ids; since (inclusive)
        and until (exclusive) are store times: datetime (UTC without a zone), date, Unix ms or ISO text. Raises ConfigError.
        """
        options = self._with(
            tags=tags, sql=sql, keys=keys, uniq_keys=uniq_keys, queues=queues, since=since, until=until
        )
        frame = self._loaded(self._spark.read, options)
        # Evaluated by Spark, on top of what the source leaves out.
        return frame if condition is None else frame.where(condition)

    def stream(
        self,
        condition: str | Column | None = None,
        *,
        tags: Texts | None = None,
        sql: str | None = None,
        queues: Sequence[int] | int | None = None,
        since: Time | None = None,
    ) -> DataFrame:
        """Return a streaming DataFrame of the messages that meet all that is given; the arguments are those of `where`.

        orders.stream(tags="paid", since="2026-03-01").writeStream.format("console").start()
        """
        options = self._with(tags=tags, sql=sql, queues=queues, since=since)
        frame = self._loaded(self._spark.readStream, options)
        return frame if condition is None else frame.where(condition)

    def view(
        self,
        name: str,
        condition: str | None = None,
        *,
        tags: Texts | None = None,
        sql: str | None = None,
        keys: Texts | None = None,
        uniq_keys: Texts | None = None,
        queues: Sequence[int] | int | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> None:
        """Create or replace a temporary view that reloads for each query; the arguments are those of `where`.

            orders.view("paid", tags="paid")
            spark.sql("SELECT count(*) FROM paid").show()

        condition: SQL text. The view reads a table without rows and options in the session's catalog, database `default`, which
        is created once per set of options. The text of a view is readable in the session, so credentials are rejected as
        options: set them in the environment or by option keyFile. Raises ConfigError.
        """
        if not name.strip() or "${" in name:
            raise ConfigError(
                f"view {name!r}: its name must not be blank or contain '${{', which Spark replaces in SQL"
            )
        if condition is not None and not isinstance(condition, str):
            raise ConfigError(f"view {name!r}: its condition is SQL text, not {type(condition).__name__}")
        options = self._with(
            tags=tags, sql=sql, keys=keys, uniq_keys=uniq_keys, queues=queues, since=since, until=until
        )
        # The text of a view is readable in the session.
        if secrets := [option for option in options if option.lower() in _SECRETS]:
            raise ConfigError(
                f"view {name!r}: options {', '.join(secrets)} would be readable in the view's text; set SATURNMQ_ACCESS_KEY "
                "and SATURNMQ_SECRET_KEY, or give option keyFile"
            )
        frame = self._loaded(self._spark.read, options)
        # The table must have the schema that the options give.
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema.fields)
        if condition is not None:
            _ = frame.where(condition).schema  # text that is more than a condition, or no valid one, fails here
        # The same options share a table; other options need another one.
        digest = hashlib.sha256(json.dumps([columns, sorted(options.items())]).encode()).hexdigest()
        table = VIEW_TABLES + digest[:16]
        # Without options, which the view adds in each query.
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING {FORMAT}")
        assigned = ", ".join(f"{_quoted(option)} = {_literal(value)}" for option, value in sorted(options.items()))
        where = "" if condition is None else f" WHERE (\n{condition}\n)"  # it may end with a comment
        self._spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {_quoted(name)} AS SELECT * FROM {table} WITH ({assigned}){where}"  # noqa: S608 - names and values are quoted
        )

    def _loaded(self, reader: DataFrameReader | DataStreamReader, options: Mapping[str, str]) -> DataFrame:
        """Return the DataFrame of a new load. Raises ConfigError in a session without the data source."""
        try:
            return reader.format(FORMAT).options(**options).load()
        except Exception as error:  # the class differs between classic sessions and Connect
            if "DATA_SOURCE_NOT_FOUND" not in str(error):
                raise
        # Outside of `except`, without Spark's long trace.
        raise ConfigError(
            f"topic {options['topic']!r}: this session does not have format {FORMAT}: Spark found no source of this name; "
            "call saturnmq.spark.register(spark) first"
        )

    def _with(self, **arguments: Any) -> dict[str, str]:
        """Return the options of a load with these arguments of `where`. Raises ConfigError for one that the topic has already."""
        filters = _narrowing(**arguments)
        present = {option.lower(): option for option in self._options}
        # A narrowing option replaces none that is given, whatever its case.
        for option in filters:
            if option.lower() in present:
                raise ConfigError(f"option {present[option.lower()]} was given to topic() already")
        return {**self._options, **filters}


def reads_of(spark: SparkSession, name: str, name_server: str | None, options: Mapping[str, Any]) -> TopicReads:
    """Return the reads of a topic. name_server: by default that of the session, else of the environment."""
    # None counts as not given.
    settled = {option: _text(value) for option, value in options.items() if value is not None}
    if any(option.lower() == "topic" for option in settled):
        raise ConfigError(
            f"topic {name!r}: option topic names another one; several topics are one text, 'orders,refunds'"
        )
    server = name_server or spark.conf.get(NAME_SERVER_CONF, None)
    if server and "nameserver" not in {option.lower() for option in settled}:
        settled["nameServer"] = server
    return TopicReads(spark, {"topic": name, **settled})


def _narrowing(**arguments: Any) -> dict[str, str]:
    """Convert arguments of `where` to options. Raises ConfigError for an empty list: whether it means all or none is unclear."""
    # None means no restriction.
    set_arguments = {name: value for name, value in arguments.items() if value is not None}
    options = {}
    for name, value in set_arguments.items():
        if name in ("since", "until"):
            options["startingTimestamp" if name == "since" else "endingTimestamp"] = str(unix_ms(name, value))
            continue
        if name == "sql":
            if not isinstance(value, str):
                raise ConfigError(f"sql={value!r} is {type(value).__name__}, must be text, such as \"region = 'EU'\"")
            options["sql"] = value
            continue
        # A single value is a list of one.
        items = [value] if isinstance(value, (str, int)) else list(value)
        if not items:
            raise ConfigError(f"{name} is an empty list; leave the argument out to read all messages")
        option = "uniqKeys" if name == "uniq_keys" else name
        options[option] = ",".join(map(str, items)) if name == "queues" else json.dumps(items, ensure_ascii=False)
    return options


def unix_ms(name: str, time: Any) -> int:
    """Return the first millisecond at or after a time: store times are whole milliseconds. Raises ConfigError."""
    moment = time
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ConfigError(f"{name}={time!r} is no time, such as 2026-01-31T12:00:00") from None
    elif isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        unix_ms = -((_EPOCH - aware) // timedelta(milliseconds=1))
    elif isinstance(moment, int) and not isinstance(moment, bool):
        unix_ms = moment
    else:
        raise ConfigError(f"{name}={time!r} is {type(time).__name__}, must be a datetime, a date, Unix ms or ISO text")
    if not 0 <= unix_ms < 2**63:
        raise ConfigError(f"{name}={time!r} is {unix_ms} ms, must be 0 (1970-01-01) to 2^63-1")
    return unix_ms


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(value: str) -> str:
    """Return an SQL literal. Spark replaces variables such as ${env:HOME} in SQL text, also inside literals; not in an escape."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"
