"""Calls to peers: signs requests and reports peers that fail.

The only module that opens connections; others use a `Connection` of `saturnmq.net` only to answer requests that brokers push.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from saturnmq.client.connection import forks
from saturnmq.client.connection.access import ClusterAccess
from saturnmq.client.connection.route_suspicion import is_no_master
from saturnmq.errors import CallTimeout, ConnectFailed
from saturnmq.net import Connection, NetSettings, RemotingClient
from saturnmq.net.connection import Handler
from saturnmq.net.reconnection import Losses
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import BodyError, SaturnError
from saturnmq.protocol.frames.command import Command

SHORT_BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # of answers without messages; parsed JSON takes many times its size
_CODES_OF_MESSAGES: Final = frozenset(
    {RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}
)


class Remote:
    """Wraps one RemotingClient, which has one connection per address (API-05).

    on_failure is called with the address of a peer that failed or whose response says that it is not the master, and with whether
    it did not respond in time. on_closed is called after a connection was closed.
    """

    def __init__(
        self,
        access: ClusterAccess,
        handler: Handler,
        on_failure: Callable[[str, bool], None] = lambda address, unresponsive: None,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._signer = access.signer
        self._client = RemotingClient(
            settings=NetSettings(), tls=access.tls_settings, handler=handler, listener=Losses(on_closed)
        )
        self._on_failure = on_failure
        self.generation = forks.watch(self)

    def sockets(self) -> list[int]:
        """File descriptors of all connections."""
        transports = [connection.transport for connection in self._client.connections]
        sockets = [transport.get_extra_info("socket") for transport in transports if transport is not None]
        return [number for sock in sockets if sock is not None and (number := sock.fileno()) >= 0]

    def is_connected(self, address: str) -> bool:
        return self.generation == forks.generation and self._client.is_connected(address)

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """The response, whatever its code. Raises ConnectFailed, CallTimeout, or BodyError for a body beyond all need."""
        if self._signer is not None:
            self._signer.sign(command)
        try:
            answer = await self._client.invoke(address, command, timeout_ms)
        except (CallTimeout, ConnectFailed) as error:
            error.broker = address  # as the route names it
            self._on_failure(address, isinstance(error, CallTimeout))
            raise
        if is_no_master(command, answer):
            self._on_failure(address, False)
        body = answer.body
        # Parsed JSON takes many times its size; answers with messages are limited by the frame.
        if body is not None and len(body) > SHORT_BODY_BYTES_MAX and command.code not in _CODES_OF_MESSAGES:
            raise BodyError(
                f"the answer of {address} to request {command.code} has {len(body)} bytes, at most "
                f"{SHORT_BODY_BYTES_MAX} are allowed"
            )
        return answer

    async def call_all(self, address: str, commands: Sequence[Command], timeout_ms: int) -> list[Command | SaturnError]:
        """The outcomes of requests that are written together, in order: each a response, CallTimeout or ConnectFailed."""
        if self._signer is not None:
            for command in commands:
                self._signer.sign(command)
        outcomes: list[Command | SaturnError]
        try:
            outcomes = await self._client.invoke_all(address, commands, timeout_ms)
        except (CallTimeout, ConnectFailed) as error:
            outcomes = [error] * len(commands)
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(outcome, CallTimeout | ConnectFailed):
                outcome.broker = address
                self._on_failure(address, isinstance(outcome, CallTimeout))
                # One report per window: the other calls failed for the same reason.
                break
            if isinstance(outcome, Command) and is_no_master(command, outcome):
                self._on_failure(address, False)
                break
        return outcomes

    async def call_oneway(self, address: str, command: Command, timeout_ms: int) -> None:
        """Write a one-way request. Raises ConnectFailed or CallTimeout."""
        if self._signer is not None:
            self._signer.sign(command)
        try:
            await self._client.invoke_oneway(address, command, timeout_ms)
        except (CallTimeout, ConnectFailed) as error:
            error.broker = address
            # A one-way request that was written late says nothing about the broker.
            if isinstance(error, ConnectFailed):
                self._on_failure(address, False)
            raise

    def answer_oneway(self, connection: Connection, command: Command) -> None:
        """Write a one-way request on the connection of a peer's request. Raises ConnectFailed."""
        if self._signer is not None:
            self._signer.sign(command)
        connection.invoke_oneway(command)

    def drop(self, address: str, reason: str) -> None:
        """Close the connection to a peer that was replaced; pending calls to it fail with ConnectFailed."""
        self._client.drop(address, reason)

    async def close(self) -> None:
        await self._client.close()
