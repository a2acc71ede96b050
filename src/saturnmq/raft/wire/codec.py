"""Codec of DLedger's requests and responses: request codes and JSON bodies.

Encoding: keys are sorted, absent values omitted, enums written by name, bytes as base64. Decoding: unknown keys are ignored, an
unknown enum name is None. Any bytes either parse or raise BodyError. Wire facts: docs/spec/04-dledger.md section 4.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from typing import Any, Final

from saturnmq.protocol.errors import BodyError, RemoteProtocolError
from saturnmq.protocol.json_dialect import json_type, loads
from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import LedgerIndex
from saturnmq.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    ChangeKind,
    ChangeRequest,
    ChangeResponse,
    DLedgerMessage,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushKind,
    PushRequest,
    PushResponse,
    Request,
    Response,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

try:
    import orjson

    def _dumps(fields: dict[str, Any]) -> bytes:
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)

except ImportError:  # orjson is a default dependency, but optional (PKG-04)

    def _dumps(fields: dict[str, Any]) -> bytes:
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


class DLedgerCode(IntEnum):
    """Request codes. The header code of a response is always 200; the result code is in its body."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005
    # Between SaturnMQ members only; Java members answer "not supported".
    STATE = 51900  # the broker's state outside the log
    FORWARD = 51901  # a client's request that a follower passes on to the leader
    MEMBERS = 51902  # a change of the group's members


RESPONSE_HEADER_CODE: Final = 200
ENTRIES_MAX: Final = 65_536  # entries in one body; a frame of 16 MiB cannot hold more
_INT64: Final = 2**63

_COMMON: Final = {
    "code": "code",
    "group": "group",
    "leader_id": "leaderId",
    "local_id": "localId",
    "remote_id": "remoteId",
    "term": "term",
}
# Class of the message -> attribute -> JSON key, in addition to the common ones. PUSH requests have their own functions.
_FIELDS: Final[dict[type[DLedgerMessage], dict[str, str]]] = {
    VoteRequest: {
        "ledger_end_index": "ledgerEndIndex",
        "ledger_end_term": "ledgerEndTerm",
        "changes": "saturnmqChanges",
        "transfer": "saturnmqTransfer",
    },
    VoteResponse: {"vote_result": "voteResult"},
    HeartBeatRequest: {"interval_ms": "saturnmqHeartBeatMs", "changes": "saturnmqChanges"},
    HeartBeatResponse: {"interval_ms": "saturnmqHeartBeatMs", "changes": "saturnmqChanges"},
    PushResponse: {"index": "index", "count": "count", "begin_index": "beginIndex", "end_index": "endIndex"},
    TransferRequest: {
        "transfer_id": "transferId",
        "transferee_id": "transfereeId",
        "take_leadership_ledger_index": "takeLeadershipLedgerIndex",
    },
    TransferResponse: {},
    AppendRequest: {"body": "body"},
    AppendResponse: {"index": "index", "pos": "pos"},
    GetRequest: {"begin_index": "beginIndex", "max_size": "maxSize"},
    GetResponse: {"entries": "entries"},
    MetadataRequest: {},
    MetadataResponse: {"peers": "peers", "learners": "saturnmqLearners"},
    ChangeRequest: {"kind": "kind", "member_id": "memberId", "address": "address", "dry_run": "dryRun"},
    ChangeResponse: {"reason": "reason", "members": "members"},
}
_ALL_FIELDS: Final = {cls: {**_COMMON, **more} for cls, more in _FIELDS.items()}

_EXCHANGES: Final[dict[DLedgerCode, tuple[type[Any], type[Any]]]] = {
    DLedgerCode.METADATA: (MetadataRequest, MetadataResponse),
    DLedgerCode.APPEND: (AppendRequest, AppendResponse),
    DLedgerCode.GET: (GetRequest, GetResponse),
    DLedgerCode.VOTE: (VoteRequest, VoteResponse),
    DLedgerCode.HEART_BEAT: (HeartBeatRequest, HeartBeatResponse),
    DLedgerCode.PUSH: (PushRequest, PushResponse),
    DLedgerCode.LEADERSHIP_TRANSFER: (TransferRequest, TransferResponse),
    DLedgerCode.MEMBERS: (ChangeRequest, ChangeResponse),
}
_CODES: Final = {request: code for code, (request, _) in _EXCHANGES.items()}


