"""What a cluster holds before commands of operators are compared: a topic with messages, a group that consumed them, a trace."""

from __future__ import annotations

import asyncio
from pathlib import Path

from javatools import mqadmin, run_client
from peers import Peer
from traced import traces

TOPIC = "Printed"
GROUP = "printed-group"
TRACED = "Traced"
# The first transaction check of Apache's broker creates a topic; this interval moves it behind the end of the tests.
SETTINGS = {"traceTopicEnable": "true", "transactionCheckInterval": "3600000"}
# The consumers of printMsg and Tracing.java create these retry topics with their first heartbeat after a second, if they
# live that long; so they are created beforehand.
SHORT_LIVED_RETRY = ("%RETRY%TOOLS_CONSUMER", "%RETRY%interop-traces")


def prepare(peer: Peer, home: Path) -> dict[str, str]:
    """Create the same content on a peer: a topic of four queues with messages in two, a group that consumed them, a trace.

    Returns the placeholder values of commands: ids of messages.
    """
    servers = peer.name_servers
    for topic in SHORT_LIVED_RETRY:
        mqadmin(servers, "updateTopic", "-b", peer.broker_address, "-t", topic, "-r", "1", "-w", "1", home=home)
    rows = run_client("send", home=home, ns=servers, topic=TOPIC, count=10, mode="selector").results
    run_client("send", home=home, ns=servers, topic="ToDelete", count=1)
    run_client("consume", home=home, ns=servers, topic=TOPIC, group=GROUP, count=10)
    (traced, _) = run_client("send", home=home, ns=servers, topic=TRACED, count=1, group="traced", trace=1).results
    run_client("consume", home=home, ns=servers, topic=TRACED, group="traced-group", count=1, trace=1)
    asyncio.run(traces(peer, "RMQ_SYS_TRACE_TOPIC", traced["msgId"], 3))
    return {
        "broker": peer.broker_address,
        "offset_id": rows[3]["offsetMsgId"],
        "unique_id": rows[3]["msgId"],
        "traced_id": traced["msgId"],
    }
