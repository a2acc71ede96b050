"""Every configuration key of Apache RocketMQ 4.9.7 is known, with its default, and shown by GET_BROKER_CONFIG (26)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from saturnmq.broker import BrokerSettings
from saturnmq.cli.settings import IMPORTANT, Configured, broker_classes, broker_tls
from saturnmq.config.settings import keys_of, load, to_properties, without_effect
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.net import NetSettings, TlsSettings

TABLE: Final = Path(__file__).with_name("apache_keys_4_9_7.tsv")
NAMESRV: Final = {"namesrv": NameServerSettings, "net": NetSettings}
# Defaults that differ on purpose: 0 stands for the value of the store profile, and the others are explained where they are defined.
PROFILE_SIZES: Final = {
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "mappedFileSizeConsumeQueueExt", "maxHashSlotNum", "maxIndexNum",
}  # fmt: skip
OWN: Final = {"brokerName": "broker-a", "storePathRootDir": "store", "listenPort": "10911"}
CLASSES: Final = ("BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig", "NamesrvConfig")
THREAD_POOLS: Final = (
    "sendMessage", "putMessageFuture", "pullMessage", "processReplyMessage", "queryMessage", "adminBroker", "clientManage",
    "consumerManage", "heartbeat", "endTransaction",
)  # fmt: skip


class Row(NamedTuple):
    """One key of Apache RocketMQ."""

    cls: str
    name: str
    default: str


def table() -> Iterator[Row]:
    for line in TABLE.read_text().splitlines():
        if not line.startswith("#"):
            yield Row(*line.split("\t"))


def ours(cls: str) -> dict[str, str]:
    classes = NAMESRV if cls == "NamesrvConfig" else broker_classes()
    values: dict[str, str] = {}
    for each in classes.values():
        values |= to_properties(each())
    return values


def expected(row: Row) -> str:
    if row.name in PROFILE_SIZES:
        return "0"
    if row.name in OWN:
        return OWN[row.name]
    if row.default.startswith("="):
        return str(eval(row.default[1:], {"cpus": os.cpu_count() or 1, "min": min, "max": max}))
    if row.default.startswith("(home)"):
        return str(Path.home()) + row.default.removeprefix("(home)")
    return "" if row.default.startswith("(") or row.default == "null" else row.default


@pytest.mark.spec("CFG-01", "CFG-02", "CFG-03", "CFG-04", "CFG-05", "CFG-06", "CFG-07", "CFG-08", "CFG-09")
@pytest.mark.parametrize("cls", CLASSES)
def test_every_key_is_known_with_its_default(cls: str) -> None:
    rows = [row for row in table() if row.cls == cls]
    known = ours(cls)
    assert [row.name for row in rows if row.name not in known] == []
    wrong = [(row.name, known[row.name], expected(row)) for row in rows if known[row.name] != expected(row)]
    assert wrong == []
    assert len(rows) >= 6


@pytest.mark.spec("CFG-05")
@pytest.mark.parametrize(
    ("cpus", "sizes"),
    [
        (1, "1 1 18 18 9 16 32 32 1 10"),
        (4, "4 4 24 24 12 16 32 32 4 16"),
        (64, "4 4 144 144 72 16 32 32 32 136"),
    ],
)
def test_sizes_of_thread_pools_follow_the_number_of_cpus(cpus: int, sizes: str) -> None:
    """In a process of its own, because the number is read once."""
    program = (
        f"import os; os.cpu_count = lambda: {cpus}\n"
        "from saturnmq.broker import BrokerSettings\n"
        "from saturnmq.config.settings import to_properties\n"
        "properties = to_properties(BrokerSettings())\n"
        f"print(*(properties[f'{{name}}ThreadPoolNums'] for name in {THREAD_POOLS}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == sizes.split()


@pytest.mark.spec("CFG-07")
def test_sizes_of_the_standard_profile_are_those_of_apache() -> None:
    store = broker_classes()["store"]()
    defaults = {row.name: row.default for row in table()}
    assert {name: str(size) for name, size in store.sizes.items()} == {name: defaults[name] for name in PROFILE_SIZES}


def test_important_keys_are_keys_of_a_broker() -> None:
    assert set(ours("BrokerConfig")) >= IMPORTANT


def test_a_file_with_all_keys_of_apache_loads_without_a_warning() -> None:
    """A file that spells out the defaults, as consoles export it."""
    pairs = {row.name: expected(row) for row in table() if row.cls != "NamesrvConfig"}
    loaded: list[Any] = [load(cls, ("file", pairs)) for cls in broker_classes().values()]
    assert [text for each in loaded for text in without_effect(each.settings)] == []
    assert set(pairs) <= {name for cls in broker_classes().values() for name in keys_of(cls)}


def test_keys_of_the_address_server_override_those_of_the_system() -> None:
    own = {"rmqAddressServerDomain": "a:1", "rmqAddressServerSubGroup": "b"}
    system = {"rocketmq.namesrv.domain": "c:1", "rocketmq.namesrv.domain.subgroup": "d"}
    assert load(BrokerSettings, ("file", system)).settings.address_server == ("c:1", "d")
    assert load(BrokerSettings, ("file", system | own)).settings.address_server == ("a:1", "b")


@pytest.mark.spec("CFG-03")
@pytest.mark.parametrize(
    ("pairs", "uses"),
    [
        ({}, False),
        ({"useTLS": "true"}, True),
        ({"tls.enable": "true"}, True),
        ({"tls.enable": "true", "useTLS": "false"}, False),
        ({"tls.server.mode": "enforcing"}, True),
        ({"tls.server.mode": "enforcing", "useTLS": "false"}, False),
    ],
)
def test_use_tls_overrides_tls_enable(pairs: dict[str, str], uses: bool) -> None:
    configured = Configured({"tls": load(TlsSettings, ("file", pairs))}, {})
    assert broker_tls(configured).enable is uses
