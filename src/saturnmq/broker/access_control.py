"""Access control of a broker: every request of both ports passes the validators before its handler.

A body that is too long for its request code is refused first, because a signature takes time in proportion to the body. The
caller's name is left in `connection.attributes[CALLER]` while the handler runs, for the audit log.

Plain requests are allowed without a decision of their own while the one of an equal request of their connection holds (`Grants`).

Requirements: ACL-01, ACL-02, ACL-08, ACL-14, LIM-03.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from saturnmq.acl.accounts import PUB, SUB, group_resource, shown_resource
from saturnmq.acl.addresses import parse_list
from saturnmq.acl.rules import WHITE_LIST, Access, AccessDenied, AccessRules
from saturnmq.broker.requests.rights import Rights
from saturnmq.broker.requests.table import TABLE
from saturnmq.broker.requests.table_row import BODY_BYTES_MAX, CALLER
from saturnmq.broker.settings import BrokerSettings
from saturnmq.config.settings import to_properties
from saturnmq.net import Connection, Reply
from saturnmq.net.connection import Handler
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.codes import TRACE_TOPIC, RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError, ResponseError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.signatures import V1Key, is_v2
from saturnmq.server_admin import Administration
from saturnmq.store import MessageStore

if TYPE_CHECKING:  # a broker without access control runs without these and without yaml
    from saturnmq.acl.plain import AccessValidator, PlainValidator

log = logging.getLogger(__name__)

_HOST: Final = "acl_host"
_GRANTS: Final = "acl_grants"
_GRANTS_MAX: Final = 256  # of a connection
# The fields with the resources of requests that compiled code takes: topic and group.
PLAIN_RESOURCES: Final[dict[int, tuple[str, str]]] = {
    RequestCode.SEND_MESSAGE: ("topic", ""),
    RequestCode.SEND_MESSAGE_V2: ("b", ""),
    RequestCode.SEND_BATCH_MESSAGE: ("b", ""),
    RequestCode.PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: ("topic", "consumerGroup"),
}
_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_REPLIES: Final = frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})
# A reply that is not stored may be as long as clients send, whatever maxMessageSize is.
_REPLY_BYTES: Final = 4 * 1024 * 1024


def _plain_validator(settings: BrokerSettings, root: Path, clock_ms: Callable[[], int]) -> PlainValidator:
    """The validator for account files. root: the home folder without rocketmqHome and ROCKETMQ_HOME. Raises ConfigError."""
    from saturnmq.acl.files import home_folder
    from saturnmq.acl.plain import PlainValidator

    return PlainValidator(
        home_folder(settings.acl_home, root),
        settings.acl_file,
        compat=settings.acl_compat,
        plain_admin=parse_list(settings.acl_plain_admin_addresses),
        trace_bytes_per_second=settings.acl_trace_bytes,
        clock_ms=clock_ms,
    )


def _other_validator(name: str, settings: BrokerSettings) -> AccessValidator:
    from importlib.metadata import entry_points

    from saturnmq.acl.plain import ENTRY_POINTS, PLAIN

    matching_points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
    if not matching_points:
        installed_names = sorted({PLAIN, *(point.name for point in entry_points(group=ENTRY_POINTS))})
        raise ConfigError(
            f"aclValidators={name}: no such validator is installed, known are {', '.join(installed_names)}"
        )
    validator: AccessValidator = matching_points[0].load()(to_properties(settings))
    return validator


class SignedHeader(Protocol):
    """What is used of `hot.header.HeaderReader`."""

    code: int

    @property
    def access_key(self) -> str: ...
    @property
    def signature(self) -> bytes: ...
    def signed_data(self, body: bytes) -> bytes: ...


Granted = tuple[AccessRules, dict[tuple[str, int, str, str], V1Key]]  # by account, request code, topic and group


class Grants:
    """What connections were allowed to do with a signature of version 1, as long as the rules are the same.

    An account's next request of the same connection, code, topic and group needs no decision: only its signature is verified. All
    else that a decision depends on is in the rules, of which every change makes another object, or is the connection's.
    """

    def __init__(self, validator: PlainValidator) -> None:
        self._validator = validator

    def note(self, connection: Connection, request: Command, caller: str) -> None:
        """Remember a request that was allowed, unless it was for another reason than its account's rights."""
        names = PLAIN_RESOURCES.get(request.code)
        if names is None or caller == WHITE_LIST or is_v2(request):
            return
        rules = self._validator.rules
        topic, group = (request.ext.get(name, "") for name in names)
        granted = cast("Granted | None", connection.attributes.get(_GRANTS))
        if granted is None or granted[0] is not rules or len(granted[1]) >= _GRANTS_MAX:
            granted = connection.attributes[_GRANTS] = (rules, {})
        if topic != TRACE_TOPIC:  # it may have been the quota
            granted[1][caller, request.code, topic, group] = V1Key(rules.accounts[caller].secret)

    def admits(self, connection: Connection, header: SignedHeader, body: bytes, topic: str, group: str) -> bool:
        """Whether a request is allowed as one before; if so, its account is the connection's caller."""
        granted = cast("Granted | None", connection.attributes.get(_GRANTS))
        if granted is None or granted[0] is not self._validator.rules:
            return False
        caller = header.access_key
        key = granted[1].get((caller, header.code, topic, group))
        if key is None or not key.fits(header.signed_data(body), header.signature):
            return False
        connection.attributes[CALLER] = caller
        return True


