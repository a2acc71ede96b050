"""Hints for error messages: what a user can do about a failed call. Pure text.

Requirements: UX-05..UX-08.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from saturnmq.protocol.codes import ResponseCode

# Text in the broker's remark -> the slow stage of a SYSTEM_BUSY response (spec 01, section 4.2).
_STAGES: Final = (
    ("[TIMEOUT_CLEAN_QUEUE]", "queue"),
    ("[OVERLOAD]", "queue"),
    ("[PCBUSY_CLEAN_QUEUE]", "append lock"),
    ("[REJECTREQUEST]", "append lock"),
    ("[PC_SYNCHRONIZED]", "append lock"),
    ("[FLUSH", "flush"),
    ("[REPLICA", "replica"),
)
_NO_FILTER: Final = "does not support consumer to filter message by"
_PERIOD: Final = re.compile(r"(?:period in queue|stage time)\D{0,3}(\d+)\s*ms")
_NAMED_STAGE: Final = re.compile(r"stage: (queue|append lock|flush|replica)")
_POSITION: Final = re.compile(r"line (\d+), column (\d+)|position (\d+)")


def unreachable_name_servers(tried: Sequence[tuple[str, str]]) -> str:
    """No NameServer reachable: which were tried, why each failed, and what to do (UX-06)."""
    listed = ", ".join(f"{address}: {reason}" for address, reason in tried)
    return (
        f"cannot reach any NameServer (tried {listed}). "
        "Start one: saturnmq standalone --data ./data, or set SATURNMQ_URL."
    )


def not_a_name_server(address: str | None) -> str:
    """The peer does not support route requests: most likely a broker's port was configured."""
    return f"{address} is not a NameServer; its port is 9876 by default, a broker's 10911."


def unreachable_broker(topic: str, broker: str, address: str) -> str:
    """The broker address in the route is not reachable (UX-07)."""
    return (
        f"topic {topic} is on {broker} at {address}, not reachable from here. "
        "Set brokerIP1 there to a reachable name; saturnmq doctor checks it."
    )


def missing_topic(topic: str, name_servers: Sequence[str], *, auto_create: bool | None) -> str:
    """Codes 17 and 10005: the command that creates the topic, and whether auto-creation is on; None if unknown (UX-08)."""
    command = f"saturnmq admin updateTopic -n '{';'.join(name_servers)}' -c DefaultCluster -t {topic}"
    if auto_create is None:
        return f"Create it: {command}. A broker with autoCreateTopicEnable=true creates it with the first message sent to it."
    state = "on" if auto_create else "off"
    return f"Create it: {command} (auto-creation is {state} here)."


def topic_of_absent_brokers(brokers: str) -> str:
    """A topic without a route while brokers are not registered: which, and where to look."""
    return f"It may exist on a broker without a registered master ({brokers}): start it, or see `saturnmq admin clusterList`."


def missing_topic_to_read(topic: str, name_servers: Sequence[str]) -> str:
    """A subscribed topic without a route: how to create it, and which consumer option waits for it."""
    hint = missing_topic(topic, name_servers, auto_create=None)
    return f"{hint[:-1]}; the consumer option route_timeout=None waits for that."


def busy(remark: str) -> str:
    """Code 2: the slow stage and its duration in ms, as far as the remark states them (UX-08)."""
    named = _NAMED_STAGE.search(remark)
    stage = named.group(1) if named else next((name for start, name in _STAGES if start in remark), "queue")
    period = _PERIOD.search(remark)
    took = f"{period.group(1)} ms" if period else "its limit"
    return f"Slow stage: {stage} ({took}). The broker sheds load; send slower or give it faster disks."


def position(remark: str) -> str:
    """Code 23: where in the filter expression the parser stopped (UX-08)."""
    match = _POSITION.search(remark)
    if not match:
        return "The broker does not say where in the expression it stopped."
    where = f"line {match[1]}, column {match[2]}" if match[1] else f"position {match[3]}"
    return f"Look at {where} of the expression."


def for_response(
    code: int,
    remark: str,
    *,
    topic: str = "",
    group: str = "",
    name_servers: Sequence[str] = (),
    auto_create: bool = False,
) -> str | None:
    """The hint for a response code, None if there is none."""
    if code == ResponseCode.TOPIC_NOT_EXIST:
        return missing_topic(topic, name_servers, auto_create=auto_create)
    if code == ResponseCode.SYSTEM_BUSY:
        return busy(remark)
    if code == ResponseCode.NO_PERMISSION:
        names = f"topic {topic or '?'} or group {group or '?'}"
        command = "saturnmq admin updateTopicPerm -c CLUSTER -t TOPIC -p 6"
        return f"The permission of the broker, {names} forbids it; {command} allows both."
    if code == ResponseCode.SYSTEM_ERROR and _NO_FILTER in remark:
        return "Set enablePropertyFilter=true in the broker's configuration, or filter by tags."
    if code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
        return position(remark)
    if code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        command = f"saturnmq admin updateSubGroup -n '{';'.join(name_servers)}' -c DefaultCluster -g {group or 'GROUP'}"
        return f"Create group {group or '?'}: {command}."
    return None
