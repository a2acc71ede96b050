"""Shows the leader of a DLedger group, transfers the leadership, changes members: `python -m saturnmq.raft.tool` for the first two.

It works with Java members too. A group with `dledger.requireClusterSecret=true` transfers only if the request is signed: the
secret is the value of the environment variable SATURNMQ_CLUSTER_SECRET, or a constructor argument.

Requirements: DL-L01, DL-M05, DL-M09, DL-X21, SEC-18.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import sys
from collections.abc import Sequence

from saturnmq.escaping import escaped
from saturnmq.net.client import RemotingClient
from saturnmq.net.settings import NetSettings
from saturnmq.net.tls import TlsSettings
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.cluster_secret import SECRET_VARIABLE, ClusterSecret
from saturnmq.raft.core.ids import NO_TERM, Term
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
)
from saturnmq.raft.peers import call_signed
from saturnmq.raft.settings import parse_peers
from saturnmq.raft.wire.codec import RESPONSE_HEADER_CODE, code_of, decode_response, encode

ASK_TIMEOUT_MS = 3000
TRANSFER_TIMEOUT_MS = 10_000
CHANGE_SECONDS = 15.0  # how long a change is repeated while the group has no leader that can make it
CHANGE_PAUSE_SECONDS = 0.3
_NOT_YET = (Code.NOT_LEADER, Code.LEADER_NOT_READY, Code.LEADER_TRANSFERRING)


class GroupTool:
    """Calls to the members of one group. peers: id -> host:port. secret: signs the requests; empty: unsigned."""

    def __init__(self, group: str, peers: dict[str, str], tls: TlsSettings | None = None, *, secret: str = "") -> None:
        self.group = group
        self.peers = peers
        self._secret = ClusterSecret.of(secret, required=False)
        self._client = RemotingClient(settings=NetSettings(), tls=tls)

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, name: str, request: Request, timeout_ms: int = ASK_TIMEOUT_MS) -> Response:
        command = Command(code_of(request), body=encode(request))
        reply = await call_signed(self._client, self._secret, self.peers[name], command, timeout_ms)
        if reply.code != RESPONSE_HEADER_CODE:
            raise response_error(reply.code, reply.remark, broker=self.peers[name])
        return decode_response(code_of(request), reply.body)

    async def leaders(self) -> dict[str, str]:
        """Member id -> the leader that this member reports: an id, "" if it knows none, or why there is no answer."""

        async def leader_of(name: str) -> str:
            try:
                reported = await self._call(name, MetadataRequest(group=self.group, remote_id=name))
            except SaturnError as error:
                return f"no answer: {error.message}"
            return (reported.leader_id or "") if isinstance(reported, MetadataResponse) else "no answer"

        names = list(self.peers)
        return dict(zip(names, await asyncio.gather(*map(leader_of, names)), strict=True))

    async def learn_members(self) -> tuple[str, ...]:
        """Add the members that the given ones know; returns the learners. Members that do not answer are left out."""
        learners: set[str] = set()
        for name in list(self.peers):
            try:
                reported = await self._call(name, MetadataRequest(group=self.group, remote_id=name))
            except SaturnError:
                continue
            if isinstance(reported, MetadataResponse):
                # The given addresses win: the operator may reach the members by others than they know each other by.
                self.peers = {**(reported.peers or {}), **self.peers}
                learners.update(reported.learners or ())
        return tuple(sorted(learners))

    async def change(
        self, kind: ChangeKind, member: str, address: str | None = None, *, dry_run: bool = False
    ) -> ChangeResponse:
        """Change the members. A leader that is to be removed hands over to another voter first. Raises SaturnError.

        Repeated while no leader can make the change yet. A change of which the outcome is unknown (502, 501) is not repeated.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + CHANGE_SECONDS
        learners = await self.learn_members()
        while True:
            leader, answer = await self.leader(), ChangeResponse(code=Code.NOT_LEADER, reason="no member leads")
            if leader is not None:
                # Not for a dry run, which must not move the leadership.
                if kind is ChangeKind.REMOVE and leader == member and not dry_run:
                    leader = await self._transfer_from(leader, learners)
                answer = await self._change_at(leader, kind, member, address, dry_run=dry_run)
            # 502 and 501 are final here: the change may have been appended.
            if answer.code not in _NOT_YET or loop.time() >= until:
                return answer
            await asyncio.sleep(CHANGE_PAUSE_SECONDS)

    async def _change_at(
        self, leader: str, kind: ChangeKind, member: str, address: str | None, *, dry_run: bool
    ) -> ChangeResponse:
        request = ChangeRequest(
            group=self.group, remote_id=leader, kind=kind, member_id=member, address=address, dry_run=dry_run
        )
        answer = await self._call(leader, request, TRANSFER_TIMEOUT_MS)
        assert isinstance(answer, ChangeResponse)
        return dataclasses.replace(answer, code=_as_code(answer.code))

    async def _transfer_from(self, leader: str, learners: Sequence[str]) -> str:
        """Let another voter lead; returns its id, or the old leader's, which then steps down after its removal."""
        for candidate in self.peers:
            if candidate != leader and candidate not in learners and await self._transferred(candidate):
                return candidate
        return leader

    async def _transferred(self, to: str) -> bool:
        try:
            return await self.transfer(to) is Code.SUCCESS
        except SaturnError:
            return False

    async def leader(self) -> str | None:
        """The member that reports itself as leader."""
        return next((name for name, reported in (await self.leaders()).items() if name == reported), None)

    async def term(self, leader: str) -> Term:
        """The leader's term; -1 if unknown.

        A Java leader does not report it: it is sent a heartbeat of term -1, which is refused with the current term and changes
        nothing (DL-H05).
        """
        metadata = await self._call(leader, MetadataRequest(group=self.group, remote_id=leader))
        if metadata.term != NO_TERM:
            return metadata.term
        sender = next(name for name in self.peers if name != leader)
        # Below every real term: the answer names the current one (403), and nothing changes there.
        request = HeartBeatRequest(group=self.group, remote_id=leader, local_id=sender, leader_id=sender, term=NO_TERM)
        reported = await self._call(leader, request)
        return reported.term if isinstance(reported, HeartBeatResponse) else NO_TERM

    async def transfer(self, to: str) -> Code:
        """Transfer the leadership to a member. Returns 200, or the code of the refusal. Raises SaturnError."""
        leader = await self.leader()
        if leader is None:
            return Code.NOT_LEADER
        if leader == to:
            return Code.SUCCESS
        term = await self.term(leader)
        request = TransferRequest(
            group=self.group, remote_id=leader, transfer_id=leader, transferee_id=to, term=term
        )  # fmt: skip
        return _as_code((await self._call(leader, request, TRANSFER_TIMEOUT_MS)).code)