class UnsupportedRequest(RemoteProtocolError):
    """A request code that is not served; PULL is one of them, as in DLedger."""


def code_of(request: Request) -> DLedgerCode:
    """The request code of a message."""
    return _CODES[type(request)]


# encode


def encode(message: Request | Response) -> bytes:
    """Encode a message as JSON."""
    if isinstance(message, PushRequest):
        return _dumps(_push_fields(message))
    fields = {}
    for attribute, key in _ALL_FIELDS[type(message)].items():
        value = getattr(message, attribute)
        if value is not None:
            fields[key] = value if type(value) is int or type(value) is str else _json_value(value)
    return _dumps(fields)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return [element if type(element) is str else _entry_fields(element) for element in value]
    if isinstance(value, Configuration):
        return value.fields()
    return value


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _entry_fields(entry: Entry) -> dict[str, Any]:
    return {
        "body": _base64(entry.body),
        "bodyCrc": 0,
        "chainCrc": 0,
        "channel": entry.channel,
        "index": entry.index,
        "magic": entry.magic,
        "pos": entry.pos,
        "size": entry.size,
        "term": entry.term,
    }


def _push_fields(push: PushRequest) -> dict[str, Any]:
    """The JSON fields of a push. DLedger writes batch, count, first/lastEntryIndex and totalSize, but ignores them when reading."""
    entries = push.entries
    fields: dict[str, Any] = {
        "code": int(push.code),
        "group": push.group,
        "leaderId": push.leader_id,
        "localId": push.local_id,
        "remoteId": push.remote_id,
        "term": push.term,
        "commitIndex": push.commit_index,
        "type": push.kind.name if push.kind is not None else None,
        "batch": push.batch,
        "batchEntry": [_entry_fields(entry) for entry in entries] if push.batch else [],
        "count": len(entries),
        "firstEntryIndex": entries[0].index if entries else -1,
        "lastEntryIndex": entries[-1].index if entries else -1,
        "totalSize": sum(entry.size for entry in entries) if push.batch else 0,
    }
    if entries and not push.batch:
        fields["entry"] = _entry_fields(entries[0])
    if push.members is not None:
        fields["saturnmqMembers"] = push.members.fields()
    return {key: value for key, value in fields.items() if value is not None}


# decode


def decode_request(code: int, body: bytes | None) -> Request:
    """Decode a request. Raises BodyError, UnsupportedRequest."""
    cls = _exchange(code)[0]
    if cls is PushRequest:
        return _decode_push(_object(body))
    return _decode(cls, body)  # type: ignore[no-any-return]


def decode_response(code: int, body: bytes | None) -> Response:
    """Decode the response to a request with this code. Raises BodyError."""
    return _decode(_exchange(code)[1], body)  # type: ignore[no-any-return]


def _exchange(code: int) -> tuple[type[Any], type[Any]]:
    try:
        return _EXCHANGES[DLedgerCode(code)]
    except (ValueError, KeyError):
        raise UnsupportedRequest(f"request code {code} is not served here") from None


def _object(body: bytes | None) -> Mapping[str, Any]:
    fields = loads(body or b"")
    if not isinstance(fields, dict):
        raise BodyError(f"the body is {json_type(fields)}, must be an object")
    return fields


def _decode(cls: type[Any], body: bytes | None) -> Any:
    return cls(**_values(cls, _object(body)))


