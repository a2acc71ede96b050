"""Shares of a limited table among the peers' addresses, so that no peer can use it up for all others.

A peer may take as much as it leaves to others: the first that takes all it can get leaves half of the limit, the second a quarter,
and so on. Peers are counted by IPv4 address or IPv6 /64 network. Clients of this machine are not limited: they may be different
users, and each connection has its own limits.

Requirements: LIM-13.
"""

from __future__ import annotations

from saturnmq.acl.addresses import is_local, network_of


class Shares:
    """How much of a limit each network uses. used: what all use together."""

    __slots__ = ("_of", "most", "used")

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self._of: dict[str, int] = {}

    def exceeded(self, host: str, change: int, most: int | None = None) -> str | None:
        """Why a peer may not use `change` more, or None. most: another limit than this one, if lower.

        host: the peer's address without port; "" for the broker itself, which is not limited.
        """
        most = self.most if most is None else min(most, self.most)
        left = most - self.used - change
        if left < 0:
            return f"{self.used} are in use, at most {most} are allowed"
        network = network_of(host)
        own = self._of.get(network, 0) + change
        if own > max(left, 1) and host and not is_local(host):
            return f"{own - change} are in use by {network}, the other {left + change} are for other addresses"
        return None

    def add(self, host: str, change: int) -> None:
        """Count what a peer uses more, or less if it is negative."""
        self.used += change
        network = network_of(host)
        own = self._of.get(network, 0) + change
        if own > 0:
            self._of[network] = own
        else:
            self._of.pop(network, None)

    def clear(self) -> None:
        """Forget everything that was counted."""
        self.used = 0
        self._of.clear()
