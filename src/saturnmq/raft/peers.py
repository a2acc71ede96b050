"""The member's port, and its calls to the others: DLedger's commands over the broker's framing. Source: spec 04 section 4, DL-M06.

A body that does not parse is answered like a failure of the original's remoting (1), an unknown request code with 3.
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
from saturnmq.protocol.command import Command
from saturnmq.protocol.errors import BodyError, SaturnError
from saturnmq.raft.core.messages import AppendRequest, HeartBeatRequest, PushRequest, Request, Response, VoteRequest
from saturnmq.raft.wire import (
    RESPONSE_HEADER_CODE,
    UnsupportedRequest,
    code_of,
    decode_request,
    decode_response,
    encode,
)

log = logging.getLogger(__name__)

Answer = Callable[[Response], None]
Ask = Callable[[Request, Answer], None]


class Peers:
    """ask(request, answer) is called for each request that came; answer may be called at once or later, once."""

    def __init__(
        self,
        addresses: Mapping[str, str],
        net: NetSettings,
        ask: Ask,
        *,
        may_append: Callable[[bytes], bool] = bool,
        allowed: frozenset[str] = frozenset(),
    ) -> None:
        self._allowed = allowed
        self._addresses = dict(addresses)
        self._ask = ask
        self._may_append = may_append
        self._server = RemotingServer(self._handle, settings=net)
        self._client = RemotingClient(settings=net)
        self._calls: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the bound address. Raises StartError."""
        return await self._server.start(host, port)

    async def stop(self) -> None:
        for call in list(self._calls):
            call.cancel()
        if self._calls:
            await asyncio.gather(*self._calls, return_exceptions=True)
        await self._client.close()
        await self._server.stop()

    def readdress(self, name: str, address: str) -> None:
        """Reach a member at another address from now on."""
        self._addresses[name] = address

    # others ask

    def _handle(self, connection: Connection, command: Command) -> Command | None:
        try:
            request = decode_request(command.code, command.body)
        except UnsupportedRequest as error:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, str(error))
        except BodyError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"BodyError: {error}")
        if self._allowed and isinstance(request, VoteRequest | HeartBeatRequest | PushRequest):
            address = connection.remote_address.rpartition(":")[0].strip("[]")
            if address not in self._allowed:
                log.warning("peer=%s is not among dledger.allowedAddresses", connection.remote_address)
                return command.reply(
                    ResponseCode.SYSTEM_ERROR, f"{address} is not among dledger.allowedAddresses (DL-X17)"
                )
        if isinstance(request, AppendRequest) and not self._may_append(request.body or b""):
            return command.reply(ResponseCode.SYSTEM_ERROR, "the body is not a message (DL-X17)")

        def answer(response: Response) -> None:
            if not connection.closed and not command.is_oneway:
                connection.send(command.reply(RESPONSE_HEADER_CODE, body=encode(response)))

        self._ask(request, answer)
        return None

    # this member asks

    def send(self, peer: str, request: Request, timeout_ms: int, answered: Callable[[Response | None], None]) -> None:
        """Ask a member; answered is called once, with None when there is no answer."""
        task = asyncio.get_running_loop().create_task(self._call(peer, request, timeout_ms, answered))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(
        self, peer: str, request: Request, timeout_ms: int, answered: Callable[[Response | None], None]
    ) -> None:
        response: Response | None = None
        try:
            code = code_of(request)
            command = Command(code, body=encode(request))
            reply = await self._client.invoke(self._addresses[peer], command, timeout_ms)
            if reply.code == RESPONSE_HEADER_CODE:
                response = decode_response(code, reply.body)
            else:
                log.debug("peer=%s code=%s refused the call: %s", peer, reply.code, reply.remark)
        except SaturnError as error:
            log.debug("peer=%s call failed: %s", peer, error)
        answered(response)
