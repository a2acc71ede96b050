"""Ports that check no account and no secret, as the ready line of their server names them.

Requirements: SEC-16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from saturnmq.cli.advertised import is_loopback
from saturnmq.cli.everyday.checks.finding import Finding, note, ok

ACCOUNTS_ADVICE: Final = "set aclEnable=true there and write conf/plain_acl.yml (docs/security.md)"
_FAST_PORT_DISTANCE: Final = 2


class OpenPort(NamedTuple):
    """A port without authentication. advice: the keys that change that."""

    name: str
    host: str
    port: int
    advice: str


def open_ports(parts: Mapping[str, Any]) -> Iterator[OpenPort]:
    """The open ports by the settings of a broker, part by part; parts that are not valid are missing."""
    broker, ha, raft = (parts.get(name) for name in ("broker", "ha", "raft"))
    if broker is None:
        return
    host, port = broker.bind_address, broker.listen_port
    in_group = raft is not None and raft.enabled
    if not broker.acl_enable:
        yield OpenPort("broker", host, port, ACCOUNTS_ADVICE)
        if broker.fast_port_enable:
            yield OpenPort("fast", host, port - _FAST_PORT_DISTANCE, ACCOUNTS_ADVICE)
    if ha is not None and not in_group and broker.broker_role != "SLAVE":
        protected = broker.acl_enable
        if ha.port_open(protected=protected) and not ha.secret_only(protected=protected):
            yield OpenPort(
                "ha", host, port + 1, "set haClusterSecret and haRequireClusterSecret=true, or haPortEnable=false"
            )
    if in_group and raft is not None and not raft.require_secret and raft.self_id in raft.peers:
        advice = "set dledger.clusterSecret at all members, then dledger.requireClusterSecret=true"
        own_host, own_port = raft.listen_address
        yield OpenPort("dledger", own_host, own_port, advice)
    if broker.metrics_port:
        yield OpenPort(
            "metrics", broker.metrics_address, broker.metrics_port, "leave metricsAddress=127.0.0.1, or metricsPort=0"
        )


def findings(parts: Mapping[str, Any]) -> Iterator[Finding]:
    """A finding for each open port."""
    for port in open_ports(parts):
        yield finding(f"{port.name} port {port.host}:{port.port}", port.host, port.advice)


def finding(subject: str, host: str, advice: str) -> Finding:
    """A finding about an open port: a note if other machines reach it."""
    if is_loopback(host):
        return ok("authentication", subject, "open without authentication, for this machine only")
    return note("authentication", subject, "open without authentication to every host that reaches it", advice)


def running_findings(
    subject: str, host: str, configuration: Mapping[str, str], *, name_server: bool
) -> Iterator[Finding]:
    """The finding about a server that runs, by the configuration that it reports."""
    if name_server and configuration.get("namesrvAccess") != "signed":
        yield finding(subject, host, "set namesrvAccess=signed there (docs/security.md)")
    if not name_server and configuration.get("aclEnable", "false") != "true":
        yield finding(subject, host, ACCOUNTS_ADVICE)
