"""The address that a broker advertises to clients: whether others can use it.

Requirements: UX-04, UX-07, CLI-06.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from typing import Final

from saturnmq.cli.output import warn
from saturnmq.protocol.addresses import host_of, is_local, port_of

VARIABLE: Final = "SATURNMQ_ADVERTISED_HOST"
KEY: Final = "brokerIP1"
CONNECT_SECONDS_MAX: Final = 1.0
# The bridges that Docker and Podman make by default: addresses that only containers of one machine reach.
CONTAINER_NETWORKS: Final = tuple(map(ipaddress.ip_network, ("172.17.0.0/16", "10.88.0.0/16")))


def is_loopback(host: str) -> bool:
    """Whether every machine takes the host for itself."""
    host = host.strip("[]")
    return host == "localhost" or is_local(host)


def in_container_network(host: str) -> bool:
    """Whether the host is inside the default network of a container engine."""
    with contextlib.suppress(ValueError):
        ip = ipaddress.ip_address(host.strip("[]"))
        return any(ip in network for network in CONTAINER_NETWORKS)
    return host.endswith((".docker.internal", ".containers.internal"))


async def warn_of_address(bound: str, advertised: str) -> None:
    """Warn about an advertised address that clients cannot use, with the key to set. bound: where the broker listens.

    A broker that listens on the loopback interface only is meant for clients on its machine.
    """
    host, port = host_of(advertised), port_of(advertised)
    set_it = f"set {KEY} (or {VARIABLE}) to a name or address that all clients reach"
    if is_loopback(host):
        if not is_loopback(host_of(bound)):
            warn(
                f"warning: the broker advertises {advertised}, which clients on other machines take for themselves; {set_it}"
            )
        return
    if in_container_network(host):
        warn(
            f"warning: the broker advertises {advertised}, an address inside a container network of this machine; {set_it}"
        )
    elif not await connects(host, port, CONNECT_SECONDS_MAX):
        warn(f"warning: the broker advertises {advertised}, which does not accept connections from here; {set_it}")


async def connects(host: str, port: int, seconds: float) -> bool:
    """Whether a port accepts a connection within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host.strip("[]"), port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
