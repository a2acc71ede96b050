"""Network side of a member: its server port and its calls to other members, DLedger commands over RocketMQ remoting frames.

A body that does not parse is answered with code 1, as Apache RocketMQ's remoting answers a failed request; an unknown request
code is answered with 3. APPEND pushes to other SaturnMQ members use the binary form of raft/wire/push.py.

Requirements: DL-M06, DL-X17, DUR-08. Wire facts: docs/spec/04-dledger.md section 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from saturnmq.net.client import RemotingClient
from saturnmq.net.connection import Connection
from saturnmq.net.server import RemotingServer
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import BodyError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.messages import (
    AppendRequest,
    Code,
    HeartBeatRequest,
    PushKind,
    PushRequest,
    PushResponse,
    Request,
    Response,
    VoteRequest,
)
from saturnmq.raft.wire.codec import (
    RESPONSE_HEADER_CODE,
    DLedgerCode,
    UnsupportedRequest,
    code_of,
    decode_request,
    decode_response,
    encode,
)
from saturnmq.raft.wire.push import FORM, OFFER, decode_answer, decode_push, encode_answer, encode_push, is_plain

log = logging.getLogger(__name__)

_OFFERED = {OFFER: str(FORM)}
Answer = Callable[[Response], None]
Receive = Callable[[Request, Answer], None]


class Peers:
    """Server and clients of one member.

    receive(request, answer) is called for each request received; answer is to be called once, at once or later.
    body_is_good: entries whose body fails this check are refused, whether a leader or a client sent them (DL-X17, DUR-08).
    allowed: addresses that may send votes, heartbeats and pushes; empty: all.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        net: NetSettings,
        receive: Receive,
        *,
        body_is_good: Callable[[bytes], bool] = bool,
        allowed: frozenset[str] = frozenset(),
    ) -> None:
        self._allowed = allowed
        self._addresses = dict(addresses)
        self._receive = receive
        self._body_is_good = body_is_good
        self._server = RemotingServer(self._handle, settings=net)
        self._client = RemotingClient(settings=net)
        self._calls: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._plain: set[str] = set()  # members that support the binary form of raft/wire/push.py

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the bound address. Raises StartError."""
        return await self._server.start(host, port, chosen_by="key dLegerPeers, alike on all members")

    async def stop(self) -> None:
        self._stopped = True
        for call in list(self._calls):
            call.cancel()
        if self._calls:
            await asyncio.gather(*self._calls, return_exceptions=True)
        await self._client.close()
        await self._server.stop()

    def readdress(self, name: str, address: str) -> None:
        """Connect to a member at another address from now on."""
        self._addresses[name] = address
        self._plain.discard(name)

    # server side

    def _handle(self, connection: Connection, command: Command) -> Command | None:
        plain = command.code == DLedgerCode.PUSH and is_plain(command.body)
        try:
            request = decode_push(command.body or b"") if plain else decode_request(command.code, command.body)
        except UnsupportedRequest as error:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, str(error))
        except BodyError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"BodyError: {error}")
        if self._allowed and isinstance(request, VoteRequest | HeartBeatRequest | PushRequest):
            address = connection.remote_address.rpartition(":")[0].strip("[]")
            if address not in self._allowed:
                log.warning("request refused reason=not_in_dledger.allowedAddresses peer=%s", connection.remote_address)
                return command.reply(
                    ResponseCode.SYSTEM_ERROR, f"{address} is not among dledger.allowedAddresses (DL-X17)"
                )
        if isinstance(request, AppendRequest) and not self._body_is_good(request.body or b""):
            return command.reply(ResponseCode.SYSTEM_ERROR, "the body is not a message (DL-X17)")

        def answer(response: Response) -> None:
            if connection.closed or command.is_oneway:
                return
            if plain and isinstance(response, PushResponse):
                connection.send(command.reply(RESPONSE_HEADER_CODE, body=encode_answer(response)))
                return
            ext = dict(_OFFERED) if command.ext and command.ext.get(OFFER) == _OFFERED[OFFER] else None
            connection.send(command.reply(RESPONSE_HEADER_CODE, ext=ext, body=encode(response)))

        if isinstance(request, PushRequest) and (refusal := self._damaged(request)) is not None:
            answer(refusal)
        else:
            self._receive(request, answer)
        return None

    def _damaged(self, push: PushRequest) -> PushResponse | None:
        """The refusal of a push with a damaged entry, else None; the leader re-pushes it (DL-P10) or compares again."""
        for entry in push.entries:
            if not self._body_is_good(entry.body):
                log.warning(
                    "damaged entry refused index=%s position=%s leader=%s", entry.index, entry.pos, push.leader_id
                )
                return PushResponse(
                    group=push.group,
                    term=push.term,
                    code=Code.UNEXPECTED_ARGUMENT,
                    index=push.entries[0].index,
                    count=len(push.entries),
                )
        return None

    # client side

    def send(self, peer: str, request: Request, timeout_ms: int, answered: Callable[[Response | None], None]) -> None:
        """Send a request to a member; `answered` is called once, with None if there is no usable response."""
        command = self._command(peer, request)
        future = self._client.ask(self._addresses[peer], command, timeout_ms)
        if future is None:
            task = asyncio.get_running_loop().create_task(self._connect_and_call(peer, command, timeout_ms, answered))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            return

        def done(future: asyncio.Future[Command]) -> None:
            if not self._stopped:
                answered(self._response(peer, command, future))

        future.add_done_callback(done)

    async def _connect_and_call(
        self, peer: str, command: Command, timeout_ms: int, answered: Callable[[Response | None], None]
    ) -> None:
        response: Response | None = None
        try:
            response = self._read(peer, command, await self._client.invoke(self._addresses[peer], command, timeout_ms))
        except SaturnError as error:
            self._failed(peer, error)
        answered(response)

    def _command(self, peer: str, request: Request) -> Command:
        """Encode a request in the form that the peer supports, and offer the binary form where it may be offered."""
        code, ext = code_of(request), {}
        if isinstance(request, PushRequest):
            if peer in self._plain and request.kind is PushKind.APPEND:
                body = encode_push(request)
                if body is not None:
                    return Command(code, body=body)
            elif request.kind is not PushKind.APPEND:
                ext = dict(_OFFERED)
        return Command(code, ext=ext, body=encode(request))

    def _response(self, peer: str, command: Command, call: asyncio.Future[Command]) -> Response | None:
        """The response of a finished call; None if it failed or the peer refused it."""
        try:
            return self._read(peer, command, call.result())
        except SaturnError as error:
            self._failed(peer, error)
            return None

    def _failed(self, peer: str, error: SaturnError) -> None:
        self._plain.discard(peer)
        log.debug("call failed peer=%s error=%s", peer, error)

    def _read(self, peer: str, command: Command, reply: Command) -> Response | None:
        """Decode a reply and note whether the peer supports the binary form. Raises BodyError."""
        if reply.code != RESPONSE_HEADER_CODE:
            self._plain.discard(peer)
            log.debug("call refused peer=%s code=%s remark=%s", peer, reply.code, reply.remark)
            return None
        if is_plain(command.body):
            return decode_answer(reply.body or b"")
        if command.ext:
            known = reply.ext.get(OFFER) == _OFFERED[OFFER]
            (self._plain.add if known else self._plain.discard)(peer)
        return decode_response(command.code, reply.body)
