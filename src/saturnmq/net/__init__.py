"""Remoting transport: asyncio server and client with limits, pipelining and TLS detection by the first byte.

Decodes frames and headers, but no bodies, and knows no request codes.
"""

from saturnmq.errors import CallTimeout, ConnectFailed, StartError, TooManyRequests
from saturnmq.net.client import RemotingClient
from saturnmq.net.connection import Connection, Handler
from saturnmq.net.endpoint import BaseConnectionListener, ConnectionListener
from saturnmq.net.later import NO_RESPONSE, Later, Reply, reply_of
from saturnmq.net.requests import RpcHook
from saturnmq.net.server import CHOSEN_BY, RemotingServer
from saturnmq.net.settings import NetSettings
from saturnmq.net.tls import TlsMode, TlsSettings

__all__ = [
    "CHOSEN_BY",
    "NO_RESPONSE",
    "BaseConnectionListener",
    "CallTimeout",
    "ConnectFailed",
    "Connection",
    "ConnectionListener",
    "Handler",
    "Later",
    "NetSettings",
    "RemotingClient",
    "RemotingServer",
    "Reply",
    "RpcHook",
    "StartError",
    "TlsMode",
    "TlsSettings",
    "TooManyRequests",
    "reply_of",
]
