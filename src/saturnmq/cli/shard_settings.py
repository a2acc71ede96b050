"""Settings of the shards of a broker: N processes of one configuration, each an ordinary broker of the cluster.

Shard 0 keeps the ports and folders that are configured, so that a broker becomes shard 0 with its messages. Shard I has all ports
10 * I higher and the folder `shard-I` in each folder. Names of the broker and of its DLedger group end in the shard's number. All
else, accounts included, is the same.

Requirements: none of Apache RocketMQ, which has no shards; docs/decisions/0046.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from saturnmq.protocol.codes import Perm
from saturnmq.protocol.errors import ConfigError

PORT_STEP: Final = 10  # a broker takes listenPort - 2 to listenPort + 1
SHARDS_MAX: Final = 64
# Keys that differ between shards; `test_cli_shards.py` fails if a key of a port or folder is in none of these tables.
PORTS: Final = ("listenPort", "advertisedPort", "metricsPort")
ADDRESSES: Final = ("haMasterAddress", "dLegerPeers")
NAMES: Final = ("brokerName", "dLegerGroup")
FOLDERS: Final = (
    "storePathRootDir", "storePathCommitLog", "storePathConsumeQueue", "storePathIndex", "storePathDLedgerCommitLog",
)  # fmt: skip
LOG_FOLDERS: Final = ("logDirectory",)
FILES: Final = ("abortFile",)
OF_SHARD_0: Final = ("readOnlyCommitLogStorePaths",)  # the files there are of the broker that became shard 0
_PORT: Final = re.compile(r"(?<=:)\d+(?=;|$)")


def shard_count(text: str) -> int:
    """The number of shards: 1 to 64, or `auto`, one per processor. Raises argparse.ArgumentTypeError."""
    if text == "auto":
        return min(len(os.sched_getaffinity(0)), SHARDS_MAX)
    if not text.isdecimal() or not 1 <= int(text) <= SHARDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} must be auto or a number in 1..{SHARDS_MAX}")
    return int(text)


def shard_values(keys: Mapping[str, str], shard: int, shards: int) -> dict[str, str]:
    """The keys of one shard that differ from those configured.

    keys: every key and its text. A shard whose number is not below `shards` has had its messages written under a higher number of
    shards; it serves them and takes no more.

        >>> shard_values({"brokerName": "a", "listenPort": "10911", "storePathRootDir": "/data"}, 1, 2)
        {'brokerName': 'a-1', 'listenPort': '10921', 'storePathRootDir': '/data/shard-1'}
    """
    values = {name: f"{keys[name]}-{shard}" for name in NAMES if keys.get(name)}
    # The supervisor writes its own log files into the folder that is configured.
    values |= {name: str(Path(keys[name]) / f"shard-{shard}") for name in LOG_FOLDERS if keys.get(name)}
    if shard:
        step = PORT_STEP * shard
        values |= {name: str(int(keys[name]) + step) for name in PORTS if int(keys.get(name, "0"))}
        values |= {
            name: _PORT.sub(lambda port: str(int(port[0]) + step), keys[name]) for name in ADDRESSES if keys.get(name)
        }
        splitter = keys.get("rocketmq.broker.multiPathSplitter") or ","
        values |= {
            name: splitter.join(str(shard_folder(Path(path), shard)) for path in keys[name].split(splitter) if path)
            for name in FOLDERS
            if keys.get(name)
        }
        values |= {name: f"{keys[name]}.shard-{shard}" for name in FILES if keys.get(name)}
        values |= {name: "" for name in OF_SHARD_0 if keys.get(name)}
        if "rocketmqHome" in keys:
            from saturnmq.acl.files import home_folder  # here: it reads YAML

            values["rocketmqHome"] = str(home_folder(keys["rocketmqHome"], Path(keys["storePathRootDir"])))
    if shard >= shards:
        values["brokerPermission"] = str(int(keys["brokerPermission"]) & ~Perm.WRITE)
    return values


def shard_folder(root: Path, shard: int) -> Path:
    """The folder of a shard in a folder of the broker."""
    return root / f"shard-{shard}" if shard else root


def stored_shards(root: Path) -> list[int]:
    """The numbers of the shards, beside shard 0, that have a folder in the folder of messages; sorted."""
    names = [path.name.removeprefix("shard-") for path in root.glob("shard-*") if path.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal() and 0 < int(name) < SHARDS_MAX)


def refuse_unread_shards(root: Path) -> None:
    """Refuse to start one broker on the folder of several: the messages of the others would appear to be lost.

    Raises ConfigError.
    """
    if numbers := stored_shards(root):
        folder = shard_folder(root, numbers[0])
        text = (
            "start with --shards 1, which serves them until they are consumed, or move the folder away if they may go"
        )
        raise ConfigError(f"{folder} holds messages of --shards: {text}")