def _values(cls: type[DLedgerMessage], fields: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for attribute, key in _ALL_FIELDS[cls].items():
        value = fields.get(key)
        if value is not None:
            values[attribute] = _reader(attribute)(key, value)
    return values


def _number(key: str, value: Any) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise BodyError(f"{key} must be a 64-bit integer")
    return value


def _text(key: str, value: Any) -> str:
    if type(value) is not str:
        raise BodyError(f"{key} must be text")
    return value


def _bytes(key: str, value: Any) -> bytes:
    try:
        return binascii.a2b_base64(_text(key, value), strict_mode=True)
    except ValueError as error:  # binascii.Error is a ValueError
        raise BodyError(f"{key} is not base64: {error}") from None


def _vote_result(key: str, value: Any) -> VoteResult | None:
    """None for an unknown name, such as DLedger 0.1's REJECT_ALREADY__HAS_LEADER (two underscores)."""
    return VoteResult.__members__.get(_text(key, value))


def _entries(key: str, value: Any) -> tuple[Entry, ...]:
    if type(value) is not list or len(value) > ENTRIES_MAX:
        raise BodyError(f"{key} must be a list of at most {ENTRIES_MAX} entries")
    return tuple(_entry(key, item) for item in value)


def _entry(key: str, value: Any) -> Entry:
    """Decode an entry as sent. The size is the sender's, because COMPARE compares it; CRCs are ignored (DL-F07)."""
    if type(value) is not dict:
        raise BodyError(f"{key} must be an object")
    field_or = value.get
    index, term, pos, magic = field_or("index", 0), field_or("term", 0), field_or("pos", 0), field_or("magic", 0)
    channel, size, body = field_or("channel", 0), field_or("size", 0), field_or("body")
    for number in (index, term, pos, magic, channel, size):
        if type(number) is not int or not -_INT64 <= number < _INT64:
            raise BodyError(f"{key}: index, term, pos, magic, channel and size must be 64-bit integers")
    if size < 0:
        raise BodyError(f"{key}.size is negative")
    return Entry(index, term, pos, _bytes(f"{key}.body", body) if body is not None else b"", magic, channel, size)


def _peers(key: str, value: Any) -> dict[str, str]:
    if type(value) is not dict:
        raise BodyError(f"{key} must be an object")
    return {_text(key, name): _text(key, address) for name, address in value.items()}


def _names(key: str, value: Any) -> tuple[str, ...]:
    if type(value) is not list:
        raise BodyError(f"{key} must be a list")
    return tuple(_text(key, name) for name in value)


def _kind(key: str, value: Any) -> ChangeKind | None:
    return ChangeKind.__members__.get(_text(key, value))


def _flag(key: str, value: Any) -> bool:
    if type(value) is not bool:
        raise BodyError(f"{key} must be true or false")
    return value


def _members(key: str, value: Any) -> Configuration:
    try:
        return Configuration.of_fields(value)
    except ValueError as error:
        raise BodyError(f"{key}: {error}") from None


def _reader(attribute: str) -> Callable[[str, Any], Any]:
    return _READERS.get(attribute, _number)


_READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "group": _text,
    "leader_id": _text,
    "local_id": _text,
    "remote_id": _text,
    "transfer_id": _text,
    "transferee_id": _text,
    "vote_result": _vote_result,
    "body": _bytes,
    "entries": _entries,
    "peers": _peers,
    "learners": _names,
    "kind": _kind,
    "member_id": _text,
    "address": _text,
    "dry_run": _flag,
    "transfer": _flag,
    "reason": _text,
    "members": _members,
}


def _decode_push(fields: Mapping[str, Any]) -> PushRequest:
    """Decode a push. A body with a non-empty `batchEntry` is a batch, whatever the field `batch` says."""
    values = {
        attribute: _reader(attribute)(key, fields[key])
        for attribute, key in _COMMON.items()
        if fields.get(key) is not None
    }
    kind = fields.get("type", "APPEND")
    batch, entry = fields.get("batchEntry"), fields.get("entry")
    entries: tuple[Entry, ...] = ()
    if batch:
        entries = _entries("batchEntry", batch)
    elif entry is not None:
        entries = (_entry("entry", entry),)
    return PushRequest(
        kind=PushKind.__members__.get(_text("type", kind)) if kind is not None else None,
        commit_index=LedgerIndex(_number("commitIndex", fields.get("commitIndex", -1))),
        entries=entries,
        batch=bool(batch),
        members=_members("saturnmqMembers", fields["saturnmqMembers"]) if "saturnmqMembers" in fields else None,
        **values,
    )
