"""Codec of DLedger's requests and responses: request codes and JSON bodies.

Encoding: keys are sorted, absent values omitted, enums written by name, bytes as base64. Decoding: unknown keys are ignored, an
unknown enum name is None. Any bytes either parse or raise BodyError. Wire facts: docs/spec/04-dledger.md section 4.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from typing import Any, Final

from saturnmq.protocol.bodies.fields import json_members, read_members, write_members
from saturnmq.protocol.errors import BodyError, RemoteProtocolError
from saturnmq.protocol.json_dialect import SORT_KEYS, json_type, loads, standard_dumps
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
        # As Fastjson does it, so that golden vectors of Java compare byte by byte.
        return standard_dumps(_push_fields(message), option=SORT_KEYS)
    return standard_dumps(write_members(_MEMBERS[type(message)], message), option=SORT_KEYS)


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
        # DLedger reads one form or the other by what is not empty.
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
    # Fastjson omits null as well.
    return {key: value for key, value in fields.items() if value is not None}


# decode


def decode_request(code: int, body: bytes | None) -> Request:
    """Decode a request. Raises BodyError, UnsupportedRequest."""
    cls = _exchange(code)[0]
    if cls is PushRequest:
        return _decode_push(_object(body))
    return cls(**read_members(_MEMBERS[cls], _object(body)))  # type: ignore[no-any-return]


def decode_response(code: int, body: bytes | None) -> Response:
    """Decode the response to a request with this code. Raises BodyError."""
    cls = _exchange(code)[1]
    return cls(**read_members(_MEMBERS[cls], _object(body)))  # type: ignore[no-any-return]


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


def _number(value: Any, key: str) -> int:
    # JSON's true is an int for isinstance.
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise BodyError(f"{key} must be a 64-bit integer")
    return value


def _text(value: Any, key: str) -> str:
    if type(value) is not str:
        raise BodyError(f"{key} must be text")
    return value


def _bytes(value: Any, key: str) -> bytes:
    try:
        # Without it Python skips characters outside the alphabet, and two texts would be the same entry.
        return binascii.a2b_base64(_text(value, key), strict_mode=True)
    except ValueError as error:  # binascii.Error is a ValueError
        raise BodyError(f"{key} is not base64: {error}") from None


def _entries(value: Any, key: str) -> tuple[Entry, ...]:
    # Checked before the entries are built.
    if type(value) is not list or len(value) > ENTRIES_MAX:
        raise BodyError(f"{key} must be a list of at most {ENTRIES_MAX} entries")
    return tuple(_entry(item, key) for item in value)


def _entry(value: Any, key: str) -> Entry:
    """Decode an entry as sent. The size is the sender's, because COMPARE compares it; CRCs are ignored (DL-F07)."""
    if type(value) is not dict:
        raise BodyError(f"{key} must be an object")
    # A missing number leaves Java's default, 0.
    field_or = value.get
    index, term, pos, magic = field_or("index", 0), field_or("term", 0), field_or("pos", 0), field_or("magic", 0)
    channel, size, body = field_or("channel", 0), field_or("size", 0), field_or("body")
    for number in (index, term, pos, magic, channel, size):
        if type(number) is not int or not -_INT64 <= number < _INT64:
            raise BodyError(f"{key}: index, term, pos, magic, channel and size must be 64-bit integers")
    if size < 0:
        raise BodyError(f"{key}.size is negative")
    return Entry(index, term, pos, _bytes(body, f"{key}.body") if body is not None else b"", magic, channel, size)


def _names(value: Any, key: str) -> tuple[str, ...]:
    if type(value) is not list:
        raise BodyError(f"{key} must be a list")
    return tuple(_text(name, key) for name in value)


def _flag(value: Any, key: str) -> bool:
    if type(value) is not bool:
        raise BodyError(f"{key} must be true or false")
    return value


def _members(value: Any, key: str) -> Configuration:
    try:
        return Configuration.of_fields(value)
    except ValueError as error:
        raise BodyError(f"{key}: {error}") from None


def _by_name(kind: type[Enum]) -> tuple[Callable[[Any, str], Any], Callable[[Any], str]]:
    """None for an unknown name, such as DLedger 0.1's REJECT_ALREADY__HAS_LEADER (two underscores)."""
    return lambda value, key: kind.__members__.get(_text(value, key)), lambda member: member.name


_LEAVES: Final[dict[Any, Any]] = {
    str: (_text, None),
    int: (_number, None),
    bool: (_flag, None),
    bytes: (_bytes, _base64),
    VoteResult: _by_name(VoteResult),
    ChangeKind: _by_name(ChangeKind),
    Configuration: (_members, Configuration.fields),
    tuple[str, ...]: (_names, None),
    tuple[Entry, ...]: (_entries, lambda entries: [_entry_fields(entry) for entry in entries]),
}
# JSON keys other than the camel case of the attribute: fields that Java members do not know.
_KEYS: Final = {
    "changes": "saturnmqChanges",
    "transfer": "saturnmqTransfer",
    "interval_ms": "saturnmqHeartBeatMs",
    "learners": "saturnmqLearners",
    "positions": "",  # not on the wire
}
_MESSAGES: Final[list[type[Any]]] = [DLedgerMessage, *(cls for pair in _EXCHANGES.values() for cls in pair)]
# PUSH requests have their own functions.
_MEMBERS: Final = {cls: json_members(cls, _LEAVES, _KEYS) for cls in _MESSAGES if cls is not PushRequest}


def _decode_push(fields: Mapping[str, Any]) -> PushRequest:
    """Decode a push. A body with a non-empty `batchEntry` is a batch, whatever the field `batch` says."""
    kind = fields.get("type", "APPEND")
    batch, entry = fields.get("batchEntry"), fields.get("entry")
    entries: tuple[Entry, ...] = ()
    if batch:
        entries = _entries(batch, "batchEntry")
    elif entry is not None:
        entries = (_entry(entry, "entry"),)
    return PushRequest(
        # Java's default kind is APPEND.
        kind=PushKind.__members__.get(_text(kind, "type")) if kind is not None else None,
        commit_index=LedgerIndex(_number(fields.get("commitIndex", -1), "commitIndex")),
        entries=entries,
        batch=bool(batch),
        members=_members(fields["saturnmqMembers"], "saturnmqMembers") if "saturnmqMembers" in fields else None,
        **read_members(_MEMBERS[DLedgerMessage], fields),
    )
