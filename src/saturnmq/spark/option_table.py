"""Table-driven option parsing: option name -> attribute and parser.

All problems are reported together, and an unknown name comes with the nearest known one.

Requirements: SPK-10, SPK-11.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from saturnmq.client.connection.url import parse_addresses
from saturnmq.config.settings import parse_duration_ms, parse_size, without_credentials
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.signatures import SIGNATURES

Parser = Callable[[str], Any]
OptionTable = Mapping[str, tuple[str, Parser]]
SPARKS_OWN: Final = ("path", "checkpointlocation", "queryname")
_SECRETS: Final = ("secret_key", "security_token", "tls_key_password")
_TLS_ONLY: Final = ("tls_ca", "tls_cert", "tls_key", "tls_key_password", "tls_check_host")


def number(low: int, high: int | None = None) -> Parser:
    """Parser of a whole number in a range."""
    allowed = f"a whole number of at least {low}" if high is None else f"a whole number of {low}..{high}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"must be {allowed}") from None
        if value < low or (high is not None and value > high):
            raise ValueError(f"must be {'at least ' + str(low) if high is None else allowed}")
        return value

    return parse


def names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list; duplicates are dropped."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise ValueError("must name at least one")
    return parts


def listed(text: str) -> tuple[str, ...]:
    """Parse a list whose items may contain commas: items separated by commas, or a JSON list of texts. Duplicates are dropped."""
    if not text.lstrip().startswith("["):
        return names(text)
    try:
        items = json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be a JSON list of texts; it does not parse: {error}") from None
    if not items or not all(isinstance(item, str) and item for item in items):
        raise ValueError("must be a JSON list of texts, none of them empty")
    return tuple(dict.fromkeys(items))


def flag(text: str) -> bool:
    """Parse true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def one_of(*keywords: str) -> Parser:
    """Parser of one of some keywords, case-insensitive."""

    def parse(text: str) -> str:
        for keyword in keywords:
            if keyword.lower() == text.lower():
                return keyword
        raise ValueError(f"must be {' or '.join(keywords)}")

    return parse


def size(text: str) -> int:
    """Parse a size of at least one byte, in the forms of `config.settings.parse_size`: 1048576, 64k, 64MiB, 1g."""
    value = parse_size(text)
    if value < 1:
        raise ValueError("must be a size of at least 1 byte, such as 67108864, 64MiB or 1GiB")
    return value


def duration_ms(low: int = 0) -> Parser:
    """Parser of a duration of at least `low` ms, in the forms of `config.settings.parse_duration_ms`: 1500, 30s, 5min, 1d."""

    def parse(text: str) -> int:
        value = parse_duration_ms(text)
        if value < low:
            raise ValueError(f"must be at least {low} ms")
        return value

    return parse


def duration_s(text: str) -> float:
    """Parse a duration in the same forms to seconds; a bare number is seconds, as in the URL of the client."""
    value: int = duration_ms()(f"{text}s" if text.strip()[-1:].isdigit() else text)
    return value / 1000


def text(value: str) -> str:
    """Parse any text that is not blank."""
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def addresses(value: str) -> str:
    """Parse NameServer addresses; returns the text. A URL, which may hold credentials, is refused and not shown."""
    try:
        parse_addresses(text(value))
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value.strip()


