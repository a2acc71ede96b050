"""Forms that mqadmin's text owes to Java's library: the order of hash tables, rounding, and fastjson's indented JSON.

Text that has to equal that of Apache's tools needs them; JSON output does not.

Requirements: ADM-04, ADM-05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from math import isnan
from typing import Any, Final, TypeVar

from saturnmq.protocol.bodies import MessageQueue
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
