"""Calls to peers: signs them, and turns what goes wrong into this room's errors.

The only user of `saturnmq.net` here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from saturnmq.client.errors import CallTimeout, ConnectFailed
from saturnmq.client.signing import Signer
from saturnmq.net import Connection, NetSettings, RemotingClient
from saturnmq.protocol.command import Command

Handler = Callable[[Connection, Command], Command | Awaitable[Command | None] | None]


class Remote:
    """One RemotingClient: one connection per address (API-05)."""

    def __init__(self, *, tls: bool, signer: Signer | None, handler: Handler) -> None:
        self._signer = signer
        self._client = RemotingClient(settings=NetSettings(), handler=handler)

    def is_connected(self, address: str) -> bool:
        return self._client.is_connected(address)

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """The answer, whatever its code. Raises ConnectFailed or CallTimeout."""
        if self._signer is not None:
            self._signer.sign(command)
        try:
            return await self._client.invoke(address, command, timeout_ms)
        except TimeoutError as error:
            raise CallTimeout(f"{address} did not answer within {timeout_ms} ms", broker=address) from error
        except OSError as error:
            raise ConnectFailed(f"cannot reach {address}: {error}", reason=str(error), broker=address) from error

    async def call_oneway(self, address: str, command: Command, timeout_ms: int) -> None:
        """Write a request that gets no answer. Raises ConnectFailed or CallTimeout."""
        if self._signer is not None:
            self._signer.sign(command)
        try:
            await self._client.invoke_oneway(address, command, timeout_ms)
        except TimeoutError as error:
            raise CallTimeout(f"{address} did not take the request in {timeout_ms} ms", broker=address) from error
        except OSError as error:
            raise ConnectFailed(f"cannot reach {address}: {error}", reason=str(error), broker=address) from error

    async def close(self) -> None:
        await self._client.close()
