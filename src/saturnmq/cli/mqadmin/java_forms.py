"""Forms that mqadmin's text owes to Java's library: order of hash tables, rounding, `toString`, dates, fastjson's indented JSON.

Text that has to equal that of Apache's tools needs them; JSON output does not.

Requirements: ADM-04, ADM-05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from ipaddress import IPv6Address
from math import isnan
from typing import Any, Final, TypeVar

from saturnmq.cli.mqadmin.options import WrongOptions
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import version_name as version_name
from saturnmq.protocol.json_dialect import dumps
from saturnmq.protocol.message import java_hash

K = TypeVar("K")
_TABLE_SIZE: Final = 16
_LOAD: Final = 0.75
_U32: Final = 0xFFFFFFFF


def hash_order(keys: Iterable[K], hash_of: Callable[[K], int]) -> list[K]:
    """The keys in the order in which a java.util.HashSet that they were added to returns them."""
    distinct = list(dict.fromkeys(keys))
    size = _TABLE_SIZE
    while len(distinct) > size * _LOAD:
        size *= 2

    def bucket(key: K) -> int:
        code = hash_of(key) & _U32
        return (code ^ code >> 16) & size - 1

    return sorted(distinct, key=bucket)


def text_order(texts: Iterable[str]) -> list[str]:
    """`hash_order` of strings."""
    return hash_order(texts, java_hash)


def address_order(addresses: Mapping[str, Iterable[str]]) -> list[str]:
    """The addresses of brokers, by broker name, in `hash_order`: added broker by broker, in the order of the set of names."""
    return text_order(address for name in text_order(addresses) for address in addresses[name])


def queue_order(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """`hash_order` of message queues."""

    def code(queue: MessageQueue) -> int:
        value = 1
        for part in (java_hash(queue.broker_name), queue.queue_id, java_hash(queue.topic)):
            value = (value * 31 + part) & _U32
        return value

    return hash_order(queues, code)


def fixed(value: float, decimals: int) -> str:
    """`%.2f` of java.util.Formatter, which rounds halves of the printed digits up."""
    if isnan(value):
        return "NaN"
    return str(Decimal(repr(value)).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))


def indented(value: Any, depth: int = 0) -> str:
    """JSON as fastjson's PrettyFormat writes it: tabs, names in order; a tuple is a set, which stays on its line."""
    inner, outer = "\n" + "\t" * (depth + 1), "\n" + "\t" * depth
    if isinstance(value, dict) and value:
        names = sorted(value)
        if isinstance(names[0], int):  # such names follow each other on one line
            pairs = ",".join(f"{name}:{indented(value[name], depth + 1)}" for name in names)
            return "{" + pairs + outer + "}"
        return (
            "{" + ",".join(f"{inner}{compact(name)}:{indented(value[name], depth + 1)}" for name in names) + outer + "}"
        )
    if isinstance(value, list) and value:
        return "[" + ",".join(inner + indented(element, depth + 1) for element in value) + outer + "]"
    return compact(value)


def compact(value: Any) -> str:
    """JSON in one line."""
    return dumps(value).decode()


_DATE: Final = "%Y-%m-%d#%H:%M:%S:%f"


def boolean(value: bool) -> str:
    """`true` or `false`."""
    return "true" if value else "false"


def absent(value: object) -> str:
    """The value; `null` for None."""
    return "null" if value is None else str(value)


def map_text(pairs: Mapping[str, str]) -> str:
    """`{name=value, ...}` in the order of a hash table."""
    return "{" + ", ".join(f"{name}={pairs[name]}" for name in text_order(pairs)) + "}"


def queue_text(queue: MessageQueue) -> str:
    """`MessageQueue [topic=..., brokerName=..., queueId=...]`."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def host_text(host: tuple[str, int]) -> str:
    """`address:port`; an IPv6 address in full, within brackets."""
    ip, port = host
    if ":" in ip:
        ip = "[" + ":".join(f"{int(part, 16):x}" for part in IPv6Address(ip).exploded.split(":")) + "]"
    return f"{ip}:{port}"


def cut(text: str, size: int) -> str:
    """The first characters of a text."""
    return text[:size]


def time_of(text: str, letter: str) -> int:
    """Unix ms of an option: milliseconds, or `yyyy-MM-dd#HH:mm:ss:SSS` in local time. Raises WrongOptions naming the letter."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        head, _, millis = text.rpartition(":")
        return int(datetime.strptime(f"{head}:{int(millis):03d}000", _DATE).timestamp() * 1000)
    except ValueError:
        raise WrongOptions(f"-{letter} {text!r:.80} must be Unix milliseconds or yyyy-MM-dd#HH:mm:ss:SSS") from None


def signed_bytes(body: bytes) -> str:
    """`[1, -2, ...]`."""
    return "[" + ", ".join(str(byte - 256 if byte > 127 else byte) for byte in body) + "]"


def fields_text(name: str, fields: Mapping[str, Any]) -> str:
    """`Name [field=value, ...]`, as generated `toString` methods print an object."""

    def text(value: Any) -> str:
        return boolean(value) if isinstance(value, bool) else absent(value)

    return f"{name} [" + ", ".join(f"{key}={text(value)}" for key, value in fields.items()) + "]"