def pattern(value: str) -> str:
    """Parse a regular expression."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return value


CONNECTION: Final[OptionTable] = {
    "nameServer": ("name_server", addresses),
    "accessKey": ("access_key", text),
    "secretKey": ("secret_key", text),
    "securityToken": ("security_token", text),
    "keyFile": ("key_file", text),
    "signature": ("signature", one_of(*SIGNATURES)),
    "tls": ("tls", flag),
    "tlsCa": ("tls_ca", text),
    "tlsCert": ("tls_cert", text),
    "tlsKey": ("tls_key", text),
    "tlsKeyPassword": ("tls_key_password", text),
    "tlsCheckHost": ("tls_check_host", flag),
    "tlsVerify": ("tls_verify", flag),
}


# Names of Spark's Kafka source and sink, in lower case -> our names, for error messages.
OPTIONS_OF_KAFKA: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "nameServer",
    "bootstrap.servers": "nameServer",
    "kafka.group.id": "group",
    "groupidprefix": "group",
    "includeheaders": "columns",
    "kafkaconsumer.polltimeoutms": "pullTimeoutMs",
    "fetchoffset.numretries": "readTimeoutMs",
    "fetchoffset.retryintervalms": "readTimeoutMs",
    "kafka.security.protocol": "tls",
    "kafka.ssl.truststore.location": "tlsCa",
    "kafka.ssl.keystore.location": "tlsCert",
    "kafka.sasl.mechanism": "accessKey",
    "kafka.sasl.jaas.config": "accessKey",
    "kafka.acks": "ack",
    "kafka.retries": "retries",
    "kafka.batch.size": "batchBytes",
    "kafka.compression.type": "compress",
}
SOURCE_COLUMNS_OF_KAFKA: Final[Mapping[str, str]] = {
    "value": "body",
    "key": "keys",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
    "headers": "propertiesMap",
}
SINK_COLUMNS_OF_KAFKA: Final[Mapping[str, str]] = {
    "value": "body",
    "key": "keys",
    "partition": "queueId",
    "headers": "properties",
}


def unknown_name(kind: str, requested: str, allowed: Iterable[str], of_kafka: Mapping[str, str]) -> str:
    """Error text for an unknown option or column: suggests our name for Kafka's, else the nearest name, else lists all."""
    allowed_by_lower = {name.lower(): name for name in allowed}
    equivalent = of_kafka.get(requested.lower(), "")
    if equivalent.lower() in allowed_by_lower:
        return f"unknown {kind} {requested!r}, here it is {equivalent!r}"
    near = difflib.get_close_matches(requested.lower(), allowed_by_lower, n=1)
    return f"unknown {kind} {requested!r}" + (
        f", did you mean {allowed_by_lower[near[0]]!r}?"
        if near
        else f"; allowed are {', '.join(allowed_by_lower.values())}"
    )


def read_options(
    table: OptionTable, raw_options: Mapping[str, str], alike: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Return (values by attribute, problems). alike: attribute -> the option names to print when two options set it."""
    name_by_lower = {name.lower(): name for name in table}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for lowered, value in {key.lower(): str(value) for key, value in raw_options.items()}.items():
        name = name_by_lower.get(lowered)
        if name is None:
            if lowered not in SPARKS_OWN:
                problems.append(unknown_name("option", lowered, table, OPTIONS_OF_KAFKA))
            continue
        attribute, parse = table[name]
        if attribute in values:
            problems.append(f"option {name!r}: give only one of {alike.get(attribute, attribute)}")
            continue
        try:
            values[attribute] = parse(value)
        except ValueError as error:
            shown = "***" if attribute in _SECRETS else repr(without_credentials(value))
            problems.append(f"option {name}={shown}: {error}")
    return values, problems


def connection_values(values: dict[str, Any], problems: list[str]) -> None:
    """Fill in missing connection settings from the environment and check settings that depend on each other (SPK-11)."""
    # A token belongs to one account: the environment's is ignored when the access key is an option.
    token = () if "access_key" in values else (("security_token", "SATURNMQ_SECURITY_TOKEN"),)
    password = (("tls_key_password", "SATURNMQ_TLS_KEY_PASSWORD"),) if "tls_key" in values else ()
    for attribute, variable in (
        ("name_server", "NAMESRV_ADDR"),
        ("access_key", "SATURNMQ_ACCESS_KEY"),
        ("secret_key", "SATURNMQ_SECRET_KEY"),
        *token,
        *password,
    ):
        setting = os.environ.get(variable)
        if attribute not in values and setting:
            try:
                values[attribute] = addresses(setting) if attribute == "name_server" else setting
            except ValueError as error:
                problems.append(f"{variable}: {error}")
    if ("access_key" in values) != ("secret_key" in values):
        problems.append("options accessKey and secretKey belong together, one of them is missing")
    if "security_token" in values and "access_key" not in values:
        problems.append("option securityToken needs accessKey and secretKey")
    if "tls_key" in values and "tls_cert" not in values:
        problems.append("option tlsKey needs tlsCert, the certificate that it belongs to")
    if "tls_key_password" in values and "tls_key" not in values:
        problems.append("option tlsKeyPassword needs tlsKey, the key that it decrypts")
    beside = [name for name, (attribute, _) in CONNECTION.items() if attribute in _TLS_ONLY and attribute in values]
    if beside and not values.get("tls"):
        problems.append(f"{', '.join(beside)}: of no use without option tls=true")
