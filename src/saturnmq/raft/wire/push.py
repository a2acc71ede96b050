"""Binary form of APPEND pushes between SaturnMQ members: the entries as stored on disk, and the response to such a push.

Java members never receive this form. The leader's COMPARE, TRUNCATE and COMMIT carry the ext field OFFER and a SaturnMQ member
repeats it in its response; only then, and until a call to that member fails, APPENDs to it use this form. Semantics, request code
and framing are DLedger's; raft/wire/codec.py has the JSON form that all members read. Any bytes either parse or raise BodyError.
"""

# APPEND, big-endian. A JSON body begins with `{` or white space, never with FORM.
#   at  type  field         meaning
#    0  u8    form          2
#    1  u8    kind          1: APPEND
#    2  i32   count         entries
#    6  i64   term          of the leader
#   14  i64   commit_index
#   22  u8x4  lengths       of the four texts
#   26  ...   texts         group, leader_id, local_id, remote_id, UTF-8
#    .  ...   entries       consecutive, as in raft/ledger/layout.py: 48 bytes and the body
#
# Response:
#    0  u8    form          2
#    1  u8    kind          2
#    2  i32   code
#    6  i64   term
#   14  i64   index         of the first entry
#   22  i32   count
#   26  i64   begin_index   of the member's log
#   34  i64   end_index

from __future__ import annotations

import struct
from typing import Final

from saturnmq.protocol.errors import BodyError
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, Entry
from saturnmq.raft.core.messages import PushKind, PushRequest, PushResponse
from saturnmq.raft.ledger.layout import HEADER, entries_bytes

OFFER: Final = "saturnmqPush"  # ext field; its value is the form
FORM: Final = 2
_APPEND: Final = 1
_ANSWER: Final = 2
_PUSH_HEAD: Final = struct.Struct(">BBiqqBBBB")
_ANSWER_BODY: Final = struct.Struct(">BBiqqiqq")
_TEXT_BYTES_MAX: Final = 255
_NO_INDEX: Final = -1


def is_plain(body: bytes | None) -> bool:
    """Whether a body has the binary form instead of JSON."""
    return bool(body) and body[0] == FORM  # type: ignore[index]


def encode_push(push: PushRequest) -> bytes | None:
    """Encode an APPEND; None if this form cannot represent it (another kind of push, or a text over 255 bytes)."""
    texts = [(text or "").encode() for text in (push.group, push.leader_id, push.local_id, push.remote_id)]
    lengths = [len(text) for text in texts]
    if push.kind is not PushKind.APPEND or max(lengths) > _TEXT_BYTES_MAX:
        return None
    head = _PUSH_HEAD.pack(FORM, _APPEND, len(push.entries), push.term, push.commit_index, *lengths)
    return b"".join((head, *texts, entries_bytes(push.entries)))


def decode_push(body: bytes) -> PushRequest:
    """Decode an APPEND. Raises BodyError."""
    try:
        _, kind, count, term, commit_index, *lengths = _PUSH_HEAD.unpack_from(body)
    except struct.error:
        raise BodyError(f"a push of {len(body)} bytes is too short") from None
    if kind != _APPEND:
        raise BodyError(f"a push of kind {kind}")
    texts, at = [], _PUSH_HEAD.size
    for length in lengths:
        texts.append(_text(body[at : at + length]))
        at += length
    entries = _entries(body, at, count)
    group, leader_id, local_id, remote_id = texts
    return PushRequest(
        group=group, leader_id=leader_id, local_id=local_id, remote_id=remote_id, term=term, commit_index=commit_index,
        entries=entries, batch=True,
    )  # fmt: skip


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BodyError("a name in a push is not UTF-8") from None


def _entries(body: bytes, at: int, count: int) -> tuple[Entry, ...]:
    """Decode exactly count entries, which must end at the end of the body."""
    entries: list[Entry] = []
    unpack, end = HEADER.unpack_from, len(body)
    while len(entries) < count:
        if end - at < ENTRY_HEADER_BYTES:
            break
        magic, size, index, term, pos, channel, _, _, body_len = unpack(body, at)
        stop = at + size
        # A length is never trusted: an entry ends within the body, or the push is refused.
        if size != ENTRY_HEADER_BYTES + body_len or not at < stop <= end:
            break
        entries.append(Entry(index, term, pos, body[at + ENTRY_HEADER_BYTES : stop], magic, channel, size))
        at = stop
    # Neither fewer entries nor bytes after them: a mistake of the sender must not append half a push.
    if len(entries) != count or at != end:
        raise BodyError(f"a push says {count} entries in {end} bytes, there are {len(entries)} up to {at}")
    return tuple(entries)


def encode_answer(answer: PushResponse) -> bytes:
    """Encode a response."""
    index = answer.index if answer.index is not None else _NO_INDEX
    return _ANSWER_BODY.pack(
        FORM, _ANSWER, answer.code, answer.term, index, answer.count, answer.begin_index, answer.end_index
    )


def decode_answer(body: bytes) -> PushResponse:
    """Decode a response. Raises BodyError."""
    if len(body) != _ANSWER_BODY.size:
        raise BodyError(f"an answer to a push has {_ANSWER_BODY.size} bytes, not {len(body)}")
    _, kind, code, term, index, count, begin, end = _ANSWER_BODY.unpack(body)
    if kind != _ANSWER:
        raise BodyError(f"an answer of kind {kind}")
    return PushResponse(
        code=code, term=term, index=None if index == _NO_INDEX else index, count=count, begin_index=begin, end_index=end
    )
