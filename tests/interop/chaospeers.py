"""Groups with members of Apache RocketMQ, for the faults and checks of tests/chaos, which must be on the module path.

Requirements: CHA-10, G08, G14.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import apache
import javatools
from chaosbrokers import SETTINGS, BrokerGroup

from ports import free_port

FILE_BYTES: Final = 16_777_216
HEAP_MB: Final = 512
HEARTBEAT_MS: Final = 2000  # fixed in 4.9.7
SIGTERM_CODE: Final = 143
# The subset of our properties that 4.9.7 has; its DLedger store always flushes asynchronously.
_SHARED: Final = (
    "enableDLegerCommitLog", "dLegerGroup", "brokerName", "enableBatchPush", "transactionTimeOut", "transactionCheckInterval",
)  # fmt: skip


class MixedBrokers(BrokerGroup):
    """theirs: the members that are Apache brokers; the others are ours, with Apache's timers."""

    theirs: tuple[str, ...] = ("n0", "n1")
    settings: Mapping[str, str] = {
        **SETTINGS, "dledger.profile": "standard", "mappedFileSizeCommitLog": str(FILE_BYTES), "dledger.indexFileUnits": "5242880",
    }  # fmt: skip
    ends_with = frozenset({0, SIGTERM_CODE})
    # A commit and its operation message are two entries: if only the first survives its leader, Apache's broker checks again.
    excused = ("duplicate: 'half-",)

    def program(self, name: str) -> list[str]:
        if name not in self.theirs:
            return super().program(name)
        home = javatools.write_home(self._home(name))
        port = free_port(apache.BROKER_PORT_OFFSETS)
        properties = {key: self.settings[key] for key in _SHARED} | {
            "brokerClusterName": "DefaultCluster",
            "brokerIP1": "127.0.0.1",
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "namesrvAddr": self.at,
            "storePathRootDir": str(self.folder / name),
            "storePathCommitLog": str(self.folder / name / "commitlog"),
            "diskMaxUsedSpaceRatio": "95",
            "registerNameServerPeriod": "10000",
            "dLegerPeers": self.peers(name),
            "dLegerSelfId": name,
            **apache.SMALL_STORE,
            "mappedFileSizeCommitLog": str(FILE_BYTES),
        }
        conf = home / "broker.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        main = "org.apache.rocketmq.broker.BrokerStartup"
        return javatools.java_command(main, ["-c", str(conf)], home=home, heap_mb=HEAP_MB)

    def environment(self, name: str) -> dict[str, str] | None:
        return javatools.java_environment(self._home(name)) if name in self.theirs else None

    def _home(self, name: str) -> Path:
        return self.folder / f"home-{name}"


class TheirBrokers(MixedBrokers):
    """Three Apache brokers. Their losses and duplicates are reported but do not fail the run."""

    theirs = ("n0", "n1", "n2")
    excused = ("",)

    def check_ledgers(self) -> None:
        """Not checked: these ledgers are Apache's."""
