"""Members of a running group are added, promoted and removed: driver, files, command of the tool."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from raftgroup import Group, group

from ports import free_ports
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.configuration import Configuration, ConfigurationGeneration, Configurations
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import NO_INDEX, LedgerIndex, Term
from saturnmq.raft.core.messages import ChangeKind, ChangeResponse, Code, VoteRequest, VoteResponse, VoteResult
from saturnmq.raft.ledger.member_entries import MEMBERS_TOPIC, MembersFile, MessageCodec
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message, stamp_message
from saturnmq.raft.peers import Peers
from saturnmq.raft.settings import RaftSettings, parse_peers
from saturnmq.raft.tool import GroupTool
from saturnmq.raft.wire.codec import code_of, decode_response, encode

CODEC = MessageCodec(lambda: 1)
MESSAGES: dict[str, Any] = {
    "codec": CODEC,
    "stamp": stamp_message,
    "noop": noop_message(("127.0.0.1", 1), 1),
    "body_is_good": message_is_good,
}
BODY = noop_message(("127.0.0.1", 1), 2)
TEXT = "sixteen bytes at least"


@asynccontextmanager
async def tool_of(made: Group) -> AsyncIterator[GroupTool]:
    asked = GroupTool("g", parse_peers(made.peers), secret=made.settings.get("cluster_secret", ""))
    try:
        yield asked
    finally:
        await asked.close()


async def change(
    made: Group, kind: ChangeKind, name: str, address: str | None = None, *, dry_run: bool = False
) -> ChangeResponse:
    """Repeat a change until it is made, or refused for a reason that does not pass by itself."""
    passing = (Code.UNSUPPORTED, Code.FALL_BEHIND_TOO_MUCH, Code.REPEATED_REQUEST, Code.ILLEGAL_MEMBER_STATE)
    async with tool_of(made) as asked, asyncio.timeout(30):
        while True:
            answer = await asked.change(kind, name, address, dry_run=dry_run)
            if answer.code not in passing:
                return answer
            await asyncio.sleep(0.05)  # poll


async def learner(made: Group, name: str) -> str:
    """Start a new member with an empty store; returns its address."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    made.peers += f";{name}-{address}"
    made.names.append(name)
    await made.start(name, learner=True)
    return address


@pytest.mark.parametrize("secret", ["", TEXT])
@pytest.mark.spec("DL-X21")
def test_member_is_replaced_while_the_group_runs(tmp_path: Path, secret: str) -> None:
    async def run() -> None:
        async with group(tmp_path, **MESSAGES, cluster_secret=secret, require_secret=bool(secret)) as made:
            await made.append(BODY)
            address = await learner(made, "n3")
            known = made.members["n3"].status()
            assert not known.votes and known.configuration.index == -1
            preview = await change(made, ChangeKind.ADD_LEARNER, "n3", address, dry_run=True)
            assert preview.members is not None and preview.members.learners == {"n3"}
            assert all(m.status().configuration.index == -1 for m in made.members.values())
            added = await change(made, ChangeKind.ADD_LEARNER, "n3", address)
            assert (added.code, added.members) == (Code.SUCCESS, (await made.a_leader()).status().configuration)
            await made.equal()
            promoted = await change(made, ChangeKind.PROMOTE, "n3")
            assert promoted.code == Code.SUCCESS and promoted.members is not None
            assert promoted.members.voters == ("n0", "n1", "n2", "n3")
            old = (await made.a_leader()).settings.self_id  # the tool lets another one lead first
            removed = await change(made, ChangeKind.REMOVE, old)
            assert removed.code == Code.SUCCESS and removed.members is not None
            voters = tuple(name for name in made.names if name != old)
            assert removed.members.voters == voters
            await made.until(lambda: not made.members[old].status().votes, "the removed member was not informed")
            await made.stop(old)
            await made.append(BODY)
            await made.equal()
            for member in made.members.values():
                assert member.status().configuration.voters == voters
            down = (await made.a_leader()).settings.self_id
            await made.stop(down)
            await made.append(BODY)
            back = await made.start(down)  # with the dLegerPeers of before
            assert back.status().configuration.voters == voters
            await made.equal()
            again = await change(made, ChangeKind.ADD_LEARNER, old, "127.0.0.1:1")
            assert (again.code, "never used" in (again.reason or "")) == (Code.UNEXPECTED_ARGUMENT, True)

    asyncio.run(asyncio.wait_for(run(), 100))


