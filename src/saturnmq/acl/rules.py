"""The decision about one request: the checks of 4.9.7 in their order, and the stricter ones of SaturnMQ. Pure.

`AccessRules` is an immutable snapshot of all accounts; `Decisions` adds what lasts longer than a snapshot: the signatures of
version 2 that were seen, and the quota of the trace topic. Both are used on the event loop only.

With compat=False (the default of a broker), white lists grant nothing: an account's list restricts from where it may be used,
and the global list lets its addresses read topics, groups and offsets (codes 21, 43, 45, 201) without a signature. An
administrative change signed with version 1 is accepted over TLS or from `plain_admin` only, because such a signature
can be re-used. With compat=True the checks are those of 4.9.7.

Requirements: ACL-06, ACL-08..ACL-13, ACL-21, SEC-08..SEC-11, SEC-14.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Final, NamedTuple

from saturnmq.acl.accounts import PUB, Account, shown_resource
from saturnmq.acl.addresses import AddressList
from saturnmq.protocol.codes import FORBIDDEN_SEND_TOPICS, TRACE_TOPIC, RequestCode, ResponseCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.signatures import ACCESS_KEY, SIGNATURE, SIGNATURE_TIME, WINDOW_MS, is_v2, verify

UNSIGNED_CODES: Final = frozenset(
    {
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    }
)
SEEN_BYTES_MAX: Final = 10 * 1024 * 1024  # for signatures of version 2, remembered against repetition: about a million
SLOT_MS: Final = 10_000
RELOAD_SECONDS: Final = 5.0  # between two checks whether an account file changed
SLOT_ENTRIES: Final = 8192
WHITE_LIST: Final = "white list"  # the caller of a request that needed no account

_HASH_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_ENTRY_BYTES: Final = 9
_SLOT_BYTES: Final = 200
_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
_MANAGER: Final = "org.apache.rocketmq.acl.plain.PlainPermissionManager"
_FRAMES: Final = {  # the stack frame that 4.9.7 appends to each of its texts
    "No accessKey": f"{_MANAGER}.validate(PlainPermissionManager.java:663)",
    "No acl config": f"{_MANAGER}.validate(PlainPermissionManager.java:667)",
    "Check signature": f"{_MANAGER}.validate(PlainPermissionManager.java:683)",
    "Need admin": f"{_MANAGER}.checkPerm(PlainPermissionManager.java:580)",
    "default": f"{_MANAGER}.checkPerm(PlainPermissionManager.java:605)",
    "own": f"{_MANAGER}.checkPerm(PlainPermissionManager.java:610)",
    "parse": "org.apache.rocketmq.acl.plain.PlainAccessValidator.parse(PlainAccessValidator.java:134)",
}
_DEFAULT_FRAME: Final = "saturnmq.acl"
_SHOWN_LENGTH_MAX: Final = 255
_TIME_DIGITS_MAX: Final = 15
_SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)  # not replies, which the broker passes on to a client


class AccessDenied(ResponseError):
    """A request that access control refuses. text: the reason; remark: as 4.9.7 words it.

    account: the access key whose signature was verified, if it is a right that is missing.
    """

    account: str | None = None
    response_code = ResponseCode.SYSTEM_ERROR

    def __init__(self, text: str, frame: str = "") -> None:
        self.text = text
        super().__init__(f"{_EXCEPTION}: {text}, {_FRAMES.get(frame, _DEFAULT_FRAME)}")


class RequiredRights(NamedTuple):
    """The rights that a request needs: the flag admin, and (resource, PUB or SUB) pairs in the order of the checks.

    changes: whether it changes state of the server.
    """

    admin: bool = False
    resources: tuple[tuple[str, int], ...] = ()
    changes: bool = False


@dataclass(slots=True)
class Access:
    """One request to decide about. host: the peer's address without port. encrypted: whether its connection uses TLS.

    wanted: what a request needs; it is called after the signature is verified, because it may decode the body.
    """

    command: Command
    host: str
    encrypted: bool
    wanted: Callable[[Command], RequiredRights]


def _shown(access_key: str) -> str:
    return access_key if len(access_key) <= _SHOWN_LENGTH_MAX else access_key[:_SHOWN_LENGTH_MAX] + "..."


class Slot:
    """A sorted set of 64-bit hashes: arrays of at most SLOT_ENTRIES in sequence, so that an insertion moves few bytes."""

    __slots__ = ("_arrays", "_count")

    def __init__(self) -> None:
        self._arrays = [array("Q")]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def longest(self) -> int:
        """Entries of the longest array."""
        return max(map(len, self._arrays))

    def add(self, entry: int) -> bool:
        """Add a hash; return False if the slot has it already."""
        number = bisect_right(self._arrays, entry, lo=1, key=itemgetter(0)) - 1
        array = self._arrays[number]
        at = bisect_left(array, entry)
        if at < len(array) and array[at] == entry:
            return False
        array.insert(at, entry)
        self._count += 1
        if len(array) > SLOT_ENTRIES:
            half = len(array) // 2
            self._arrays.insert(number + 1, array[half:])
            del array[half:]
        return True


class ReplayCache:
    """Signatures of one account that were accepted, until their time leaves the window.

    Slots of consecutive times. A new one begins SLOT_MS after the last one, or when that has SLOT_ENTRIES and the time goes on;
    signatures of one time share a slot. Nothing as old as a dropped slot is accepted any more.
    """

    __slots__ = ("_floor_ms", "_latest_ms", "_slots", "_starts", "bytes")

    def __init__(self) -> None:
        self._starts: list[int] = []  # Unix ms; a slot ends where the next one begins
        self._slots: list[Slot] = []
        self._latest_ms = -1
        self._floor_ms = -1
        self.bytes = 0  # of memory, estimated

    def __len__(self) -> int:
        return sum(map(len, self._slots))

    def add(self, signature: str, time_ms: int, now_ms: int) -> bool:
        """Remember a signature; return False if it was used before, or is too old to know."""
        if time_ms <= self._floor_ms:
            return False
        if not self._slot(time_ms, now_ms).add(hash(signature) & _HASH_MASK):
            return False
        self.bytes += _ENTRY_BYTES
        return True

    def _slot(self, time_ms: int, now_ms: int) -> Slot:
        """The slot that covers a time, which is created if there is none."""
        at, last = bisect_right(self._starts, time_ms) - 1, len(self._starts) - 1
        if at == last:
            later, self._latest_ms = time_ms > self._latest_ms, max(time_ms, self._latest_ms)
            if last < 0 or (later and (time_ms >= self._starts[at] + SLOT_MS or len(self._slots[at]) >= SLOT_ENTRIES)):
                self.expire(now_ms)
                return self._insert(len(self._starts), time_ms)
        elif at < 0:
            return self._insert(0, time_ms - time_ms % SLOT_MS)
        return self._slots[at]

    @property
    def longest(self) -> int:
        """Entries of the longest array, which an insertion may move."""
        return max((slot.longest for slot in self._slots), default=0)

    def _insert(self, at: int, start_ms: int) -> Slot:
        slot = Slot()
        self._starts.insert(at, start_ms)
        self._slots.insert(at, slot)
        self.bytes += _SLOT_BYTES
        return slot

    def expire(self, now_ms: int) -> None:
        """Drop the slots that are older than the window."""
        oldest = now_ms - WINDOW_MS
        while self._starts and (self._starts[1] if len(self._starts) > 1 else self._latest_ms + 1) <= oldest:
            self.forget_oldest()

    def forget_oldest(self) -> bool:
        """Drop the slot of the oldest signatures; False if there is none."""
        if not self._starts:
            return False
        del self._starts[0]
        self.bytes -= _SLOT_BYTES + _ENTRY_BYTES * len(self._slots.pop(0))
        self._floor_ms = self._starts[0] - 1 if self._starts else self._latest_ms
        return True


class SeenSignatures:
    """The signatures of all accounts. Of too many, the account with the most forgets its oldest ones (`forget_oldest`)."""

    __slots__ = ("_by_account", "_bytes_max", "bytes")

    def __init__(self, bytes_max: int = SEEN_BYTES_MAX) -> None:
        self._by_account: dict[str, ReplayCache] = {}
        self._bytes_max = bytes_max
        self.bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_account.values()))

    def add(self, access_key: str, signature: str, time_ms: int, now_ms: int) -> bool:
        """Remember a signature; return False if it was used before, or is too old to know."""
        cache = self._by_account.get(access_key)
        if cache is None:
            cache = self._by_account[access_key] = ReplayCache()
        before = cache.bytes
        added = cache.add(signature, time_ms, now_ms)
        self.bytes += cache.bytes - before
        if self.bytes > self._bytes_max:
            self._shrink(now_ms)
        return added

    def _shrink(self, now_ms: int) -> None:
        """Free a sixteenth of the memory, so that this is rare; what has expired goes first."""
        for cache in self._by_account.values():
            cache.expire(now_ms)
        self.bytes = sum(cache.bytes for cache in self._by_account.values())
        largest = [(-cache.bytes, key) for key, cache in self._by_account.items()]
        heapify(largest)
        while largest and self.bytes > self._bytes_max - self._bytes_max // 16:
            size, key = heappop(largest)
            cache = self._by_account[key]
            if cache.forget_oldest():
                self.bytes += size + cache.bytes
                heappush(largest, (-cache.bytes, key))


class Quota:
    """Bytes per second that each account may use; up to BURST_SECONDS are saved. 0: no bytes."""

    __slots__ = ("_remaining_bytes", "bytes_per_second")

    BURST_SECONDS: Final = 10

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._remaining_bytes: dict[str, tuple[float, int]] = {}  # bytes left and the time of the last use, by account

    def take(self, access_key: str, size: int, now_ms: int) -> bool:
        """Use bytes of the quota; False if not enough are left."""
        most = self.bytes_per_second * self.BURST_SECONDS
        remaining_bytes, since = self._remaining_bytes.get(access_key, (most, now_ms))
        remaining_bytes = min(most, remaining_bytes + self.bytes_per_second * max(0, now_ms - since) / 1000)
        enough = remaining_bytes >= size
        self._remaining_bytes[access_key] = (remaining_bytes - size if enough else remaining_bytes, now_ms)
        return enough


@dataclass(frozen=True, slots=True)
class AccessRules:
    """All accounts by access key, and the global white list."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    white: AddressList = field(default_factory=AddressList)


