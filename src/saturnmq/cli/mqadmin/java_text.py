"""Objects as Java prints them: `toString` of maps, queues and hosts, names of versions, dates of options.

Requirements: ADM-04.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from ipaddress import IPv6Address
from typing import Any, Final

from saturnmq.cli.mqadmin.java_forms import text_order
from saturnmq.cli.mqadmin.options import WrongOptions
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import version_name as version_name

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
