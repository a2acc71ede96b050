"""Network side of a member: its server port and its calls to other members, DLedger commands over RocketMQ remoting frames.

Every request is checked by address (raft/access.py) and signature (raft/cluster_secret.py) before its body is decoded. A body that
does not parse is answered with code 1, as Apache RocketMQ's remoting answers a failed request; an unknown request code with 3, a
request that is not permitted with 16. APPEND pushes to other SaturnMQ members use the binary form of raft/wire/push.py.

Requirements: DL-M06, DL-X17, DUR-08, SEC-18. Wire facts: docs/spec/04-dledger.md section 4.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from saturnmq.errors import ConnectFailed
from saturnmq.net.client import RemotingClient
from saturnmq.net.connection import Connection
from saturnmq.net.later import Later
from saturnmq.net.server import RemotingServer
from saturnmq.net.settings import NetSettings
from saturnmq.net.tls import TlsSettings
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import BodyError, RemoteProtocolError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.access import Origin, PeerAccess
from saturnmq.raft.cluster_secret import FIELD, ClusterSecret, Verdict
from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.core.messages import (
    AppendRequest,
    Code,
    HeartBeatRequest,
    HeartBeatResponse,
    PushKind,
    PushRequest,
    PushResponse,
    Request,
    Response,
)
from saturnmq.raft.settings import RaftSettings
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
from saturnmq.tasks import cancel

log = logging.getLogger(__name__)

ADMIN_CODES: Final = frozenset(
    (
        DLedgerCode.METADATA,
        DLedgerCode.APPEND,
        DLedgerCode.GET,
        DLedgerCode.LEADERSHIP_TRANSFER,
        DLedgerCode.MEMBERS,
    )
)
OPERATING_CODES: Final = ADMIN_CODES - {DLedgerCode.APPEND, DLedgerCode.GET}  # those without messages
_ALWAYS_SIGNED: Final = (  # also from adminAddresses, if signatures are required
    DLedgerCode.LEADERSHIP_TRANSFER,
    DLedgerCode.MEMBERS,
)
_SIGNED_ONLY: Final = "aclEnable=true: adminAddresses change members only with a signature by dledger.clusterSecret"
# Sizes of bodies in bytes, by code; other codes are limited by the frame. APPEND: an entry of 4 MiB in base64.
_BODY_BYTES_MAX: Final = {
    DLedgerCode.METADATA: 65_536,
    DLedgerCode.GET: 65_536,
    DLedgerCode.VOTE: 65_536,
    DLedgerCode.HEART_BEAT: 65_536,
    DLedgerCode.LEADERSHIP_TRANSFER: 65_536,
    DLedgerCode.MEMBERS: 65_536,
    DLedgerCode.APPEND: 6_291_456,
}
_MEMBER_BYTES_MAX: Final = 255
_OFFERED = {OFFER: str(FORM)}
M = TypeVar("M", bound=Request | Response)
Answer = Callable[[Response], None]
Receive = Callable[[Request, Answer], None]


async def call_signed(
    client: RemotingClient, secret: ClusterSecret | None, address: str, command: Command, timeout_ms: int
) -> Command:
    """Send a request, signed if there is a secret, and again if the peer's process has another name than was known.

    Returns the response. Raises SaturnError; RemoteProtocolError for a response that is not authentic.
    """
    # Twice: the first try may only yield the name of the peer's process.
    for _ in range(2):
        # A copy per try: the signature is written into ext.
        sent = Command(command.code, ext=dict(command.ext), body=command.body)
        if secret is not None:
            secret.sign(address, sent)
        reply = await client.invoke(address, sent, timeout_ms)
        if secret is None:
            return reply
        if not secret.check_response(address, sent, reply):
            raise RemoteProtocolError(f"the response of {address} is not signed with this dledger.clusterSecret")
        # The signature was made for a former process of this peer, or for none.
        if not secret.knows_another(address, sent):
            break
    return reply


class Peers:
    """Server and clients of one member.

    receive(request, answer) is called for each request received; answer is to be called once, at once or later.
    body_is_good: entries whose body fails this check are refused, whether a leader or a client sent them (DL-X17, DUR-08).
    access: who may send requests. admin_codes: those that adminAddresses may send. secret: signs and checks exchanges between
    SaturnMQ members; None: no signatures.
    serve_state(member): returns what this member's broker answers to `ask_state` of a member, "" if the request does not name one.
    serve_forwarded(connection, body, answer): serves what a member's broker has sent by `forward`; answer is to be called once.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        net: NetSettings,
        receive: Receive,
        *,
        access: PeerAccess,
        admin_codes: frozenset[DLedgerCode] = ADMIN_CODES,
        secret: ClusterSecret | None = None,
        body_is_good: Callable[[bytes], bool] = bool,
        tls: TlsSettings | None = None,
    ) -> None:
        self.access = access
        self.serve_state: Callable[[str], Awaitable[bytes]] | None = None
        self.serve_forwarded: Callable[[Connection, bytes, Callable[[bytes], None]], None] | None = None
        self._secret = secret
        self._admin_codes = admin_codes
        self._addresses = dict(addresses)
        self._readdressed: dict[str, str] = {}
        self._receive = receive
        self._body_is_good = body_is_good
        self._server = RemotingServer(self._handle, settings=net, tls=tls)
        self._client = RemotingClient(settings=net, tls=tls)
        self._forwards = RemotingClient(settings=net, tls=tls)  # its large answers must not delay heartbeats and pushes
        self._calls: set[asyncio.Task[Command]] = set()
        self._stopped = False
        self._binary_peers: set[str] = set()  # members that support the binary form of raft/wire/push.py

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the bound address. Raises StartError."""
        await self.access.start()
        return await self._server.start(host, port, chosen_by="key dLegerPeers, alike on all members")

    async def stop(self) -> None:
        self._stopped = True
        await cancel(*self._calls)
        # Clients first: their calls end with an error, and nothing is sent while the server answers its last requests.
        await asyncio.gather(self._client.close(), self._forwards.close())
        await self._server.stop()
        await self.access.stop()

    def readdress(self, name: str, address: str) -> None:
        """Connect to a member at another address from now on."""
        self._readdressed[name] = self._addresses[name] = address
        # Another process may answer there, of another version.
        self._binary_peers.discard(name)

    def use_members(self, settings: RaftSettings, now: Configuration, former: dict[str, str]) -> None:
        """Call the members of the configuration in use, and accept connections of their hosts.

        The hosts of dLegerPeers may connect too, unless the log says that a member was removed: a member that copies an early part
        of the log has an early configuration in use, and its leader may have joined later. former: members whose removal is not
        committed.
        """
        self_id = settings.self_id
        # This member itself stays named even if it was removed: it has to reach the group to see that.
        named = {n: address for n, address in settings.peers.items() if n == self_id or n not in now.removed}
        addresses = {**named, **former, **now.addresses}
        self.access.replace_hosts(map(host_of, addresses.values()))
        # A proxy set by a test or an operator keeps its address over changes of members.
        self._addresses = {**addresses, **{n: a for n, a in self._readdressed.items() if n in addresses}}
        self._binary_peers &= self._addresses.keys()
        log.info(
            "members of the group index=%s voters=%s learners=%s member=%s",
            *(now.index, ",".join(now.voters), ",".join(sorted(now.learners)), self_id),
        )
        if now.index >= 0 and set(now.addresses.items()) != set(settings.peers.items()):
            log.warning("dLegerPeers overridden by the log member=%s peers=%s", self_id, now.peers_text)

    # server side

    async def _report_state(self, command: Command, state: Awaitable[bytes]) -> Command:
        return self._signed(command, command.reply(RESPONSE_HEADER_CODE, body=await state))

    def _handle(self, connection: Connection, command: Command) -> Command | Later:
        refusal = self._forbidden(connection.remote_address, command)
        if refusal is not None:
            self._server.rejections.note(
                "dledger", connection.remote_address, f"request code={command.code}: {refusal}"
            )
            return self._signed(command, command.reply(ResponseCode.NO_PERMISSION, refusal))
        if command.code == DLedgerCode.STATE and self.serve_state is not None:
            return Later(self._report_state(command, self.serve_state(self._named(command))))
        if command.code == DLedgerCode.FORWARD and self.serve_forwarded is not None:
            return self._serve_forwarded(connection, command)
        # By the body, not by a flag: old and new forms arrive on the same code.
        is_binary = command.code == DLedgerCode.PUSH and is_plain(command.body)
        try:
            request = decode_push(command.body or b"") if is_binary else self._trusted(command, self._decode(command))
        except UnsupportedRequest as error:
            return self._signed(command, command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, str(error)))
        except BodyError as error:
            return self._signed(command, command.reply(ResponseCode.SYSTEM_ERROR, f"BodyError: {error}"))
        if isinstance(request, AppendRequest) and not self._body_is_good(request.body or b""):
            return command.reply(ResponseCode.SYSTEM_ERROR, "the body is not a message (DL-X17)")
        # Waits for quorum or disk, possibly long: it must not use up the limit of requests in flight.
        later = Later(in_flight=False)

        def answer(response: Response) -> None:
            if is_binary and isinstance(response, PushResponse):
                reply = command.reply(RESPONSE_HEADER_CODE, body=encode_answer(response))
            else:
                # Repeated only if this member supports that form; then the leader uses it.
                ext = dict(_OFFERED) if command.ext.get(OFFER) == _OFFERED[OFFER] else None
                reply = command.reply(RESPONSE_HEADER_CODE, ext=ext, body=encode(response))
            later.answer(self._signed(command, reply))

        if isinstance(request, PushRequest) and (refused := self._damaged(request)) is not None:
            answer(refused)
        else:
            self._receive(request, answer)
        return later

    def _serve_forwarded(self, connection: Connection, command: Command) -> Command | Later:
        assert self.serve_forwarded is not None
        later = Later(in_flight=False)

        def answer(body: bytes) -> None:
            later.answer(self._signed(command, command.reply(RESPONSE_HEADER_CODE, body=body)))

        try:
            self.serve_forwarded(connection, command.body or b"", answer)
        except BodyError as error:
            return self._signed(command, command.reply(ResponseCode.SYSTEM_ERROR, f"BodyError: {error}"))
        return later

    def _named(self, command: Command) -> str:
        """The member whose id is the body of a request; "" if it is none."""
        # Cut before it is decoded: the body is a stranger's until it is checked.
        name = (command.body or b"")[:_MEMBER_BYTES_MAX].decode(errors="replace")
        return name if name in self._addresses else ""

    def _forbidden(self, address: str, command: Command) -> str | None:
        """Why a request of this address is not permitted; None if it is."""
        origin, is_admin_code = self.access.origin(address), command.code in self._admin_codes
        if origin is Origin.STRANGER or (origin is Origin.ADMIN and not is_admin_code):
            where = "dLegerPeers, dledger.allowedAddresses" + (" and adminAddresses" if is_admin_code else "")
            return f"it is accepted from the hosts in {where} only, not from {address}"
        # Its host would get all messages, which need an account there.
        adds_reader = origin is Origin.ADMIN and command.code == DLedgerCode.MEMBERS and not self._reads_are_open
        if self._secret is None:
            return f"{_SIGNED_ONLY}: set it, or send the request from a member's own address" if adds_reader else None
        verdict = self._secret.check(command)
        if verdict is Verdict.UNSIGNED:
            if adds_reader:
                return f"{_SIGNED_ONLY}: the request is not signed"
            # Without its secret an operator's tool may ask for the state, but not change members or leader.
            exempt = is_admin_code and command.code not in _ALWAYS_SIGNED and self.access.is_admin(address)
            if exempt or not self._secret.required:
                return None
            return "dledger.requireClusterSecret=true: the request is not signed"
        if verdict is Verdict.FORGED:
            return "the signature is not made with this member's dledger.clusterSecret"
        return "the signature is for another process or was used before" if verdict is Verdict.STALE else None

    @property
    def _reads_are_open(self) -> bool:
        return DLedgerCode.GET in self._admin_codes

    def _signed(self, request: Command, reply: Command) -> Command:
        if self._secret is not None:
            self._secret.sign_response(request, reply)
        return reply

    def _decode(self, command: Command) -> Request:
        """Decode a JSON request. Raises BodyError, UnsupportedRequest."""
        # Before it is parsed: JSON of 16 MiB would block the event loop.
        limit = _BODY_BYTES_MAX.get(DLedgerCode(command.code)) if command.code in _BODY_BYTES_MAX else None
        if limit is not None and len(command.body or b"") > limit:
            raise BodyError(f"the body has {len(command.body or b'')} bytes, at most {limit} are allowed for this code")
        return decode_request(command.code, command.body)

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
        self._send(peer, request, timeout_ms, answered, again=True)

    def _send(
        self, peer: str, request: Request, timeout_ms: int, answered: Callable[[Response | None], None], *, again: bool
    ) -> None:
        """again: send once more if the peer's process turns out to be another one than the request was signed for."""
        if self._stopped:
            return
        # In the next iteration, as a real answer: the core does not expect a response while it emits actions.
        if peer not in self._addresses:  # a former member
            asyncio.get_running_loop().call_soon(answered, None)
            return
        command = self._command(peer, request)
        # A connected peer costs no task per request.
        future = self._client.ask(self._addresses[peer], command, timeout_ms)
        if future is None:
            work = self._connect_and_call(self._addresses[peer], command, timeout_ms)
            future = task = asyncio.get_running_loop().create_task(work)
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

        def call_ended(future: asyncio.Future[Command]) -> None:
            if future.cancelled():
                return
            if self._stopped:
                future.exception()  # asyncio would report an error that is not read
                return
            response = self._response(peer, command, future)
            # Once: a peer that restarts in a loop must not keep this member sending.
            if response is None and again and self._is_for_another(peer, command):
                self._send(peer, request, timeout_ms, answered, again=False)
            else:
                answered(response)

        future.add_done_callback(call_ended)

    async def _connect_and_call(self, address: str, command: Command, timeout_ms: int) -> Command:
        return await self._client.invoke(address, command, timeout_ms)

    def _is_for_another(self, peer: str, command: Command) -> bool:
        address = self._addresses.get(peer)
        return self._secret is not None and address is not None and self._secret.knows_another(address, command)

    async def ask_state(self, peer: str, timeout_ms: int, self_id: str) -> bytes | None:
        """Result of the peer's `serve_state`; None if it does not know this request, as Java members. Raises SaturnError.

        self_id names this member to the peer.
        """
        address = self._address(peer)
        command = Command(DLedgerCode.STATE, body=self_id.encode())
        reply = await call_signed(self._client, self._secret, address, command, timeout_ms)
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if reply.code == RESPONSE_HEADER_CODE:
            return reply.body or b""
        raise RemoteProtocolError(
            f"member {peer} at {address} refused to report its state: {reply.code} {reply.remark}"
        )

    async def forward(self, peer: str, body: bytes, timeout_ms: int) -> Command:
        """The response of the peer's `serve_forwarded`, or its refusal. Raises SaturnError.

        Calls have a connection of their own. Only NoPermit and ConnectFailed that is not `sent` mean that the
        peer did not get the request.
        """
        command = Command(DLedgerCode.FORWARD, body=body)
        return await call_signed(self._forwards, self._secret, self._address(peer), command, timeout_ms)

    def _address(self, peer: str) -> str:
        """Raises ConnectFailed for a former member."""
        address = self._addresses.get(peer)
        if address is None:
            raise ConnectFailed(f"{peer} is no longer a member of the group")
        return address

    def _command(self, peer: str, request: Request) -> Command:
        """Encode and sign a request in the form that the peer supports; offer the binary form where it may be offered."""
        code, ext = code_of(request), {}
        address = self._addresses[peer]
        if isinstance(request, PushRequest):
            # Only known after an answer with OFFER; COMPARE and the like stay JSON, so that the offer is renewed.
            if peer in self._binary_peers and request.kind is PushKind.APPEND:
                body = encode_push(request)
                if body is not None:
                    return self._sign(address, Command(code, body=body))
            elif request.kind is not PushKind.APPEND:
                ext = dict(_OFFERED)
        return self._sign(address, Command(code, ext=ext, body=encode(request)))

    def _sign(self, address: str, command: Command) -> Command:
        if self._secret is not None:
            self._secret.sign(address, command)
        return command

    def _response(self, peer: str, command: Command, call: asyncio.Future[Command]) -> Response | None:
        """The response of a finished call; None if it failed or the peer refused it."""
        try:
            return self._read(peer, command, call.result())
        except SaturnError as error:
            self._failed(peer, error)
            return None

    def _failed(self, peer: str, error: SaturnError) -> None:
        # After a failed call another version may run there: ask again.
        self._binary_peers.discard(peer)
        log.debug("call failed peer=%s error=%s", peer, error)

    def _read(self, peer: str, command: Command, reply: Command) -> Response | None:
        """Decode a reply and note whether the peer supports the binary form. Raises BodyError."""
        address = self._addresses.get(peer)
        if self._secret is not None and not (address and self._secret.check_response(address, command, reply)):
            log.warning("response not authentic peer=%s code=%s", peer, command.code)
            return None
        if reply.code != RESPONSE_HEADER_CODE:
            self._binary_peers.discard(peer)
            log.debug("call refused peer=%s code=%s remark=%s", peer, reply.code, reply.remark)
            return None
        if is_plain(command.body):
            return decode_answer(reply.body or b"")
        if OFFER in command.ext:
            supports_binary = reply.ext.get(OFFER) == _OFFERED[OFFER]
            (self._binary_peers.add if supports_binary else self._binary_peers.discard)(peer)
        return self._trusted(reply, decode_response(command.code, reply.body))

    def _trusted(self, command: Command, message: M) -> M:
        """The message of a checked command; where there is a secret, an unsigned heartbeat announces no interval."""
        if (
            self._secret is None
            or FIELD in command.ext
            or not isinstance(message, HeartBeatRequest | HeartBeatResponse)
        ):
            return message
        return dataclasses.replace(message, interval_ms=None, changes=None)
