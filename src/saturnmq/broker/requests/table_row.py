"""A row of the request table: a code's handler, ports, roles, effect, permissions and limits.

Requirements: REM-28, DL-X08, ACL-05, ACL-09, ACL-10, SEC-12.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from saturnmq.net import Reply
from saturnmq.protocol.bodies import Body
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command

HandlerResult = Reply | Awaitable[Reply]  # a coroutine only of a handler that gets the decoded header
Handler = Callable[..., HandlerResult]

CALLER: Final = "caller"  # in attributes of a connection: the account that its current request is of
BODY_BYTES_MAX: Final = 65_536  # of requests whose body no handler reads, or that hold one small object
LIST_BYTES_MAX: Final = 1024 * 1024  # of requests with a list: thousands of subscriptions or queues
BODY_BUDGET: Final = 30_000  # work of reading one JSON body (json_dialect.loads), 20 to 40 ms

B = TypeVar("B", bound=Body)


def decode_body(kind: type[B], request: Command) -> B:
    """The JSON body of a request. Raises BodyError, also for one that would take the event loop too long to read."""
    return kind.decode(request.body, budget=BODY_BUDGET)


class Ports(Enum):
    """Listen ports on which a code is served."""

    MAIN_AND_FAST = "both"
    MAIN = "main"  # not on the fast port (REM-28)


class Roles(Enum):
    """Roles of a DLedger group member in which it serves a code. A broker without a group serves all."""

    ANY = "any"
    LEADER = "leader"
    READER = "reader"  # the leader, and followers with slaveReadEnable=true
    ENDS = "ends"  # as READER: shows where queues begin or end, which on a follower may be before what the leader has shown
    LEADER_FIRST = (
        "leader first"  # any, but only the leader's state is current: a follower asks it first (forwardToLeader)
    )


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
    MESSAGE = "message"  # the topic of the message at a physical offset, or with an id
    CLUSTER = "cluster"
    LISTING = "listing"  # everything of a kind: read by administrators under access control, by all without it


class Need(NamedTuple):
    """One permission that a request needs.

    field: the extField that names the resource; empty if the body does. PUB on a retry topic is SUB on its group; retry_group: the
    group is that in this field, as 4.9.7 reads it, and nothing is needed if the request does not have the field.
    """

    right: Right
    resource: Resource
    field: str = ""
    retry_group: str = ""


class CodeRoute(NamedTuple):
    """Route of one request code.

    header None: the handler reads extFields itself, for speed, and checks the size of the body. needs: the permissions that a
    request needs; without any, a valid signature is enough. Without access control an `administrative` code is served from
    adminAddresses only. body_max: bytes.
    """

    code: RequestCode
    header: type[Any] | None
    handler: Handler
    effect: Effect = Effect.READ
    roles: Roles = Roles.ANY
    needs: tuple[Need, ...] = ()
    ports: Ports = Ports.MAIN_AND_FAST
    body_max: int = BODY_BYTES_MAX

    @property
    def administrative(self) -> bool:
        """Whether the request needs the right ADMIN for more than reading a listing (SEC-12)."""
        return any(need.right is Right.ADMIN and need.resource is not Resource.LISTING for need in self.needs)
