"""Who may use the DLedger port, by address.

    VOTE, HEART_BEAT, PUSH and all other codes between members     the hosts in dLegerPeers, dledger.allowedAddresses
    METADATA, APPEND, GET, LEADERSHIP_TRANSFER                     those, and adminAddresses (default: loopback; Peers.admin_codes)

Host names are looked up at the start, every LOOK_UP_SECONDS, and when an unknown address connects, but not more often than every
LOOK_UP_PAUSE_SECONDS and one at a time, in a thread of their own. A name that cannot be looked up keeps its last addresses.

Requirements: SEC-18, DL-X17.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import Final

from saturnmq.acl.addresses import AddressList, parse_list
from saturnmq.protocol.addresses import host_of
from saturnmq.server_admin import LOOPBACK
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)


LOOK_UP_SECONDS: Final = 60.0
LOOK_UP_PAUSE_SECONDS: Final = 5.0
START_SECONDS: Final = 3.0
_ORIGINS_MAX: Final = 1000


class Origin(Enum):
    """Permissions of a connection's address. PEER includes what ADMIN permits."""

    PEER = auto()
    ADMIN = auto()
    STRANGER = auto()


def look_up(name: str) -> Iterable[str]:
    """The addresses of a host name. Raises OSError. Blocks."""
    return {str(row[4][0]) for row in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}


def _literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class PeerAccess:
    """The access rules of one member's port.

    hosts: of all members, this one included. allowed, admins: further addresses, in the form of adminAddresses. Raises ConfigError.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        *,
        allowed: str = "",
        admins: str = LOOPBACK,
        resolve: Callable[[str], Iterable[str]] = look_up,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._addresses: dict[str, AddressList] = {}
        self._names: list[str] = []
        self._origins: dict[str, Origin] = {}  # results for addresses of members, until the next look-up
        self._set_hosts(hosts)
        self._allowed = parse_list(allowed)
        self._admins = parse_list(admins)
        self._resolve = resolve
        self._clock = clock
        self._next_look_up = 0.0
        self._started = False
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread: ThreadPoolExecutor | None = None
        self.look_ups = 0  # rounds

    def _set_hosts(self, hosts: Iterable[str]) -> None:
        unique_hosts = set(hosts)
        literal = {host: parse_list(host) for host in unique_hosts if _literal(host)}
        retained = {host: rule for host, rule in self._addresses.items() if host in unique_hosts}
        self._addresses, self._names = {**retained, **literal}, sorted(unique_hosts - literal.keys())
        # The cached verdicts were made with the former hosts.
        self._origins.clear()

    def replace_hosts(self, hosts: Iterable[str]) -> None:
        """These are the hosts of the members from now on; new names are looked up soon."""
        before = set(self._names)
        self._set_hosts(hosts)
        if self._started and set(self._names) - before:
            self._start_look_ups()
            self._next_look_up = 0.0
            self._look_up_soon()

    async def start(self) -> None:
        """Look up the host names, for at most START_SECONDS, and again from then on."""
        self._started = True
        if not self._names:
            return
        self._start_look_ups()
        if self._looking is not None:
            # Bounded: with a slow DNS server the member starts, and addresses are added when they are known.
            await asyncio.wait([self._looking], timeout=START_SECONDS)

    def _start_look_ups(self) -> None:
        if self._thread is not None:
            return
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="raft-names")
        self._again()

    async def stop(self) -> None:
        self._started = False
        if self._timer is not None:
            self._timer.cancel()
        await cancel(self._looking)
        if self._thread is not None:
            # A look-up cannot be interrupted: the thread ends with it.
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    def origin(self, remote_address: str) -> Origin:
        """Permissions of a peer's address, `ip:port`. For an address of no member, a look-up starts if one is due."""
        address = host_of(remote_address)
        cached_origin = self._origins.get(address)
        if cached_origin is not None:
            return cached_origin
        # Also while a look-up runs, with the addresses known so far.
        if self._allowed.matches(address) or any(rule.matches(address) for rule in self._addresses.values()):
            if len(self._origins) >= _ORIGINS_MAX:
                self._origins.clear()
            self._origins[address] = Origin.PEER
            return Origin.PEER
        self._look_up_soon()
        return Origin.ADMIN if self.is_admin(remote_address) else Origin.STRANGER

    def is_admin(self, remote_address: str) -> bool:
        """Whether a peer's address, `ip:port`, is among adminAddresses."""
        return self._admins.matches(host_of(remote_address))

    def is_host(self, address: str, host: str) -> bool:
        """Whether an address, an IP address or a name, is this host of a member, as last looked up."""
        rule = self._addresses.get(host)
        return address == host or (rule is not None and rule.matches(address))

    def _again(self) -> None:
        self._look_up_soon()
        self._timer = asyncio.get_running_loop().call_later(LOOK_UP_SECONDS, self._again)

    def _look_up_soon(self) -> None:
        # Rate-limited: connections of strangers must not become load on the DNS server.
        if self._thread is None or self._looking is not None or self._clock() < self._next_look_up:
            return
        self._next_look_up = self._clock() + LOOK_UP_PAUSE_SECONDS
        self._looking = supervised(self._look_up_names(), "host look-ups")

    async def _look_up_names(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for name in self._names:
                try:
                    addresses = await loop.run_in_executor(self._thread, self._resolve, name)
                except (OSError, UnicodeError) as error:
                    log.warning("host of a member not found host=%s error=%s", name, error)
                    continue
                rule = parse_list(",".join(sorted(address for address in addresses if _literal(address))))
                # The members may have changed during the look-up.
                if name not in self._names:
                    continue  # of a former member
                if name not in self._addresses or rule.texts != self._addresses[name].texts:
                    log.info("host of a member looked up host=%s addresses=%s", name, ",".join(rule.texts))
                self._addresses[name] = rule
            self._origins.clear()
        finally:
            self.look_ups += 1
            self._looking = None