@pytest.mark.spec("DL-X21", "DL-M05")
def test_change_is_refused_while_a_member_does_not_support_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with group(tmp_path, **MESSAGES) as made:
            await made.stop("n2")
            made.member_changes["codec"] = None  # as a member of an older version
            await made.start("n2")
            await made.append(BODY)
            await made.equal()
            while (leader := await made.a_leader()).settings.self_id == "n2":
                await leader.transfer("n0")
            async with tool_of(made) as asked:
                answer = await asked.change(ChangeKind.ADD_LEARNER, "n3", "127.0.0.1:1")
            assert answer.code == Code.UNSUPPORTED and "n2" in (answer.reason or "")
            assert all(m.status().configuration.index == -1 for m in made.members.values())

    asyncio.run(asyncio.wait_for(run(), 100))


def test_members_file_restores_what_was_written(tmp_path: Path) -> None:
    file = MembersFile(tmp_path)
    assert file.read() == ()
    known = (
        Configuration({"n0": "h:1", "n1": "h:2"}, frozenset(("n1",)), index=LedgerIndex(0)),
        Configuration({"n0": "h:1"}, removed=frozenset(("n1",)), index=LedgerIndex(9)),
    )
    generations = (ConfigurationGeneration(known), ConfigurationGeneration(known[:1], (LedgerIndex(7), Term(3))))
    file.write(generations)
    assert file.read() == generations
    huge = b'{"generations": [{"configurations": [], "begin": [1e400, 2]}]}'
    for text in (
        b"{",
        b"{}",
        b"[" * 100_000,
        huge,
        b'{"generations": [{"configurations": [{"index": 3, "peers": {}}], "begin": null}]}',
    ):
        (tmp_path / "members").write_bytes(text)
        (tmp_path / "members.bak").write_bytes(text)
        with pytest.raises(CorruptRecord, match="members"):
            file.read()


def test_configuration_with_an_unusable_address_is_none() -> None:
    for address in (
        "nowhere",
        "",
        "h:",
        "h:x",
        "a:b:1",
        "h h:1",
        "h\n:1",
        ";n9-h:1",
        "h:123456",
        ":1",
        "x" * 300 + ":1",
    ):
        with pytest.raises(ValueError, match="address"):
            Configuration.of_fields({"index": 3, "peers": {"n0": "h:1", "n1": address}})


async def voted(made: Group, name: str, candidate: str) -> VoteResult | None:
    """A member's vote for a candidate with a newer configuration; asked again until it has adopted the term."""
    client = RemotingClient(settings=NetSettings())
    try:
        while True:
            known = made.members[name].status()
            request = VoteRequest(
                group="g",
                remote_id=name,
                leader_id=candidate,
                term=Term(known.term + (known.leader_id is not None)),
                ledger_end_index=LedgerIndex(1000),
                ledger_end_term=known.term,
                changes=1000,
            )
            command = Command(code_of(request), body=encode(request))
            answer = decode_response(
                command.code,
                (await client.invoke(made.members[name].status().configuration.addresses[name], command, 5000)).body,
            )
            assert isinstance(answer, VoteResponse)
            if answer.vote_result not in (VoteResult.REJECT_TERM_NOT_READY, VoteResult.REJECT_ALREADY_VOTED):
                return answer.vote_result
            await asyncio.sleep(0.02)  # poll
    finally:
        await client.close()


@pytest.mark.spec("DL-X21", "SEC-18")
async def test_unknown_candidate_with_an_unusable_id_gets_no_vote(tmp_path: Path) -> None:
    """An id is written to the file of term and vote."""
    async with group(tmp_path, **MESSAGES) as made:
        await made.append(BODY)
        for candidate in ("n9\ncurrTerm=7", "x" * 65, ""):
            assert await voted(made, "n0", candidate) is VoteResult.REJECT_UNKNOWN_LEADER
        assert await voted(made, "n0", "n9") is not VoteResult.REJECT_UNKNOWN_LEADER


