"""Clusters of several brokers against which commands of operators are compared, with the interface of peers.Peer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import apache
import saturn
from admin_compare import run_ours
from javatools import java_command, java_environment, run_client
from prepared import GROUP, SETTINGS, TOPIC, TRACED
from processes import ServerProcess

from ports import free_port

START_S = 90.0
HELD, HELD_GROUP, HELD_PRODUCERS, HELD_COUNT = "Held", "held-group", "held-producers", 4


@dataclass(frozen=True)
class Brokers:
    """Addresses of a NameServer and of the broker named broker-a, the master or leader."""

    name_servers: str
    broker_address: str


def until_printed(words: list[str], wanted: tuple[str, ...], servers: str) -> str:
    """Poll a command of ours until it prints all of these; returns what it printed."""
    deadline = time.monotonic() + START_S
    while True:
        out = run_ours([*words, "-n", servers]).out
        if all(one in out for one in wanted):
            return out
        assert time.monotonic() < deadline, (words, wanted, out)
        time.sleep(0.2)  # poll


@contextmanager
def mixed(folder: Path) -> Iterator[Brokers]:
    """Apache's NameServer, our broker-a and Apache's broker-b, in one cluster. The topics of the commands are on broker-a only."""
    with ExitStack() as stack:
        port = free_port()
        servers = f"127.0.0.1:{port}"
        stack.callback(apache.start_namesrv(folder, port).stop)
        ours, theirs = (free_port(apache.BROKER_PORT_OFFSETS) for _ in range(2))
        stack.callback(saturn.start_broker(folder, ours, servers, settings=SETTINGS).stop)
        stack.callback(apache.start_broker(folder, theirs, servers, name="broker-b", settings=SETTINGS).stop)
        until_printed(["clusterList"], ("broker-a", "broker-b"), servers)
        address = f"127.0.0.1:{ours}"
        for topic in (TOPIC, TRACED, "ToDelete", HELD):
            run_ours(["updateTopic", "-b", address, "-t", topic, "-r", "4", "-w", "4", "-n", servers])
        for group in (
            GROUP,
            HELD_GROUP,
            "traced-group",
            "TOOLS_CONSUMER",
        ):  # brokers learn of groups at different times
            run_ours(["updateSubGroup", "-c", "DefaultCluster", "-g", group, "-n", servers])
        yield Brokers(servers, address)


@contextmanager
def dledger(folder: Path) -> Iterator[Brokers]:
    """A DLedger group of three of our brokers, named broker-a."""
    with ExitStack() as stack:
        namesrv = free_port()
        servers = f"127.0.0.1:{namesrv}"
        stack.callback(saturn.start_namesrv(namesrv).stop)
        peers = ";".join(f"n{number}-127.0.0.1:{free_port()}" for number in range(3))
        ports = [free_port(saturn.BROKER_PORT_OFFSETS) for _ in range(3)]
        for number, port in enumerate(ports):
            group: Mapping[str, str] = {
                **SETTINGS,
                "enableDLegerCommitLog": "true",
                "dLegerGroup": "broker-a",
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{number}",
                "mappedFileSizeCommitLog": "16777216",
            }
            broker = saturn.start_broker(folder / f"n{number}", port, servers, settings=group)
            stack.callback(broker.stop)
        until_printed(["clusterList"], tuple(f"127.0.0.1:{port}" for port in ports), servers)
        rows = [line.split() for line in run_ours(["clusterList", "-n", servers]).out.splitlines()]
        (leader,) = (row[3] for row in rows if row[2] == "0")
        yield Brokers(servers, leader)


KINDS = {"mixed": mixed, "dledger": dledger}


@contextmanager
def online(peer: Brokers, home: Path) -> Iterator[dict[str, str]]:
    """A consumer of Java's that has consumed HELD_COUNT messages and stays. Its client id as placeholder `client`."""
    servers = peer.name_servers
    rows = run_client("send", home=home, ns=servers, topic=HELD, count=HELD_COUNT).results
    words = ["hold", f"ns={servers}", f"topic={HELD}", f"group={HELD_GROUP}"]
    holder = ServerProcess(
        java_command("interop.Interop", words, home=home),
        name="holder",
        env=java_environment(home),
        cwd=home,
        stdin=True,
    )
    try:
        client = holder.wait_for_line(r'"client":"([^"]+)"', START_S).group(1)
        after = 0
        for _ in range(HELD_COUNT):
            holder.wait_for_line(r'"received":"hold"', START_S, after=after)
            after = next(at for at in range(after, len(holder.lines)) if '"received":"hold"' in holder.lines[at]) + 1
        shown = [f"{HELD} "] if (HELD_COUNT and rows) else []
        until_printed(["consumerProgress", "-g", HELD_GROUP], tuple(shown), servers)
        yield {"client": client, "held_id": rows[0]["offsetMsgId"]}
    finally:
        holder.stop()
