"""Who may register under the name and id of a live broker: its place in the route table.

The senior of a place is the broker that holds it without an interruption of more than KEPT_MS. While the senior is live, or
else the broker that has the place now, it is given to another address only

- from the same host,
- or, as a failover, from a host that is registered under the same broker name already. If the senior then registers for its place
  again, which a broker that has stepped down does not do, it gets the place back, and that host none as long as the senior is live.

A broker is not live once its connection is closed, it has registered under another id, or nothing was heard of it for SILENT_MS.
No I/O and no clock: time is an argument, Unix ms.

Requirements: SEC-17.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from saturnmq.namesrv.routes import Registration, RouteTable
from saturnmq.protocol.addresses import host_of as host_of_address

SILENT_MS: Final = 70_000  # a broker registers every 60 s or more often (registerNameServerPeriod)
KEPT_MS: Final = 120_000  # a senior whose connection was interrupted for longer has to wait as others do
_LOSERS_MAX: Final = 64  # hosts of one place
_SENIORS_MAX: Final = 8192  # a place beyond is not protected
_PRUNE_MS: Final = 1000

HostOf = Callable[[str], str | None]
"""The remote host of a broker address that is registered over an open connection; else None."""


@dataclass(slots=True)
class _Senior:
    address: str
    host: str  # that it registered from
    seen_ms: int
    losers: dict[str, None] = field(default_factory=dict)  # hosts that took the place of this senior


class BrokerPlaces:
    """The seniors of all places."""

    def __init__(self, routes: RouteTable) -> None:
        self._routes = routes
        self._seniors: dict[tuple[str, int], _Senior] = {}
        self._pruned_ms = -_PRUNE_MS

    def refusal(self, registration: Registration, host: str, host_of: HostOf, now_ms: int) -> str | None:
        """Why the broker may not have the place for which it registers, or None. host: the peer's address without port."""
        broker_place = registration.broker_name, registration.broker_id
        senior = self._seniors.get(broker_place)
        live = self._routes.live.get(senior.address) if senior is not None else None
        # No broker defends the place.
        if senior is None or (live is None and now_ms - senior.seen_ms > KEPT_MS):
            self._take(broker_place, registration.address, host, now_ms)
            return None
        if senior.address == registration.address:
            senior.seen_ms = now_ms
            # Only from the host of its address: another host may claim the address of a senior.
            if host == host_of_address(senior.address):
                senior.host = host
            self._note_loser(senior, broker_place, host, host_of)
            return None
        # The senior comes first, and then the broker that has the place now.
        rival = senior.address if self._is_live(senior.address, host_of, now_ms) else self._holder(broker_place)
        # The place is free or this broker's own, or its holder does not defend it.
        if rival in ("", registration.address) or not self._is_live(rival, host_of, now_ms):
            return None
        live, live_host = self._routes.live[rival], host_of(rival)
        # The same host is free to replace its broker, as after a restart with another port.
        if (live.name, live.number) != broker_place or live_host == host:
            if rival == senior.address:
                self._take(broker_place, registration.address, host, now_ms)
            return None
        # A failover within the broker name, but not once more for a host that took the place before.
        if host not in senior.losers and host in self._hosts(registration.broker_name, host_of):
            return None
        return f"broker {broker_place[1]} of {broker_place[0]} is {rival}, registered from {live_host} and live"

    def note_live(self, address: str, now_ms: int) -> None:
        """The live broker at an address has asked whether it must register."""
        live = self._routes.live.get(address)
        senior = self._seniors.get((live.name, live.number)) if live is not None else None
        if senior is not None and senior.address == address:
            senior.seen_ms = now_ms

    def __len__(self) -> int:
        """Number of places that have a senior."""
        return len(self._seniors)

    def note_unregistered(self, address: str, host: str | None) -> None:
        """The broker at an address has unregistered from a host; None: an administrator has unregistered it.

        Another host, which registered the address while the broker was not connected, does not end its seniority.
        """
        # A copy: entries are removed in the loop.
        for broker_place, senior in list(self._seniors.items()):
            if senior.address == address and host in (None, senior.host):
                del self._seniors[broker_place]

    def _take(self, broker_place: tuple[str, int], address: str, host: str, now_ms: int) -> None:
        # Pruned at most once a second, as it walks all of them.
        if broker_place not in self._seniors and len(self._seniors) >= _SENIORS_MAX:
            if now_ms - self._pruned_ms < _PRUNE_MS:
                return  # its next registration is recorded
            self._pruned_ms = now_ms
            live = self._routes.live
            self._seniors = {key: senior for key, senior in self._seniors.items() if senior.address in live}
            if len(self._seniors) >= _SENIORS_MAX:
                return
        self._seniors[broker_place] = _Senior(address, host, now_ms)

    def _note_loser(self, senior: _Senior, broker_place: tuple[str, int], host: str, host_of: HostOf) -> None:
        """The senior registers again: remember the host whose broker has its place now."""
        holder, live = self._holder(broker_place), self._routes.live.get(senior.address)
        # It has its place already, or is registered elsewhere now.
        if holder in ("", senior.address) or live is None or (live.name, live.number) != broker_place:
            return
        loser = host_of(holder)
        if loser is not None and loser != host and len(senior.losers) < _LOSERS_MAX:
            senior.losers[loser] = None

    def _holder(self, broker_place: tuple[str, int]) -> str:
        """Address of the broker that has a place in the routes; "" for none."""
        broker = self._routes.brokers.get(broker_place[0])
        return broker.broker_addrs.get(broker_place[1], "") if broker is not None else ""

    def _is_live(self, address: str, host_of: HostOf, now_ms: int) -> bool:
        live = self._routes.live.get(address)
        # A connection that is open but silent does not defend a place.
        return live is not None and host_of(address) is not None and now_ms - live.updated_ms <= SILENT_MS

    def _hosts(self, name: str, host_of: HostOf) -> set[str | None]:
        """Hosts of the live brokers of a broker name."""
        broker = self._routes.brokers.get(name)
        return {host_of(address) for address in broker.broker_addrs.values()} if broker is not None else set()
