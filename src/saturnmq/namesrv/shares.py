"""How the addresses that register brokers share a bounded table: one address never takes what all others need.

An address may use at most `SHARE` times what it leaves free, and always one entry. With a table of 1,000,000 entries one address
may use 800,000 of them, ten may use 97,000 each, and in both cases a broker that registered before can register again and add
topics. Addresses are those of `network_of`: an IPv6 network of 64 bits counts as one.

Requirements: LIM-13.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SHARE: Final = 4


@dataclass
class Shares:
    """Entries of one table by the address that they are charged to. total: all of them."""

    total: int = 0
    _used: dict[str, int] = field(default_factory=dict)

    def used(self, address: str) -> int:
        """Entries of one address."""
        return self._used.get(address, 0)

    def add(self, address: str, count: int) -> None:
        """Charge entries to an address; a negative count releases them."""
        self.total += count
        left = self._used.get(address, 0) + count
        if left:
            self._used[address] = left
        else:
            self._used.pop(address, None)

    def allows(self, use: int, growth: int, limit: int) -> bool:
        """Whether a table of `limit` entries may grow by that many, with which one address uses `use` entries."""
        free = limit - self.total - growth
        return growth <= 0 or (free >= 0 and use <= SHARE * free + 1)
