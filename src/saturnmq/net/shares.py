"""Shares of a limited table among the peers' addresses, so that no peer can use it up for all others.

An address may use `share` times what it leaves free, and always one entry. With a share of 1 the first that takes all it can get
leaves half of the limit, the second a quarter, and so on. With a share of 4 one address may use 800,000 of 1,000,000 entries, ten
may use 97,000 each. Addresses are counted by IPv4 address or IPv6 /64 network.

Requirements: LIM-13.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from saturnmq.protocol.addresses import is_local, network_of


@dataclass(slots=True)
class Shares:
    """How much of one table each network uses. total: what all use together.

    local_limited: whether clients of this machine have a share too. Where they may be different users, each of which has limits by
    connection, they and the server itself, whose host is "", are limited by the size of the table alone.
    """

    share: int = 1
    local_limited: bool = False
    total: int = 0
    _of: dict[str, int] = field(default_factory=dict)

    def used(self, host: str) -> int:
        """What one address uses."""
        return self._of.get(network_of(host), 0)

    def exceeded(self, host: str, change: int, limit: int, growth: int | None = None) -> str | None:
        """Why a peer may not use `change` more of a table of `limit` entries, or None.

        host: the peer's address without port. growth: by how much the table grows, if not by `change`, because the entry of another
        address is replaced.
        """
        growth = change if growth is None else growth
        free_entries = limit - self.total - growth
        # What does not grow the table needs no share.
        if growth <= 0:
            return None
        if free_entries < 0:
            return f"{self.total} are in use, at most {limit} are allowed"
        network = network_of(host)
        network_entries = self._of.get(network, 0) + change
        # One entry is always allowed, so that a new address is never locked out.
        if network_entries > max(self.share * free_entries, 1) and (
            self.local_limited or (host and not is_local(host))
        ):
            return f"{network_entries - change} are in use by {network}, the other {free_entries + growth} are for other addresses"
        return None

    def add(self, host: str, change: int) -> None:
        """Count what a peer uses more, or less if it is negative."""
        self.total += change
        network = network_of(host)
        network_entries = self._of.get(network, 0) + change
        # Entries of 0 are removed, or the table of networks would grow with every address seen.
        if network_entries > 0:
            self._of[network] = network_entries
        else:
            self._of.pop(network, None)

    def clear(self) -> None:
        """Forget everything that was counted."""
        self.total = 0
        self._of.clear()