@pytest.mark.spec("DL-X21", "DL-X16")
def test_entry_of_a_configuration_is_a_message_that_no_consumer_sees() -> None:
    one = Configuration({"n0": "h:1", "n1": "h:2"}, frozenset(("n1",)), frozenset(("n7",)))
    body = stamp_message(CODEC.encode(one), 4096)
    assert message_is_good(memoryview(body)) and CODEC.decode(body) == one
    assert MEMBERS_TOPIC.encode() in body
    assert CODEC.decode(BODY) is None and CODEC.decode(b"") is None
    assert CODEC.decode(body.replace(b'"learners":["n1"]', b'"learners":["n2"]')) is None


@pytest.mark.spec("DL-X21", "DUR-10")
@pytest.mark.parametrize("damaged", [3, 5])
def test_damaged_entry_is_the_configuration_that_the_file_names(damaged: int) -> None:
    """The member starts, and repairs the entry from its leader. A configuration that a truncation removed does not come back."""
    old, new = (Configuration({"n0": f"h:{port}"}, index=LedgerIndex(5)) for port in (1, 2))
    first = (LedgerIndex(3), Term(2))
    log = {index: Entry(LedgerIndex(index), Term(2), 0, BODY) for index in (3, 4, 5)}
    log[5] = dataclasses.replace(log[5], body=CODEC.encode(dataclasses.replace(new, index=NO_INDEX)))

    def entry(index: LedgerIndex) -> Entry | None:
        if index == damaged:
            raise CorruptRecord("damaged")
        return log.get(index)

    def loaded(*stored: ConfigurationGeneration) -> Configuration:
        made = Configurations(Configuration({"n9": "h:9"}), CODEC)
        made.load(stored, LedgerIndex(3), entry)
        return made.newest

    assert loaded(ConfigurationGeneration((old,), first), ConfigurationGeneration((new,), first)) == new
    assert loaded(ConfigurationGeneration((new,), (LedgerIndex(9), Term(2)))) == (new if damaged != 5 else loaded())
    assert loaded(ConfigurationGeneration((old,), first), ConfigurationGeneration((), first)).index == NO_INDEX


@pytest.mark.spec("DL-X21")
def test_changes_are_the_configurations_of_the_log_from_its_first_entry_on() -> None:
    """The file of members would lose a change that is the first entry, and a restart would take the members of the settings."""
    made = Configurations(Configuration({"n9": "h:9"}), CODEC)
    assert made.changes == ()
    change = Configuration({"n0": "h:1"})
    made.append([Entry(LedgerIndex(0), Term(1), 0, CODEC.encode(change)), Entry(LedgerIndex(1), Term(1), 0, BODY)])
    assert made.changes == (dataclasses.replace(change, index=LedgerIndex(0)),)


@pytest.mark.spec("DL-X21")
@pytest.mark.parametrize(
    ("index", "address", "warned"), [(-1, "h:3", False), (0, "h:3", True), (7, "h:3", True), (7, "h:2", False)]
)
def test_settings_that_the_log_overrides_are_reported(
    index: int, address: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator who corrects dLegerPeers would otherwise not see why nothing changes."""
    settings = RaftSettings(enabled=True, group="g", peers_text="n0-h:1;n1-h:2", self_id="n0")
    hosts: list[str] = []
    peers = SimpleNamespace(
        access=SimpleNamespace(replace_hosts=hosts.extend), _addresses={}, _readdressed={}, _binary_peers={"n1", "n9"}
    )
    now = Configuration({"n0": "h:1", "n1": address}, index=LedgerIndex(index))
    Peers.use_members(peers, settings, now, {"n5": "h:5"})  # type: ignore[arg-type]
    assert peers._addresses == {"n0": "h:1", "n1": address, "n5": "h:5"}
    assert hosts == ["h", address.rpartition(":")[0], "h"] and peers._binary_peers == {"n1"}
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    text = f"dLegerPeers overridden by the log member=n0 peers=n0-h:1;n1-{address}"
    assert warnings == ([text] if warned else [])