class AccessControl:
    """The validators of one broker; none run unless aclEnable is set. root: the home folder without rocketmqHome.

    Raises ConfigError when a validator cannot be created.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        rejections: Rejections,
        administration: Administration,
        clock_ms: Callable[[], int],
        root: Path,
    ) -> None:
        self.enabled = settings.acl_enable
        self.plain_validator: PlainValidator | None = None
        self.grants: Grants | None = None  # only if accounts of files decide about all requests
        self._validators: list[AccessValidator] = []
        self._store = store
        self._rights = Rights(store, settings.cluster_name, compat=settings.acl_compat)
        self._rejections = rejections
        self._administration = administration
        if not self.enabled:
            return
        from saturnmq.acl.plain import PLAIN

        for name in settings.acl_validators.split(","):
            if name.strip() == PLAIN:
                self.plain_validator = _plain_validator(settings, root, clock_ms)
                self._validators.append(self.plain_validator)
            elif name.strip():
                self._validators.append(_other_validator(name.strip(), settings))
        if self.plain_validator is not None and len(self._validators) == 1:
            self.grants = Grants(self.plain_validator)

    @property
    def admits(self) -> Callable[..., bool] | None:
        """What decides about plain requests; None if all of them are allowed. See `allows_plain`."""
        return self.grants.admits if self.grants is not None else None

    @property
    def allows_plain(self) -> bool:
        """Whether requests may be taken before they are decoded."""
        return self.grants is not None or not self.enabled

    async def load(self) -> None:
        """Read the account files. Raises ConfigError with all problems."""
        if self.plain_validator is not None:
            await self.plain_validator.load()

    async def reload(self) -> None:
        """Read the account files that changed."""
        if self.plain_validator is not None:
            await self.plain_validator.reload()

    def may_send(self, connection: Connection, topic: str) -> bool:
        """Whether the account that used a connection last may send to a topic; True without account files."""
        return not self.enabled or self._may(connection.attributes.get(CALLER), topic, PUB)

    def check_pull(self, caller: object, topic: str, group: str) -> None:
        """Raise AccessDenied if an account may not pull any more what it was allowed to pull when it asked."""
        for resource in (topic, group_resource(group)):
            if not self._may(caller, resource, SUB):
                raise AccessDenied(f"No default permission for {shown_resource(resource)}", "default")

    def _may(self, caller: object, resource: str, right: int) -> bool:
        """Whether an account has a right now; True if the callers are not accounts of the files."""
        if self.plain_validator is None or self._validators[0] is not self.plain_validator:
            return True
        return self.plain_validator.may(str(caller), resource, right)

    def wrap(self, handler: Handler) -> Handler:
        """The handler behind the validators."""

        def checked(connection: Connection, request: Command) -> Reply:
            connection.attributes[CALLER] = caller = self._check(connection, request)
            if not connection.signed and caller != WHITE_LIST:
                connection.mark_signed()
            if self.grants is not None:
                self.grants.note(connection, request, caller)
            return handler(connection, request)

        return checked

    def _check(self, connection: Connection, request: Command) -> str:
        """The name of the caller, as the first validator gives it. Raises ResponseError when the request is refused."""
        host = connection.attributes.get(_HOST)
        if host is None:
            host = connection.attributes[_HOST] = host_of(connection.remote_address)
        access = Access(request, str(host), connection.encrypted, self._rights.required)
        try:
            self._check_size(request)
            callers = [validator.validate(access) for validator in self._validators]
        except ResponseError as error:
            route = TABLE.get(request.code)
            if route is not None and route.administrative:
                account = error.account if isinstance(error, AccessDenied) else None
                self._administration.write_refusal(connection.remote_address, request, error.remark, account)
            self._rejections.note("acl", connection.remote_address, f"code={request.code} {error.remark!r:.300}")
            raise
        return callers[0]

    def _check_size(self, request: Command) -> None:
        """Raise ResponseError for a body that no handler would accept."""
        size, code = len(request.body or b""), request.code
        if size <= BODY_BYTES_MAX and code not in _SENDS:
            return
        most, refusal = self._body_max(code), ResponseCode.SYSTEM_ERROR
        if code in _SENDS or code in _REPLIES:
            refusal = ResponseCode.MESSAGE_ILLEGAL
        if size > most:
            raise response_error(refusal, f"a body of {size} bytes is too long for request code={code}, at most {most}")

    def _body_max(self, code: int) -> int:
        if code in _SENDS:
            return self._store.settings.message_bytes_max
        if code in _REPLIES:
            return max(self._store.settings.message_bytes_max, _REPLY_BYTES)
        route = TABLE.get(code)
        return route.body_max if route is not None else BODY_BYTES_MAX
