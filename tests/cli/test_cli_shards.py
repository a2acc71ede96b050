"""`saturnmq broker --shards N`: what differs between shards, and processes that are killed, taken away and added."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from serverprocess import Server

from ports import free_port
from saturnmq import Client
from saturnmq.cli import shard_settings
from saturnmq.cli.commands import build_parser
from saturnmq.cli.reload import Reload
from saturnmq.cli.servers import OneBroker, brokers_of
from saturnmq.cli.settings import broker_classes, configure
from saturnmq.cli.shard_settings import shard_count, shard_values, stored_shards
from saturnmq.cli.shard_watchdog import Watchdog
from saturnmq.cli.shards import Shards
from saturnmq.cli.systemd import notify
from saturnmq.config.settings import keys_of
from saturnmq.protocol.errors import ConfigError
from waiting import elapse, until

CLASSES = broker_classes()
SAME = {  # keys of a port, folder or address that are the same for all shards
    "namesrvAddr", "fetchNamesrvAddrByAddressServer", "rmqAddressServerDomain", "rmqAddressServerSubGroup", "bindAddress",
    "dledger.bindAddress", "dledger.allowedAddresses", "haAllowedAddresses", "adminAddresses", "aclPlainAdminAddresses",
    "metricsAddress", "fastPortEnable", "haPortEnable", "rocketmqHome", "rocketmq.broker.multiPathSplitter",
    "tls.server.keyPath", "tls.server.certPath", "tls.server.trustCertPath", "tls.client.keyPath", "tls.client.certPath",
    "tls.client.trustCertPath", "parkedPullsMaxPerAddress", "serverConnectionsMaxPerAddress",
}  # fmt: skip


def arguments(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["broker", *words])


def test_each_key_of_a_port_folder_or_address_is_decided() -> None:
    decided = {
        *shard_settings.PORTS, *shard_settings.ADDRESSES, *shard_settings.NAMES, *shard_settings.FOLDERS,
        *shard_settings.LOG_FOLDERS, *shard_settings.FILES, *shard_settings.OF_SHARD_0, *SAME,
    }  # fmt: skip
    pattern = re.compile(r"\b(ports?|paths?|dir|directory|home|addr|address|addresses|peers)\b", re.IGNORECASE)
    found = {
        name
        for cls in CLASSES.values()
        for name, (_, meta) in keys_of(cls).items()
        if not meta.no_effect and pattern.search(re.sub(r"([a-z])([A-Z])", r"\1 \2", name))
    }
    assert found - decided == set()


def test_a_shard_has_its_own_names_ports_and_folders(tmp_path: Path) -> None:
    words = [
        "--shards", "3", "--data", str(tmp_path), "--port", "12000", "--set", "brokerName=a", "--set", "advertisedPort=80",
        "--set", "metricsPort=5557", "--set", "storePathCommitLog=/one,/two", "--set", "storePathConsumeQueue=/cq", "--set",
        "storePathIndex=/ix", "--set", "abortFile=/run/abort", "--set", "logDirectory=/logs", "--set",
        "readOnlyCommitLogStorePaths=/old", "--set", "haMasterAddress=h:1", "--set", "dLegerGroup=g", "--set",
        "dLegerPeers=n0-a-b:40911;n1-10.0.0.1:40911", "--set", "storePathDLedgerCommitLog=/dl",
    ]  # fmt: skip
    keys = ("broker", "store", "raft", "ha")

    def of(shard: str) -> list[object]:
        configured = configure(CLASSES, arguments(*words, "--shard", shard), {})
        broker, store, raft, ha = (configured.part(name) for name in keys)
        return [
            broker.broker_name, broker.listen_port, broker.advertised_port, broker.metrics_port, broker.log_directory,
            broker.acl_home, broker.broker_permission, store.store_path_root_dir, store.store_path_commit_log,
            store.store_path_consume_queue, store.store_path_index, store.abort_file, store.read_only_commit_log,
            ha.master_address, raft.group, raft.peers_text, raft.data_folders_text,
        ]  # fmt: skip

    root = str(tmp_path)
    assert of("0") == [
        "a-0", 12000, 80, 5557, "/logs/shard-0", "", 6, root, "/one,/two", "/cq", "/ix", "/run/abort", "/old", "h:1", "g-0",
        "n0-a-b:40911;n1-10.0.0.1:40911", "/dl",
    ]  # fmt: skip
    assert of("2") == [
        "a-2", 12020, 100, 5577, "/logs/shard-2", root, 6, f"{root}/shard-2", "/one/shard-2,/two/shard-2", "/cq/shard-2",
        "/ix/shard-2", "/run/abort.shard-2", "", "h:21", "g-2", "n0-a-b:40931;n1-10.0.0.1:40931", "/dl/shard-2",
    ]  # fmt: skip
    assert of("3")[6] == 4  # of a higher number of shards before


def test_ports_that_the_system_chooses_stay_so() -> None:
    configured = configure(CLASSES, arguments("--shard", "1", "--port", "0"), {})
    broker = configured.part("broker")
    assert (broker.listen_port, broker.advertised_port, broker.metrics_port) == (0, 0, 0)


def test_number_of_shards(capsys: pytest.CaptureFixture[str]) -> None:
    assert [shard_count(text) for text in ("1", "64")] == [1, 64]
    assert shard_count("auto") == len(os.sched_getaffinity(0))
    for text in ("0", "65", "two", ""):
        with pytest.raises(SystemExit):
            arguments("--shards", text)
        assert f"--shards {text!r} must be auto or a number in 1..64" in capsys.readouterr().err


def test_one_broker_refuses_the_folder_of_several(tmp_path: Path) -> None:
    (tmp_path / "shard-2").mkdir()
    (tmp_path / "shard-x").mkdir()
    (tmp_path / "shard-0").mkdir()
    assert stored_shards(tmp_path) == [2]
    args = arguments("--data", str(tmp_path))
    with pytest.raises(ConfigError, match=r"shard-2 holds messages of --shards: start with --shards 1"):
        brokers_of(args, configure(CLASSES, args, {}), {}, None)
    args = arguments("--data", str(tmp_path), "--shards", "1")
    args.argv = []
    shards = brokers_of(args, configure(CLASSES, args, {}), {}, None)
    assert isinstance(shards, Shards) and shards._numbers == [0, 2]
    args = arguments("--data", str(tmp_path), "--shards", "1", "--shard", "0")
    assert isinstance(brokers_of(args, configure(CLASSES, args, {}), {}, None), OneBroker)


def test_keys_of_a_shard_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\n")
    args = arguments("-c", str(file), "--shards", "2", "--shard", "1")
    reload = Reload(CLASSES, args, {}, configured := configure(CLASSES, args, {}))
    assert configured.part("broker").broker_name == "a-1"
    assert reload._overrides["brokerName"] == "shard 1 of 2"


def test_values_of_a_shard_of_a_few_keys() -> None:
    keys = {"brokerName": "a", "listenPort": "10911", "storePathRootDir": "/data"}
    assert shard_values(keys, 1, 2) == {"brokerName": "a-1", "listenPort": "10921", "storePathRootDir": "/data/shard-1"}


class GuardedProcess:
    """The process of a shard; killed_at: when, in seconds of the loop."""

    killed_at: float | None = None

    def kill(self) -> None:
        self.killed_at = asyncio.get_running_loop().time()


@pytest.mark.loop(seconds=20_000)
async def test_shard_is_killed_a_period_after_its_last_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    loop, process, watchdog = asyncio.get_running_loop(), GuardedProcess(), Watchdog(1)
    monkeypatch.setenv("NOTIFY_SOCKET", watchdog.environment["NOTIFY_SOCKET"])
    watchdog.guard(process)  # type: ignore[arg-type]
    await elapse(3600)  # a long recovery before it is ready
    for _ in range(10):
        notify("WATCHDOG=1")
        await elapse(59)
    silent_since = loop.time() - 59
    await until(lambda: process.killed_at is not None)
    assert process.killed_at is not None and 60 < process.killed_at - silent_since <= 60 + 2 * 15
    await watchdog.stop()


@pytest.mark.loop(seconds=20_000)
async def test_shard_without_a_service_manager_has_no_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    process, watchdog = GuardedProcess(), Watchdog(1)
    watchdog.guard(process)  # type: ignore[arg-type]
    await elapse(3600)
    await watchdog.stop()
    assert watchdog.environment == {} and process.killed_at is None


@pytest.mark.realtime
@pytest.mark.loop(real=True, seconds=240)
async def test_shard_that_hangs_is_started_again(tmp_path: Path) -> None:
    port = free_port((-2, 0, 8, 10))
    words = [
        "standalone",
        "--port",
        str(port),
        "--namesrv-port",
        "0",
        "--data",
        str(tmp_path / "data"),
        "--shards",
        "2",
    ]
    server = await asyncio.to_thread(Server, *words, env={"WATCHDOG_USEC": "3000000"})
    try:
        hanging = int(server.facts["pid"].split(",")[1])
        os.kill(hanging, signal.SIGSTOP)
        await until(lambda: any("shard started again shard=1" in line for line in server.err))
        assert any("shard does not respond and is killed shard=1" in line for line in server.err)
        assert not is_running(hanging)
        assert await asyncio.to_thread(server.stop) == 0
    finally:
        await asyncio.to_thread(server.stop, signal.SIGKILL)


@pytest.mark.realtime
@pytest.mark.loop(real=True, seconds=240)
async def test_shards_end_return_and_are_taken_away_under_a_consumer(tmp_path: Path) -> None:
    name_server = free_port()
    port = free_port((-2, 0, 8, 10))
    base = ["standalone", "--port", str(port), "--namesrv-port", str(name_server), "--data", str(tmp_path / "data")]

    async def start(*more: str) -> Server:
        return await asyncio.to_thread(Server, *base, *more)

    async def stop(server: Server) -> None:
        assert await asyncio.to_thread(server.stop) == 0

    sent: set[bytes] = set()
    received: set[bytes] = set()
    server = await start()
    try:
        async with (
            Client(
                name_servers=f"127.0.0.1:{name_server}", route_poll_ms=1_000, rebalance_ms=1_000, latency_fault=False
            ) as client,
            client.producer("p") as out,
        ):

            async def send(prefix: str) -> set[str]:
                brokers = set()
                for number in range(24):
                    body = f"{prefix} {number} {len(sent)}".encode()
                    brokers.add((await out.send("orders", body, timeout=30)).queue.broker_name)
                    sent.add(body)
                return brokers

            async with client.consumer("g", start="first") as consumer:
                await consumer.subscribe("orders")

                async def receive() -> None:
                    async for message in consumer:
                        received.add(message.body)
                        await message.ack()

                receiving = asyncio.create_task(receive())
                try:
                    assert await send("one broker") == {"broker-a"}
                    await until(lambda: received == sent)
                    await stop(server)
                    server = await start("--shards", "2")  # with the messages and offsets of the broker
                    assert server.facts["broker"] == f"127.0.0.1:{port},127.0.0.1:{port + 10}"
                    await until_spread(send, {"broker-a-0", "broker-a-1"})
                    await out.send("one-message", b"the other shard gets the topic, too")
                    await until_on(client, "one-message", {"broker-a-0", "broker-a-1"})
                    first, second = map(int, server.facts["pid"].split(","))
                    os.kill(second, signal.SIGKILL)
                    await send("one shard away")
                    await until(lambda: any("shard started again shard=1" in line for line in server.err))
                    assert is_running(first)
                    await until_spread(send, {"broker-a-0", "broker-a-1"})
                    await stop(server)
                    server = await start("--shards", "1")
                    assert any("shard takes no messages shard=1" in line for line in server.err)
                    await until_spread(send, {"broker-a-0"})
                    await until(lambda: received == sent, why=lambda: sorted(sent - received))
                finally:
                    receiving.cancel()
        processes = [int(text) for text in server.facts["pid"].split(",")]
    finally:
        await asyncio.to_thread(server.stop, signal.SIGKILL)
    await until(lambda: not any(map(is_running, processes)))  # they end with the supervisor


async def until_spread(send, brokers: set[str]) -> None:  # type: ignore[no-untyped-def]
    """Send until messages of one round go to all of these brokers and to no other."""
    async with asyncio.timeout(40):
        while await send(f"to {sorted(brokers)}") != brokers:
            pass


async def until_on(client: Client, topic: str, brokers: set[str]) -> None:
    """Wait until a topic is on all of these brokers."""
    puller = client.puller()
    async with asyncio.timeout(20):
        while {queue.broker_name for queue in await puller.refresh(topic)} != brokers:
            await asyncio.sleep(0.05)  # poll


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
