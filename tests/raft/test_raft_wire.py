"""DLedger's JSON bodies, checked against bodies written by DLedger's classes and frames recorded between Java members."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorded import VECTORS
from saturnmq.protocol.errors import BodyError
from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import LedgerIndex, Term
from saturnmq.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    ChangeKind,
    ChangeRequest,
    ChangeResponse,
    Code,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataResponse,
    PushKind,
    PushRequest,
    PushResponse,
    TransferRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from saturnmq.raft.wire import codec as wire
from saturnmq.raft.wire.codec import DLedgerCode, UnsupportedRequest, code_of, decode_request, decode_response, encode

ENTRY = Entry(10, 3, 1000, b"\x00\x01\x02\xff")
SIDES = {"group": "g", "local_id": "n0", "remote_id": "n1"}

MEMBERS = Configuration({"n0": "h:1", "n3": "h:4"}, frozenset(("n3",)), frozenset(("n1",)), LedgerIndex(7))
MEMBERS_LINE = '"{name}":{{"index":7,"learners":["n3"],"peers":{{"n0":"h:1","n3":"h:4"}},"removed":["n1"]}}'

GOLDEN_REQUESTS = [
    (
        DLedgerCode.MEMBERS,
        ChangeRequest(group="g", remote_id="n0", kind=ChangeKind.ADD_LEARNER, member_id="n3", address="h:4"),
        '{"address":"h:4","code":200,"dryRun":false,"group":"g","kind":"ADD_LEARNER","memberId":"n3","remoteId":"n0","term":-1}',
    ),
    (
        DLedgerCode.PUSH,
        PushRequest(group="g", kind=PushKind.TRUNCATE, term=3, members=MEMBERS),
        '{"batch":false,"batchEntry":[],"code":200,"commitIndex":-1,"count":0,"firstEntryIndex":-1,"group":"g",'
        f'"lastEntryIndex":-1,{MEMBERS_LINE.format(name="saturnmqMembers")},"term":3,"totalSize":0,"type":"TRUNCATE"}}',
    ),
    (
        DLedgerCode.VOTE,
        VoteRequest(**SIDES, leader_id="n0", ledger_end_index=10, ledger_end_term=3, term=4),
        '{"code":200,"group":"g","leaderId":"n0","ledgerEndIndex":10,"ledgerEndTerm":3,"localId":"n0","remoteId":"n1","term":4}',
    ),
    (  # fields that Java members do not know
        DLedgerCode.VOTE,
        VoteRequest(**SIDES, leader_id="n0", term=4, changes=7, transfer=True),
        '{"code":200,"group":"g","leaderId":"n0","ledgerEndIndex":-1,"ledgerEndTerm":-1,"localId":"n0","remoteId":"n1",'
        '"saturnmqChanges":7,"saturnmqTransfer":true,"term":4}',
    ),
    (
        DLedgerCode.HEART_BEAT,
        HeartBeatRequest(**SIDES, leader_id="n0", term=4, interval_ms=500, changes=7),
        '{"code":200,"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1","saturnmqChanges":7,'
        '"saturnmqHeartBeatMs":500,"term":4}',
    ),
    (
        DLedgerCode.APPEND,
        AppendRequest(**SIDES, body=b"x"),
        '{"body":"eA==","code":200,"group":"g","localId":"n0","remoteId":"n1","term":-1}',
    ),
    (
        DLedgerCode.GET,
        GetRequest(**SIDES, begin_index=3, max_size=9),
        '{"beginIndex":3,"code":200,"group":"g","localId":"n0","maxSize":9,"remoteId":"n1","term":-1}',
    ),
    (
        DLedgerCode.PUSH,
        PushRequest(**SIDES, leader_id="n0", commit_index=9, entries=(ENTRY,), term=3),
        '{"batch":false,"batchEntry":[],"code":200,"commitIndex":9,"count":1,"entry":{"body":"AAEC/w==","bodyCrc":0,'
        '"chainCrc":0,"channel":0,"index":10,"magic":1,"pos":1000,"size":52,"term":3},"firstEntryIndex":10,"group":"g",'
        '"lastEntryIndex":10,"leaderId":"n0","localId":"n0","remoteId":"n1","term":3,"totalSize":0,"type":"APPEND"}',
    ),
    (
        DLedgerCode.PUSH,
        PushRequest(group="g", kind=PushKind.COMMIT, commit_index=9, term=3),
        '{"batch":false,"batchEntry":[],"code":200,"commitIndex":9,"count":0,"firstEntryIndex":-1,"group":"g",'
        '"lastEntryIndex":-1,"term":3,"totalSize":0,"type":"COMMIT"}',
    ),
    (
        DLedgerCode.GET,
        GetRequest(group="g", remote_id="n0", begin_index=5),
        '{"beginIndex":5,"code":200,"group":"g","maxSize":0,"remoteId":"n0","term":-1}',
    ),
    (
        DLedgerCode.LEADERSHIP_TRANSFER,
        TransferRequest(group="g", remote_id="n0", transfer_id="n0", transferee_id="n1", term=3),
        '{"code":200,"group":"g","remoteId":"n0","takeLeadershipLedgerIndex":0,"term":3,"transferId":"n0","transfereeId":"n1"}',
    ),
]
GOLDEN_RESPONSES = [
    (
        DLedgerCode.MEMBERS,
        ChangeResponse(group="g", code=Code.UNSUPPORTED, reason="no", members=MEMBERS, term=Term(3)),
        f'{{"code":303,"group":"g",{MEMBERS_LINE.format(name="members")},"reason":"no","term":3}}',
    ),
    (
        DLedgerCode.METADATA,
        MetadataResponse(group="g", peers={"n0": "h:1"}, learners=("n3",)),
        '{"code":200,"group":"g","peers":{"n0":"h:1"},"saturnmqLearners":["n3"],"term":-1}',
    ),
    (
        DLedgerCode.VOTE,
        VoteResponse(**SIDES, leader_id="n0", term=4, vote_result=VoteResult.ACCEPT),
        '{"code":200,"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1","term":4,"voteResult":"ACCEPT"}',
    ),
    (
        DLedgerCode.PUSH,
        PushResponse(group="g", index=10, count=1, begin_index=0, end_index=10, term=3),
        '{"beginIndex":0,"code":200,"count":1,"endIndex":10,"group":"g","index":10,"term":3}',
    ),
    (DLedgerCode.HEART_BEAT, HeartBeatResponse(), '{"code":200,"term":-1}'),
    (
        DLedgerCode.HEART_BEAT,
        HeartBeatResponse(group="g", term=4, interval_ms=500, changes=7),
        '{"code":200,"group":"g","saturnmqChanges":7,"saturnmqHeartBeatMs":500,"term":4}',
    ),
    (
        DLedgerCode.APPEND,
        AppendResponse(group="g", index=3, pos=9),
        '{"code":200,"group":"g","index":3,"pos":9,"term":-1}',
    ),
    (
        DLedgerCode.METADATA,
        MetadataResponse(group="g", leader_id="n0", peers={"n0": "127.0.0.1:40911", "n1": "127.0.0.1:40912"}),
        '{"code":200,"group":"g","leaderId":"n0","peers":{"n0":"127.0.0.1:40911","n1":"127.0.0.1:40912"},"term":-1}',
    ),
]


@pytest.mark.spec("DL-M06")
@pytest.mark.parametrize(("code", "message", "line"), GOLDEN_REQUESTS)
def test_golden_requests_encode_and_decode(code: DLedgerCode, message: Any, line: str) -> None:
    assert encode(message).decode() == line
    assert decode_request(code, line.encode()) == message
    assert code_of(message) is code


@pytest.mark.spec("DL-M06", "DL-M09")
@pytest.mark.parametrize(("code", "message", "line"), GOLDEN_RESPONSES)
def test_golden_responses_encode_and_decode(code: DLedgerCode, message: Any, line: str) -> None:
    assert encode(message).decode() == line
    assert decode_response(code, line.encode()) == message


@pytest.mark.spec("DL-M09")
def test_metadata_response_without_leader_omits_leader_id() -> None:
    assert encode(MetadataResponse(group="g", peers={"n0": "h:1"})).decode() == (
        '{"code":200,"group":"g","peers":{"n0":"h:1"},"term":-1}'
    )


@pytest.mark.spec("DL-M06")
def test_recorded_java_frames_round_trip_byte_for_byte() -> None:
    kinds = set()
    for frame in json.loads((VECTORS / "frames" / "dledger.group.json").read_text())["frames"]:
        data = bytes.fromhex(frame["hex"])
        body = data[8 + int.from_bytes(data[5:8], "big") :]
        code = frame["request_code"]
        message = decode_request(code, body) if frame["dir"] == "c2s" else decode_response(code, body)
        assert encode(message) == body
        assert frame["dir"] == "c2s" or json.loads(data[8 : 8 + int.from_bytes(data[5:8], "big")])["code"] == 200
        kinds.add((type(message).__name__, getattr(message, "kind", None)))
    assert {("PushRequest", PushKind.TRUNCATE), ("PushRequest", PushKind.COMPARE)} <= kinds
    assert {"VoteRequest", "VoteResponse", "HeartBeatRequest", "HeartBeatResponse", "PushResponse"} <= {
        k for k, _ in kinds
    }


@pytest.mark.spec("DL-P15", "DL-F04")
def test_batch_push_needs_only_batch_entry() -> None:
    batch = PushRequest(**SIDES, leader_id="n0", entries=(ENTRY, Entry(11, 3, 1052, b"x")), batch=True, term=3)
    written = json.loads(encode(batch))
    assert "entry" not in written
    assert (written["count"], written["firstEntryIndex"], written["lastEntryIndex"], written["totalSize"]) == (
        2,
        10,
        11,
        101,
    )
    assert decode_request(DLedgerCode.PUSH, encode(batch)) == batch
    for key in ("batch", "count", "firstEntryIndex", "lastEntryIndex", "totalSize"):
        del written[key]
    assert decode_request(DLedgerCode.PUSH, json.dumps(written).encode()) == batch


@pytest.mark.spec("DL-F07")
def test_push_entry_crcs_are_ignored() -> None:
    pushed = PushRequest(**SIDES, leader_id="n0", kind=PushKind.COMPARE, entries=(ENTRY,), term=3)
    fields = json.loads(encode(pushed))
    fields["entry"] |= {"bodyCrc": 123, "chainCrc": 456}
    assert decode_request(DLedgerCode.PUSH, json.dumps(fields).encode()) == pushed


@pytest.mark.spec("DL-A10", "DL-M06")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (DLedgerCode.APPEND, AppendResponse(group="g", index=4, pos=200, term=1)),
        (DLedgerCode.GET, GetResponse(group="g", entries=(ENTRY,))),
        (DLedgerCode.GET, GetResponse(group="g", code=Code.INDEX_OUT_OF_RANGE)),
        (DLedgerCode.PUSH, PushResponse(group="g", code=Code.INCONSISTENT_STATE, term=2)),
    ],
)
def test_other_responses_round_trip(code: DLedgerCode, message: Any) -> None:
    assert decode_response(code, encode(message)) == message


@pytest.mark.spec("DL-M06")
def test_append_request_is_base64_and_network_batch_is_ignored() -> None:
    line = b'{"body":"aGk=","batchMsgs":["aGk="],"group":"g","remoteId":"n0"}'
    assert decode_request(DLedgerCode.APPEND, line) == AppendRequest(group="g", remote_id="n0", body=b"hi")


@pytest.mark.spec(
    "DL-H05", "DL-H06", "DL-L01", "DL-L02", "DL-L05", "DL-L07", "DL-M06", "DL-M07", "DL-M08", "DL-A03", "DL-A07", "DL-A10",
    "DL-F01", "DL-X11",
)  # fmt: skip
def test_response_codes_have_the_numbers_of_dledger() -> None:
    """Other tests compare names."""
    numbers = {
        "UNKNOWN": -1, "SUCCESS": 200, "TIMEOUT": 300, "METADATA_ERROR": 301, "NETWORK_ERROR": 302, "UNSUPPORTED": 303,
        "UNKNOWN_GROUP": 400, "UNKNOWN_MEMBER": 401, "UNEXPECTED_MEMBER": 402, "EXPIRED_TERM": 403, "NOT_LEADER": 404,
        "NOT_FOLLOWER": 405, "INCONSISTENT_STATE": 406, "INCONSISTENT_TERM": 407, "INCONSISTENT_INDEX": 408,
        "INCONSISTENT_LEADER": 409, "INDEX_OUT_OF_RANGE": 410, "UNEXPECTED_ARGUMENT": 411, "REPEATED_REQUEST": 412,
        "REPEATED_PUSH": 413, "DISK_ERROR": 414, "DISK_FULL": 415, "TERM_NOT_READY": 416, "FALL_BEHIND_TOO_MUCH": 417,
        "TAKE_LEADERSHIP_FAILED": 418, "INDEX_LESS_THAN_LOCAL_BEGIN": 419, "REQUEST_WITH_EMPTY_BODYS": 420,
        "PUSH_REQUEST_IS_FULL": 421, "INTERNAL_ERROR": 500, "TERM_CHANGED": 501, "WAIT_QUORUM_ACK_TIMEOUT": 502,
        "LEADER_PENDING_FULL": 503, "ILLEGAL_MEMBER_STATE": 504, "LEADER_NOT_READY": 505, "LEADER_TRANSFERRING": 506,
    }  # fmt: skip
    assert {code.name: int(code) for code in Code} == numbers
    assert [int(code) for code in DLedgerCode][:8] == [50000, 50001, 50002, 51001, 51002, 51003, 51004, 51005]
    assert [code.name for code in DLedgerCode][:8] == [
        "METADATA", "APPEND", "GET", "VOTE", "HEART_BEAT", "PULL", "PUSH", "LEADERSHIP_TRANSFER",
    ]  # fmt: skip


@pytest.mark.spec("DL-M06")
def test_unknown_keys_enums_and_request_codes() -> None:
    vote = b'{"voteResult":"REJECT_ALREADY__HAS_LEADER","x":{"y":[1]},"term":2}'
    assert decode_response(DLedgerCode.VOTE, vote) == VoteResponse(vote_result=None, term=2)
    assert decode_request(DLedgerCode.PUSH, b'{"type":"SHOVE"}') == PushRequest(kind=None)
    for code in (DLedgerCode.PULL, 10, -1):
        with pytest.raises(UnsupportedRequest):
            decode_request(code, b"{}")


@pytest.mark.spec("DL-M06", "DL-X17")
@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"{", b'{"term":"x"}', b'{"term":9223372036854775808}', b'{"group":7}', b'{"entry":[]}',
        b'{"entry":{"body":"%%"}}', b'{"entry":{"size":-1,"body":""}}', b'{"batchEntry":{"a":1}}', b'{"batchEntry":[1]}',
        b'{"term":true}', b"\xff\xfe",
        b'{"saturnmqMembers":7}', b'{"saturnmqMembers":{"peers":{}}}', b'{"saturnmqMembers":{"peers":{"n0":1}}}',
        b'{"saturnmqMembers":{"peers":{"n0":"h:1"},"learners":["n0"]}}',
    ],
)  # fmt: skip
def test_invalid_body_raises_body_error(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_request(DLedgerCode.PUSH, body)


@pytest.mark.spec("DL-X17")
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(DLedgerCode)), st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_bytes_parse_or_raise_remote_error(code: DLedgerCode, body: bytes) -> None:
    for decode in (decode_request, decode_response):
        try:
            message = decode(code, body)
        except (BodyError, UnsupportedRequest):
            continue
        assert decode(code, encode(message)) == message


numbers = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.spec("DL-M06", "DL-F07")
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers, st.binary(max_size=40)), max_size=3), st.booleans(), numbers)
def test_push_request_round_trip(made: list[tuple[int, int, int, bytes]], batch: bool, commit: int) -> None:
    pushed = tuple(Entry(index, term, pos, body) for index, term, pos, body in made)
    if not batch:
        pushed = pushed[:1]
    request = PushRequest(**SIDES, entries=pushed, batch=batch and bool(pushed), commit_index=commit)
    assert wire.decode_request(DLedgerCode.PUSH, encode(request)) == request