class Decisions:
    """Decides about requests. Signatures made before start_ms are refused, as those seen by a former process are not known."""

    def __init__(
        self,
        *,
        compat: bool,
        plain_admin: AddressList,
        trace_bytes_per_second: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self.rules = AccessRules()
        self.compat = compat
        self._plain_admin = plain_admin
        self._clock_ms = clock_ms
        self._trace = Quota(trace_bytes_per_second)
        self._seen_signatures = SeenSignatures()
        self._start_ms = clock_ms()

    def decide(self, access: Access) -> str:
        """Return the access key of the caller, or WHITE_LIST if none was needed. Raises AccessDenied, ResponseError."""
        rules, command = self.rules, access.command
        access_key = command.ext.get(ACCESS_KEY)
        if self.compat:
            if rules.white and rules.white.matches(access.host):
                return WHITE_LIST
        elif access_key is None and command.code in UNSIGNED_CODES and rules.white.matches(access.host):
            return WHITE_LIST
        if access_key is None:
            raise AccessDenied("No accessKey is configured", "No accessKey")
        account = rules.accounts.get(access_key)
        if account is None:
            raise AccessDenied(f"No acl config for {_shown(access_key)}", "No acl config")
        if self._passes_by_address(account, access.host):
            return access_key
        self._authenticate(account, command)
        try:
            self._authorize(account, access)
        except AccessDenied as error:
            error.account = access_key
            raise
        return access_key

    def _passes_by_address(self, account: Account, host: str) -> bool:
        """Whether 4.9.7 asks for no signature from this address. Raises AccessDenied if the account's list forbids it."""
        if self.compat:
            return account.white.matches(host)
        if account.white.text.strip() and not account.white.matches(host):
            raise AccessDenied(f"Address {host} is not in whiteRemoteAddress of accessKey={account.access_key}")
        return False

    def _authenticate(self, account: Account, command: Command) -> None:
        key = account.access_key
        if account.signature_version > 1 and not is_v2(command):
            raise AccessDenied(f"Signature version {account.signature_version} is required for accessKey={key}")
        if not verify(command, account.secret):
            raise AccessDenied(f"Check signature failed for accessKey={key}", "Check signature")
        if is_v2(command):
            self._check_fresh(key, command)

    def _check_fresh(self, key: str, command: Command) -> None:
        """Refuse a signature of version 2 that is too old, too new, or was used before (SEC-10)."""
        text, now_ms = command.ext.get(SIGNATURE_TIME, ""), self._clock_ms()
        if not (text.isascii() and text.isdigit() and len(text) <= _TIME_DIGITS_MAX):
            raise AccessDenied(f"{SIGNATURE_TIME} of accessKey={key} must be Unix milliseconds")
        time_ms = int(text)
        if abs(now_ms - time_ms) > WINDOW_MS:
            raise AccessDenied(
                f"{SIGNATURE_TIME} of accessKey={key} differs by {abs(now_ms - time_ms)} ms from this broker's clock, "
                f"at most {WINDOW_MS} are allowed"
            )
        if time_ms < self._start_ms:
            raise AccessDenied(f"{SIGNATURE_TIME} of accessKey={key} is before the start of this broker; sign again")
        if not self._seen_signatures.add(key, command.ext[SIGNATURE], time_ms, now_ms):
            raise AccessDenied(f"Signature of accessKey={key} was used before")

    def _authorize(self, account: Account, access: Access) -> None:
        required = access.wanted(access.command)
        if (
            access.command.code in _SENDS
            and (TRACE_TOPIC, PUB) in required.resources
            and self._trace_passes(account, access.command)
        ):
            return
        if required.admin:
            self._check_admin(account, access, changes=required.changes)
        if account.admin and account.permissions is None:
            return
        for resource, right in required.resources:
            has_entry = account.permissions is not None and resource in account.permissions
            # Internal topics hold messages of other topics, so that a default does not cover them.
            hidden = not self.compat and not has_entry and (not resource or resource in FORBIDDEN_SEND_TOPICS)
            if hidden or not account.may(resource, right):
                raise AccessDenied(
                    f"No default permission for {shown_resource(resource)}", "own" if has_entry else "default"
                )

    def _check_admin(self, account: Account, access: Access, *, changes: bool) -> None:
        code, key = access.command.code, account.access_key
        if not account.admin:
            raise AccessDenied(
                f"Need admin permission for request code={code}, but accessKey={key} is not", "Need admin"
            )
        if self.compat or not changes or access.encrypted or is_v2(access.command):
            return
        if not self._plain_admin.matches(access.host):
            raise AccessDenied(
                f"Request code={code} of accessKey={key} needs TLS, signature version 2, or an address of "
                "aclPlainAdminAddresses"
            )

    def _trace_passes(self, account: Account, command: Command) -> bool:
        """Whether a send to the trace topic needs no right (ACL-13). Raises ResponseError when the quota is used up (SEC-14)."""
        if self.compat:
            return True
        if account.may(TRACE_TOPIC, PUB):
            return False
        if not self._trace.take(account.access_key, len(command.body or b""), self._clock_ms()):
            raise ResponseError(
                f"accessKey={account.access_key} has used up aclTraceBytesPerSecond={self._trace.bytes_per_second} for "
                f"{TRACE_TOPIC}",
                code=ResponseCode.SYSTEM_BUSY,
            )
        return True
