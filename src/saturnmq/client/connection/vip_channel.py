"""Addresses of a broker's VIP channel, a second port for clients.

Requirements: PR-31, ADM-10.
"""

from __future__ import annotations

from typing import Final

VIP_PORT_STEP: Final = 2
PORT_DIGITS_MAX: Final = 5


def vip_address(address: str) -> str:
    """The address of a broker's VIP channel: its port minus 2 (PR-31). An address without port is returned as it is."""
    return _other_port(address, -VIP_PORT_STEP)


def plain_address(address: str) -> str:
    """The address in the route, given that of the VIP channel; the inverse of `vip_address`."""
    return _other_port(address, VIP_PORT_STEP)


def _other_port(address: str, step: int) -> str:
    host, colon, port = address.rpartition(":")
    valid_port = port.isdecimal() and len(port) <= PORT_DIGITS_MAX
    if not (colon and valid_port):
        return address  # the call to it names the address as invalid
    return f"{host}:{int(port) + step}"
