"""The process of a group member: first registration, by its role, and exit on a disk failure."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from brokergroup import LedgerGroup, ledger_group

from ports import free_ports
from saturnmq.broker import Broker
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import ClusterInfo
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command


async def registered(group: LedgerGroup) -> dict[str, dict[int, str]]:
    """Addresses by broker id, by broker name, as the NameServer has them."""
    answer = await group.client.invoke(group.name_servers, Command(RequestCode.GET_BROKER_CLUSTER_INFO), 10_000)
    table = ClusterInfo.decode(answer.body).broker_addr_table
    return {name: dict(data.broker_addrs) for name, data in table.items()}


async def until_registered(group: LedgerGroup) -> None:
    """Wait until the NameServer has every member under its current role."""
    async with asyncio.timeout(45):
        while True:
            found, master = await registered(group), await group.master()
            ids = {0 if broker is master else int(name[1:]) + 1: broker for name, broker in group.brokers.items()}
            assert set(found) <= {"g"} and all(number >= 0 for number in found.get("g", {}))
            if found == {"g": {number: broker.advertised_address for number, broker in ids.items()}}:
                return
            await asyncio.sleep(0.02)  # poll


@pytest.mark.spec("NS-37", "DL-X19")
@pytest.mark.loop(real=True)
async def test_member_registers_with_role_and_not_at_start(tmp_path: Path) -> None:
    async with asyncio.timeout(110), ledger_group(tmp_path, start=False, register_period_ms=60_000) as group:
        plain = Broker(group.settings(broker_name="plain"), group.store("plain"), NetSettings())
        await plain.start()
        try:
            assert await registered(group) == {"plain": {0: plain.advertised_address}}  # registered at once
        finally:
            await plain.stop()
        assert await registered(group) == {}
        first = await group.start("n0")  # alone: no quorum, no role
        member = group.member("n0")
        first.topics.ensure("T", 4)  # other triggers of a registration: a new topic, and a forced round
        assert await first.registrar.register(force=True)
        term = member.status().term
        await group.until(lambda: member.status().term > term or member.node.now_ms > 0, "no tick")
        assert first.dledger is not None and first.dledger.broker_id < 0
        assert await registered(group) == {} and first.registrar.registered == 0
        await group.start("n1")
        await until_registered(group)
        await group.start("n2")
        await until_registered(group)


_ON_A_DISK_THAT_MAY_FAIL = """
import os, sys
from saturnmq.cli import main
from saturnmq.store.files.disk import Disk
well = Disk.sync
def sync(self, fd):
    if os.path.exists(sys.argv[1]):
        raise OSError(5, "Input/output error")
    well(self, fd)
Disk.sync = sync
sys.exit(main(sys.argv[2:]))
"""


async def send(client: RemotingClient, address: str) -> int:
    ext = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
    return (await client.invoke(address, Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=b"x"), 10_000)).code


@pytest.mark.spec("DUR-06")
def test_member_with_failed_disk_exits_with_error_within_10_s(tmp_path: Path) -> None:
    async def work() -> tuple[int | None, str]:
        keys = ["enableDLegerCommitLog=true", "dLegerGroup=g", "dLegerSelfId=n0", "dledger.profile=fast"]
        keys += [f"dLegerPeers=n0-127.0.0.1:{free_ports(1)[0]}", "listenPort=0", "fastPortEnable=false"]
        keys += [f"storePathRootDir={tmp_path / 'store'}", "storeProfile=small"]
        words = ["broker", *(word for key in keys for word in ("--set", key))]
        failing = tmp_path / "failing"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _ON_A_DISK_THAT_MAY_FAIL, str(failing), *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        client = RemotingClient(settings=NetSettings())
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                while b"saturnmq: ready" not in (line := await process.stdout.readline()):
                    assert line, "it ended before it was ready"
                address = dict(word.split("=", 1) for word in line.decode().split()[2:])["broker"]
                while await send(client, address) != 0:
                    await asyncio.sleep(0.02)  # poll
            failing.touch()
            asking = asyncio.get_running_loop().create_task(send(client, address))
            async with asyncio.timeout(10):
                _, errors = await process.communicate()
            answered = (await asyncio.gather(asking, return_exceptions=True))[0]
            assert answered != 0  # never acknowledged
        finally:
            await client.close()
            if process.returncode is None:
                process.kill()
                await process.communicate()
        return process.returncode, errors.decode()

    code, errors = asyncio.run(work())
    assert code == 1 and "Input/output error" in errors
