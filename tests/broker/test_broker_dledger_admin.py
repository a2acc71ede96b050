"""`saturnmq admin` on a DLedger group: status, leadership transfer, verification and comparison of ledgers."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from brokergroup import LedgerGroup, ledger_group

from saturnmq import cli


async def admin(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = await asyncio.to_thread(cli.main, ["admin", *words, "--json"])
    told = capsys.readouterr().out
    return code, json.loads(told) if told else {}


@pytest.mark.spec("DL-Q06", "DL-L01", "DL-M09")
def test_ledger_status_and_leadership_transfer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def status(group: LedgerGroup) -> tuple[int, dict[str, Any]]:
        code, told = await admin(capsys, "ledgerStatus", "-n", group.name_servers, "-g", "g")
        return code, {row["broker"]: row for row in told["rows"]}

    async def work() -> None:
        async with ledger_group(tmp_path) as group:
            for body in (b"1", b"2"):
                await group.send(body)
            await group.until(lambda: all(b.store.max_offset("T", 0) == 2 for b in group.brokers.values()), "behind")
            leader = await group.master()
            addresses = {name: broker.advertised_address for name, broker in group.brokers.items()}
            async with asyncio.timeout(40):
                while len((found := await status(group))[1]) < 3 or found[0]:
                    await asyncio.sleep(0.05)  # poll: followers register asynchronously
            code, rows = found
            assert code == 0 and rows.keys() == set(addresses.values())
            first = group.name_of(leader)
            shown = rows[addresses[first]]
            assert (shown["role"], shown["leader"], shown["serving"]) == ("LEADER", first, "true")
            assert int(shown["end"]) >= 1 and all(f"{name}=" in shown["watermarks"] for name in group.names)
            assert {rows[addresses[name]]["role"] for name in group.names if name != first} == {"FOLLOWER"}

            second = next(name for name in group.names if name != first)
            peers = ";".join(f"{name}-{address}" for name, address in group.addresses.items())
            code, told = await admin(capsys, "ledgerTransfer", "-g", "g", "-p", peers, "-t", second)
            assert (code, told["rows"]) == (0, [{"to": second, "code": 200, "name": "SUCCESS"}])
            await group.until(lambda: group.member(second).status().role.value == "LEADER", "not handed over")

            assert await admin(capsys, "ledgerTransfer", "-g", "g", "-p", peers, "-t", "n9") == (2, {})
            assert await admin(capsys, "ledgerStatus", "-n", group.name_servers, "-g", "none") == (2, {})
            await group.stop(second)
            code, rows = await status(group)
            assert code == 3 or addresses[second] not in rows, "a member that does not answer is told"

    asyncio.run(asyncio.wait_for(work(), 110))


@pytest.mark.spec("DL-S06")
def test_ledgers_of_stopped_members_are_verified_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        async with ledger_group(tmp_path / "g") as group:
            for number in range(5):
                await group.send(b"%d" % number)
            await group.until(
                lambda: len({group.member(name).status().committed_index for name in group.names}) == 1, "behind"
            )
        folders = [str(tmp_path / "g" / name / f"dledger-{name}") for name in group.names]
        code, told = await admin(capsys, "ledgerVerify", *folders)
        assert code == 0 and [row["problems"] for row in told["rows"]] == [[], [], []]
        copies = [str(shutil.copytree(folders[0], tmp_path / name)) for name in ("a", "b")]
        code, told = await admin(capsys, "ledgerCompare", *copies)
        assert (code, told["equal"]) == (0, True)

        data = next((tmp_path / "b" / "data").iterdir())
        content = bytearray(data.read_bytes())
        content[60] ^= 1  # in the body of the first entry
        data.write_bytes(content)
        code, told = await admin(capsys, "ledgerCompare", *copies)
        assert (code, told["equal"], told["index"]) == (3, False, 0)
        (tmp_path / "b" / "currterm").unlink()
        code, told = await admin(capsys, "ledgerVerify", copies[1])
        assert code == 3 and told["rows"][0]["problems"] == ["currterm is missing"]
        assert await admin(capsys, "ledgerVerify", str(tmp_path)) == (2, {})
        assert await admin(capsys, "ledgerCompare", copies[0]) == (2, {})

    asyncio.run(asyncio.wait_for(work(), 110))
