"""Addresses of peers: their parts, in the form `host:port` as connections report it, and what limits by address count them as.

Connections report an IPv6 host without brackets; addresses that others connect to have them, as in Apache RocketMQ.
An IPv4 address in IPv6 form (::ffff:a.b.c.d) counts as IPv4.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_LENGTH_MAX: Final = 64
_VIP_PORT_STEP: Final = 2
_PORT_DIGITS_MAX: Final = 5

Address = IPv4Address | IPv6Address


def join_host_port(host: str, port: int) -> str:
    """The address of a host and a port, with brackets around an IPv6 host that has none.

    >>> join_host_port("::1", 10911)
    '[::1]:10911'
    """
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def host_of(address: str) -> str:
    """The text before the last colon, or all of it without one; an IPv6 host without its brackets."""
    host, colon, _ = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]") if colon else address


def port_of(address: str) -> int:
    """The number after the last colon. Raises ValueError if there is none."""
    return int(address.rpartition(":")[2])


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """The addresses that one peer can have: an IPv4 address or the /64 network of an IPv6 address; other text as it is."""
    address = parse_address(host.partition("%")[0])
    if not isinstance(address, IPv6Address) or address.is_loopback:
        return host if address is None else str(address)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


@lru_cache(maxsize=4096)
def is_local(host: str) -> bool:
    """Whether it is an address of this machine's loopback interface."""
    address = parse_address(host)
    return address is not None and address.is_loopback


def parse_address(text: str) -> Address | None:
    """The address that a text is, None if it is none."""
    if len(text) > _LENGTH_MAX or not text.isascii() or "%" in text:
        return None
    return _parsed(text)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def vip_address(address: str) -> str:
    """The address of a broker's VIP channel, a second port for clients: its port minus 2 (PR-31, ADM-10).

    An address without port is returned as it is.
    """
    return _other_port(address, -_VIP_PORT_STEP)


def plain_address(address: str) -> str:
    """The address in the route, given that of the VIP channel; the inverse of `vip_address`."""
    return _other_port(address, _VIP_PORT_STEP)


def _other_port(address: str, step: int) -> str:
    host, colon, port = address.rpartition(":")
    valid_port = port.isdecimal() and len(port) <= _PORT_DIGITS_MAX
    if not (colon and valid_port):
        return address  # the call to it names the address as invalid
    return f"{host}:{int(port) + step}"
