"""What a row of the request table says about a code: handler, ports, roles, effect, permissions and limits.

Requirements: REM-28, DL-X08, ACL-05, ACL-09, ACL-10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from saturnmq.net import Later
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.frames.header_templates import CHANGING

Answer = Command | bytes | Later | Awaitable[Command] | None
Handler = Callable[..., Answer]

BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # far above the largest list of queues or subscriptions


class Ports(Enum):
    """Listen ports on which a code is served."""

    BOTH = "both"
    MAIN = "main"  # not on the fast port (REM-28)


class Roles(Enum):
    """Roles of a DLedger group member in which it serves a code. A broker without a group serves all."""

    ANY = "any"
    LEADER = "leader"
    READER = "reader"  # the leader, and followers with slaveReadEnable=true


class Effect(Enum):
    """Whether a request changes state of the broker."""

    READ = "read"
    CHANGE = "change"


class Right(Enum):
    """Permission of an account (ACL-05, ACL-09)."""

    PUB = "PUB"
    SUB = "SUB"
    ADMIN = "admin"


class Resource(Enum):
    """Kind of resource that a permission is granted on."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Need(NamedTuple):
    """One permission that a request needs.

    field: the extField that names the resource; empty if the body or the configuration does. retry_group: for a retry topic, SUB
    on the group in this field is needed instead, and nothing if the request does not have the field.
    """

    right: Right
    resource: Resource
    field: str = ""
    retry_group: str = ""


class Route(NamedTuple):
    """One request code.

    header None: the handler reads extFields itself, for speed, and checks the size of the body. needs: the permissions that 4.9.7
    checks; without any, a valid signature is enough. body_max: bytes.
    """

    code: RequestCode
    header: type[Any] | None
    handler: Handler
    effect: Effect = Effect.READ
    roles: Roles = Roles.ANY
    needs: tuple[Need, ...] = ()
    ports: Ports = Ports.BOTH
    body_max: int = BODY_BYTES_MAX

    @property
    def template(self) -> bool:
        """Whether repeated headers of this code are read through a header template (fast path)."""
        return self.code in CHANGING
