"""The operator's tool: shows the leader of a group, and transfers the leadership."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from raftgroup import group

from saturnmq.raft import tool
from saturnmq.raft.core.messages import Code
from saturnmq.raft.settings import parse_peers


@pytest.mark.spec("DL-M09", "DL-L01")
async def test_tool_shows_and_transfers_leadership(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with group(tmp_path) as members:
            leader = (await members.a_leader()).settings.self_id
            await members.append(b"x")
            await members.equal()
            to = next(name for name in members.names if name != leader)
            asked = tool.GroupTool("g", parse_peers(members.peers))
            try:
                await members.until(
                    lambda: all(m.status().leader_id == leader for m in members.members.values()), "news"
                )
                assert await asked.leaders() == dict.fromkeys(members.names, leader)
                term = await asked.term(leader)
                assert term == members.members[leader].status().term
                assert await asked.transfer(leader) is Code.SUCCESS  # already the leader
                while await asked.leader() != to:  # 418 on a slow machine: retry
                    assert await asked.transfer(to) in (Code.SUCCESS, Code.TAKE_LEADERSHIP_FAILED, Code.NOT_LEADER)
                assert await asked.term(to) > term
            finally:
                await asked.close()
            words = ["-g", "g", "-p", members.peers]
            while await asyncio.to_thread(tool.main, ["transfer", *words, "-t", leader]):
                assert "418" in capsys.readouterr().out
            await members.until(lambda: all(m.status().leader_id == leader for m in members.members.values()), "news")
            assert await asyncio.to_thread(tool.main, ["status", *words]) == 0
            assert f"leader={leader} term=" in capsys.readouterr().out
            await members.stop(leader)
            assert await asyncio.to_thread(tool.main, ["status", *words]) == 1  # one member does not answer
            assert "no answer" in capsys.readouterr().out

    async with asyncio.timeout(60):
        await run()


@pytest.mark.parametrize("required", [True, False])
async def test_tool_transfers_with_the_cluster_secret(
    required: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sixteen bytes at least"

    async def run() -> None:
        async with group(tmp_path, cluster_secret=secret, require_secret=required) as members:
            leader = (await members.a_leader()).settings.self_id
            await members.append(b"x")
            await members.equal()
            to = next(name for name in members.names if name != leader)
            words = ["transfer", "-g", "g", "-p", members.peers, "-t", to]
            for wrong, problem in (("", "not signed"), ("another secret of 16", "not signed with this")):
                if not wrong and not required:
                    continue
                monkeypatch.setenv(tool.SECRET_VARIABLE, wrong)
                assert await asyncio.to_thread(tool.main, words) == 1
                said = capsys.readouterr()
                assert (problem in said.err or "404" in said.out) and secret not in said.err + said.out
                assert (await members.a_leader()).settings.self_id == leader
            monkeypatch.setenv(tool.SECRET_VARIABLE, secret)
            while await asyncio.to_thread(tool.main, words):
                assert "418" in capsys.readouterr().out
            await members.until(lambda: all(m.status().leader_id == to for m in members.members.values()), "not moved")

    async with asyncio.timeout(60):
        await run()


@pytest.mark.spec("DL-M02")
@pytest.mark.parametrize(
    "words", [["status", "-g", "g", "-p", "n0"], ["transfer", "-g", "g", "-p", "n0-h:1", "-t", "n7"]]
)
def test_tool_rejects_wrong_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tool.main(words)
    assert ended.value.code == 2
    assert "n0" in capsys.readouterr().err
