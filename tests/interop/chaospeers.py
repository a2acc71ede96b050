"""Groups with members of the original, for the faults and the checks of tests/chaos, which has to be on the path.

Source: spec 07 CHA-10, G08, G14.
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
HEARTBEAT_MS: Final = 2000  # the original's; it cannot be set
SIGTERM_CODE: Final = 143
# What 4.9.7 knows of our settings; it flushes asynchronously, whatever it is told.
_SHARED: Final = (
    "enableDLegerCommitLog", "dLegerGroup", "brokerName", "enableBatchPush", "transactionTimeOut", "transactionCheckInterval",
)  # fmt: skip


class MixedBrokers(BrokerGroup):
    """theirs: the members that are brokers of the original; the others are ours, with the original's timers."""

    theirs: tuple[str, ...] = ("n0", "n1")
    settings: Mapping[str, str] = {
        **SETTINGS, "dledger.profile": "standard", "mappedFileSizeCommitLog": str(FILE_BYTES), "dledger.indexFileUnits": "5242880",
    }  # fmt: skip
    ends_with = frozenset({0, SIGTERM_CODE})
    # A commit and the operation that says so are two entries: when only the first outlives its leader, the original asks again.
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
    """Three of the original. What they lose or do twice is their affair: it is told."""

    theirs = ("n0", "n1", "n2")
    excused = ("",)

    def check_ledgers(self) -> None:
        """Not ours."""
