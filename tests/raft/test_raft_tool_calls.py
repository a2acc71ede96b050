"""What the operator's tool asks which member, and how it reads the answers; the members are stubs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq.errors import CallTimeout
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft import tool
from saturnmq.raft.core.messages import (
    ChangeKind,
    ChangeRequest,
    ChangeResponse,
    Code,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    Request,
    Response,
    TransferRequest,
    TransferResponse,
)
from saturnmq.raft.wire.codec import DLedgerCode, code_of, encode
from saturnmq.raft.wire.codec import encode as encode_response

PEERS = {"n0": "10.0.0.1:1", "n1": "10.0.0.2:1", "n2": "10.0.0.3:1"}
SILENT = CallTimeout("no answer within 3 s")


class Stub(tool.GroupTool):
    """A group that answers by rules; `calls` are its requests with their timeouts."""

    def __init__(self, answers: dict[type, Callable[[str, Any], Response]], peers: dict[str, str] = PEERS) -> None:
        super().__init__("g", dict(peers))
        self.answers = answers
        self.calls: list[tuple[str, Request, int]] = []

    async def _call(self, name: str, request: Request, timeout_ms: int = tool.ASK_TIMEOUT_MS) -> Response:
        assert (request.group, request.remote_id) == ("g", name)
        self.calls.append((name, request, timeout_ms))
        return self.answers[type(request)](name, request)

    def sent(self, kind: type) -> list[tuple[str, Any, int]]:
        return [call for call in self.calls if type(call[1]) is kind]


def named(leader: str | None, **more: Any) -> Callable[[str, Any], Response]:
    return lambda name, request: MetadataResponse(leader_id=leader, **more)


async def test_each_member_says_who_leads() -> None:
    def metadata(name: str, request: Any) -> Response:
        if name == "n2":
            raise SILENT
        return MetadataResponse(leader_id="n0" if name == "n0" else None)

    stub = Stub({MetadataRequest: metadata})
    assert await stub.leaders() == {"n0": "n0", "n1": "", "n2": "no answer: no answer within 3 s"}
    assert [(name, timeout) for name, _, timeout in stub.calls] == [("n0", 3000), ("n1", 3000), ("n2", 3000)]
    assert await stub.leader() == "n0"
    await stub.close()


async def test_only_a_member_that_names_itself_leads() -> None:
    stub = Stub({MetadataRequest: lambda name, request: MetadataResponse(leader_id="n1" if name != "n1" else "n0")})
    assert await stub.leader() is None
    other = Stub({MetadataRequest: lambda name, request: TransferResponse(leader_id=name)})
    assert set((await other.leaders()).values()) == {"no answer"}
    await stub.close()
    await other.close()


async def test_the_term_of_a_java_leader_is_in_its_refusal_of_a_heartbeat() -> None:
    """It does not report it otherwise; a heartbeat of term -1 changes nothing."""
    reporting = Stub({MetadataRequest: named("n1", term=7)})
    assert await reporting.term("n1") == 7
    assert [name for name, _, _ in reporting.calls] == ["n1"]
    refusing = Stub({MetadataRequest: named("n1"), HeartBeatRequest: lambda name, request: HeartBeatResponse(term=5)})
    assert await refusing.term("n1") == 5
    [(name, request, _)] = refusing.sent(HeartBeatRequest)
    assert (name, request.local_id, request.leader_id, request.term) == ("n1", "n0", "n0", -1)
    odd = Stub({MetadataRequest: named("n0"), HeartBeatRequest: lambda name, request: TransferResponse(term=5)})
    assert await odd.term("n0") == -1
    for stub in (reporting, refusing, odd):
        await stub.close()


@pytest.mark.spec("DL-L01")
async def test_a_transfer_is_sent_to_the_leader_with_its_term() -> None:
    stub = Stub(
        {MetadataRequest: named("n1", term=7), TransferRequest: lambda name, request: TransferResponse(code=200)}
    )
    assert await stub.transfer("n1") is Code.SUCCESS, "it leads already"
    assert stub.sent(TransferRequest) == []
    assert await stub.transfer("n2") is Code.SUCCESS
    [(name, request, timeout)] = stub.sent(TransferRequest)
    assert (name, request.transfer_id, request.transferee_id, request.term) == ("n1", "n1", "n2", 7)
    assert timeout == 10_000
    for code, expected in ((418, Code.TAKE_LEADERSHIP_FAILED), (4711, Code.UNKNOWN)):
        stub.answers[TransferRequest] = lambda name, request, code=code: TransferResponse(code=code)
        assert await stub.transfer("n2") is expected
    stub.answers[MetadataRequest] = named(None)
    assert await stub.transfer("n2") is Code.NOT_LEADER
    await stub.close()


class Changing(Stub):
    """n1 leads; `codes` are the answers to changes and to transfers, one after another."""

    def __init__(self, codes: list[int], transfers: list[int | SaturnError] | None = None) -> None:
        self.leading, self.codes, self.transfers = "n1", codes, transfers or []
        super().__init__(
            {
                MetadataRequest: lambda name, request: MetadataResponse(
                    leader_id=self.leading, term=1, peers={"n3": "10.0.0.4:1", "n0": "elsewhere:1"}, learners=("n3",)
                ),
                ChangeRequest: lambda name, request: ChangeResponse(code=self.codes.pop(0)),
                TransferRequest: self._transfer,
            }
        )

    def _transfer(self, name: str, request: Any) -> Response:
        outcome = self.transfers.pop(0)
        if isinstance(outcome, SaturnError):
            raise outcome
        if outcome == 200:
            self.leading = request.transferee_id
        return TransferResponse(code=outcome)


async def test_members_that_the_given_ones_know_are_asked_too() -> None:
    stub = Changing([])
    assert await stub.learn_members() == ("n3",)
    assert stub.peers == {**PEERS, "n3": "10.0.0.4:1"}, "addresses that were given are kept"
    stub.answers[MetadataRequest] = named("n1", peers=None, learners=None)
    assert await stub.learn_members() == ()
    await stub.close()


@pytest.mark.parametrize("code", [200, 501, 502, 411, 4711])
async def test_a_change_is_sent_once_to_the_leader(code: int) -> None:
    """502 and 501: the outcome is unknown, and the change may be made."""
    stub = Changing([code])
    answer = await stub.change(ChangeKind.ADD_LEARNER, "n4", "10.0.0.5:1", dry_run=True)
    assert answer.code == (code if code != 4711 else -1)
    [(name, request, timeout)] = stub.sent(ChangeRequest)
    assert name == "n1" and timeout == 10_000
    assert request.kind is ChangeKind.ADD_LEARNER
    assert (request.member_id, request.address, request.dry_run) == ("n4", "10.0.0.5:1", True)
    await stub.close()


async def test_a_change_is_repeated_until_a_leader_can_make_it() -> None:
    clock = asyncio.get_running_loop().time
    stub = Changing([404, 505, 506, 200])
    began = clock()
    assert (await stub.change(ChangeKind.PROMOTE, "n3")).code == Code.SUCCESS
    assert 0.9 <= clock() - began < 3
    await stub.close()


async def test_a_change_without_a_leader_ends_after_15_s() -> None:
    clock = asyncio.get_running_loop().time
    stub = Changing([])
    stub.leading = ""
    began = clock()
    answer = await stub.change(ChangeKind.PROMOTE, "n3")
    assert (answer.code, answer.reason) == (Code.NOT_LEADER, "no member leads")
    assert 15 <= clock() - began < 15.5
    assert stub.sent(ChangeRequest) == []
    await stub.close()


async def test_a_leader_that_is_removed_hands_over_to_another_voter_first() -> None:
    stub = Changing([200], [SILENT, 200])
    assert (await stub.change(ChangeKind.REMOVE, "n1")).code == Code.SUCCESS
    assert [request.transferee_id for _, request, _ in stub.sent(TransferRequest)] == ["n0", "n2"], "not to a learner"
    assert [name for name, _, _ in stub.sent(ChangeRequest)] == ["n2"]
    await stub.close()


async def test_a_leader_that_no_voter_replaces_removes_itself() -> None:
    """It steps down after its removal."""
    stub = Changing([200], [418, 418])
    assert (await stub.change(ChangeKind.REMOVE, "n1")).code == Code.SUCCESS
    assert [name for name, _, _ in stub.sent(ChangeRequest)] == ["n1"]
    await stub.close()


@pytest.mark.parametrize(("member", "dry_run"), [("n2", False), ("n1", True)])
async def test_a_leader_keeps_its_role_if_it_is_not_removed(member: str, dry_run: bool) -> None:
    stub = Changing([200])
    await stub.change(ChangeKind.REMOVE, member, dry_run=dry_run)
    assert stub.sent(TransferRequest) == []
    assert [name for name, _, _ in stub.sent(ChangeRequest)] == ["n1"]
    await stub.close()


async def test_a_response_of_another_code_is_an_error_with_its_remark() -> None:
    group = tool.GroupTool("g", dict(PEERS))
    replies = [Command(200, body=encode_response(MetadataResponse(leader_id="n2"))), Command(1, remark="not now")]
    sent: list[tuple[str, Command, int]] = []

    async def invoke(address: str, command: Command, timeout_ms: int) -> Command:
        sent.append((address, command, timeout_ms))
        return replies.pop(0)

    group._client.invoke = invoke  # type: ignore[method-assign]
    request = MetadataRequest(group="g", remote_id="n1")
    response = await group._call("n1", request)
    assert isinstance(response, MetadataResponse) and response.leader_id == "n2"
    with pytest.raises(SaturnError, match="not now"):
        await group._call("n1", request, 77)
    assert [(address, timeout) for address, _, timeout in sent] == [("10.0.0.2:1", 3000), ("10.0.0.2:1", 77)]
    assert sent[0][1].code == code_of(request) == DLedgerCode.METADATA
    assert sent[0][1].body == encode(request)
    await group.close()


# ---- the command


def command(monkeypatch: pytest.MonkeyPatch, stub: Stub, *words: str) -> int:
    """Run the command with a stub for its group, which must be closed at the end."""
    made: list[tuple[str, dict[str, str], str]] = []

    def make(group: str, peers: dict[str, str], *, secret: str) -> Stub:
        made.append((group, peers, secret))
        return stub

    async def close() -> None:
        await real_close()
        closed.append(True)

    closed: list[bool] = []
    real_close, stub.close = stub.close, close  # type: ignore[method-assign]
    monkeypatch.setattr(tool, "GroupTool", make)
    monkeypatch.setenv(tool.SECRET_VARIABLE, "of the environment")
    peers = ";".join(f"{name}-{address}" for name, address in PEERS.items())
    status = tool.main([*words, "-g", "g", "-p", peers])
    assert made == [("g", PEERS, "of the environment")]
    assert closed == [True]
    return status


@pytest.mark.parametrize("leader", ["n1", "", None])
def test_status_shows_each_member_and_fails_unless_all_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], leader: str | None
) -> None:
    stub = Stub({MetadataRequest: named(leader, term=7)})
    assert command(monkeypatch, stub, "status") == (0 if leader else 1)
    lines = [f"{name} {address} leader={leader or 'none'}" for name, address in PEERS.items()]
    assert capsys.readouterr().out.splitlines() == [*lines, *(["leader=n1 term=7"] if leader else [])]


def test_status_fails_if_one_member_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def metadata(name: str, request: Any) -> Response:
        if name == "n2":
            raise CallTimeout("no \x1b[2Janswer")
        return MetadataResponse(leader_id="n1", term=7)

    assert command(monkeypatch, Stub({MetadataRequest: metadata}), "status") == 1
    out = capsys.readouterr().out
    assert "n2 10.0.0.3:1 leader=no answer: no " in out and "\x1b" not in out
    assert out.endswith("leader=n1 term=7\n")


def test_transfer_prints_the_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for code, status, text in ((200, 0, "200 SUCCESS"), (418, 1, "418 TAKE_LEADERSHIP_FAILED")):
        answers = {
            MetadataRequest: named("n1", term=7),
            TransferRequest: lambda name, request, code=code: TransferResponse(code=code),
        }
        assert command(monkeypatch, Stub(answers), "transfer", "-t", "n2") == status
        assert capsys.readouterr().out == f"transfer to n2: {text}\n"


def test_a_transfer_without_a_leader_that_answers_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(name: str, request: Any) -> Response:
        raise SILENT

    answers: dict[type, Callable[[str, Any], Response]] = {
        MetadataRequest: named("n1", term=7),
        TransferRequest: silent,
    }
    assert command(monkeypatch, Stub(answers), "transfer", "-t", "n2") == 1
    assert capsys.readouterr().err == "failed: no answer within 3 s\n"


@pytest.mark.parametrize("words", [("transfer",), ("transfer", "-t", "n9")])
def test_a_transfer_needs_a_member_of_the_group(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, Stub({}), *words)
    assert stopped.value.code == 2
    assert "--to with one of n0, n1, n2" in capsys.readouterr().err