def _as_code(code: int) -> Code:
    return Code(code) if code in Code.__members__.values() else Code.UNKNOWN


def write_line(line: str) -> None:
    """Print a line; control characters, which a member may have sent, are escaped."""
    sys.stdout.write(escaped(line) + "\n")


async def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns 0 if all members name the same leader, or the transfer succeeded; else 1."""
    secret = os.environ.get(SECRET_VARIABLE, "")
    tool = GroupTool(arguments.group, parse_peers(arguments.peers), secret=secret)
    try:
        if arguments.verb == "transfer":
            code = await tool.transfer(arguments.to)
            write_line(f"transfer to {arguments.to}: {code.value} {code.name}")
            return 0 if code is Code.SUCCESS else 1
        reported = await tool.leaders()
        for name, named in reported.items():
            write_line(f"{name} {tool.peers[name]} leader={named or 'none'}")
        leader = await tool.leader()
        if leader is not None and len(tool.peers) > 1:
            write_line(f"leader={leader} term={await tool.term(leader)}")
        return 0 if leader is not None and set(reported.values()) == {leader} else 1
    finally:
        await tool.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the command; the help shows this module's docstring up to the first colon."""
    parser = argparse.ArgumentParser(prog="python -m saturnmq.raft.tool", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("verb", choices=("status", "transfer"))
    parser.add_argument("-g", "--group", required=True, help="dLegerGroup")
    parser.add_argument("-p", "--peers", required=True, help="dLegerPeers, n0-host:port;n1-host:port;...")
    parser.add_argument("-t", "--to", help="id of the member that is to lead")
    arguments = parser.parse_args(argv)
    try:
        peers = parse_peers(arguments.peers)
    except ValueError as error:
        parser.error(f"--peers: {error}")
    if arguments.verb == "transfer" and arguments.to not in peers:
        parser.error(f"transfer needs --to with one of {', '.join(peers)}")
    try:
        return asyncio.run(run(arguments))
    except SaturnError as error:
        sys.stderr.write(f"failed: {escaped(error.message)}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
