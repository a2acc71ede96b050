"""Decisions about single requests: each check with what it accepts and refuses, in the mode of SaturnMQ and in that of 4.9.7."""

from __future__ import annotations

from typing import Any

import pytest

from saturnmq.acl.accounts import DENY, PUB, SUB, Account
from saturnmq.acl.addresses import parse_list, parse_rule
from saturnmq.acl.rules import WHITE_LIST, Access, AccessDenied, AccessRules, Decisions, RequiredRights
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.signatures import WINDOW_MS, sign_v1, sign_v2, v2_signature

NOW = 1_700_000_000_000
SECRET = b"12345678"
HOST = "10.0.0.1"
NOTHING = RequiredRights()
ADMINISTRATIVE = RequiredRights(admin=True, changes=True)
TRACE = RequiredRights(resources=(("RMQ_SYS_TRACE_TOPIC", PUB),), changes=True)


class Broker:
    """Decisions with one account and a clock. Keywords: fields of the account; of Decisions with `compat` and `admin_from`."""

    def __init__(
        self, *, compat: bool = False, white: str = "", admin_from: str = "", trace: int = 0, **account: Any
    ) -> None:
        self.now_ms = NOW
        self.decisions = Decisions(
            compat=compat,
            plain_admin=parse_list(admin_from),
            trace_bytes_per_second=trace,
            clock_ms=lambda: self.now_ms,
        )
        self.decisions.rules = AccessRules({"worker1": Account("worker1", SECRET, **account)}, parse_list(white))
        self._nonces = 0

    def request(
        self,
        code: int = RequestCode.SEND_MESSAGE,
        wanted: RequiredRights = NOTHING,
        *,
        host: str = HOST,
        encrypted: bool = False,
        version: int = 1,
        time_ms: int | None = None,
        secret: bytes = SECRET,
        key: str = "worker1",
        body: bytes | None = None,
        fields: dict[str, str] | None = None,
    ) -> Access:
        """A signed request; version 0 has no account, `fields` are set after signing."""
        command = Command(code, ext={}, body=body)
        if version == 1:
            sign_v1(command, key, secret)
        elif version == 2:
            self._nonces += 1
            sign_v2(command, key, secret, time_ms=self.now_ms if time_ms is None else time_ms, nonce=f"n{self._nonces}")
        command.ext |= fields or {}
        return Access(command, host, encrypted, lambda _: wanted)

    def decide(self, *args: Any, **more: Any) -> str:
        """The caller, or the text of the refusal."""
        try:
            return self.decisions.decide(self.request(*args, **more))
        except AccessDenied as error:
            return error.text


def on(resource: str, right: int) -> RequiredRights:
    return RequiredRights(resources=((resource, right),))


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        ({}, "worker1"),
        ({"version": 0}, "No accessKey is configured"),
        ({"key": "unknown"}, "No acl config for unknown"),
        ({"key": "u" * 255}, "No acl config for " + "u" * 255),
        ({"key": "u" * 256}, "No acl config for " + "u" * 255 + "..."),
        ({"secret": b"wrong"}, "Check signature failed for accessKey=worker1"),
        ({"version": 2}, "worker1"),
        ({"version": 2, "secret": b"wrong"}, "Check signature failed for accessKey=worker1"),
        ({"body": b"signed", "fields": {"topic": "added later"}}, "Check signature failed for accessKey=worker1"),
    ],
)
@pytest.mark.parametrize("compat", [False, True])
def test_caller_is_known_by_key_and_signature(request_: dict[str, Any], answer: str, compat: bool) -> None:
    assert Broker(compat=compat).decide(**request_) == answer


def test_refusal_has_the_text_of_apache() -> None:
    with pytest.raises(AccessDenied) as caught:
        Broker().decisions.decide(Broker().request(version=0))
    assert caught.value.code == ResponseCode.SYSTEM_ERROR and caught.value.text == "No accessKey is configured"
    assert caught.value.remark == (
        "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, "
        "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:663)"
    )


def test_unreadable_request_has_the_frame_of_apache() -> None:
    frame = "org.apache.rocketmq.acl.plain.PlainAccessValidator.parse(PlainAccessValidator.java:134)"
    assert AccessDenied("text", "parse").remark == f"org.apache.rocketmq.acl.common.AclException: text, {frame}"
    assert AccessDenied("text").remark == "org.apache.rocketmq.acl.common.AclException: text, saturnmq.acl"


@pytest.mark.parametrize(
    ("code", "host", "version", "compat", "answer"),
    [
        (21, HOST, 0, False, WHITE_LIST), (43, HOST, 0, False, WHITE_LIST), (45, HOST, 0, False, WHITE_LIST),
        (201, HOST, 0, False, WHITE_LIST),
        (21, "10.0.0.2", 0, False, "No accessKey is configured"),
        (10, HOST, 0, False, "No accessKey is configured"),
        (21, HOST, 1, False, "worker1"),  # an account decides about its own requests
        (10, HOST, 0, True, WHITE_LIST),
        (10, HOST, 1, True, WHITE_LIST),
        (10, "10.0.0.2", 0, True, "No accessKey is configured"),
    ],
)  # fmt: skip
def test_global_white_list_lets_read_tables_only(code: int, host: str, version: int, compat: bool, answer: str) -> None:
    assert Broker(compat=compat, white=HOST).decide(code, host=host, version=version) == answer


@pytest.mark.parametrize(
    ("white", "host", "secret", "compat", "answer"),
    [
        ("10.0.0.*", HOST, SECRET, False, "worker1"),
        ("10.0.0.*", HOST, b"wrong", False, "Check signature failed for accessKey=worker1"),
        ("10.0.1.*", HOST, SECRET, False, "Address 10.0.0.1 is not in whiteRemoteAddress of accessKey=worker1"),
        (" ", HOST, SECRET, False, "worker1"),
        ("10.0.0.*", HOST, b"wrong", True, "worker1"),  # as in 4.9.7: no signature is asked for
        ("10.0.1.*", HOST, SECRET, True, "worker1"),
        ("", HOST, b"wrong", True, "Check signature failed for accessKey=worker1"),
    ],
)
def test_address_list_of_an_account(white: str, host: str, secret: bytes, compat: bool, answer: str) -> None:
    broker = Broker(compat=compat)
    account = Account("worker1", SECRET, parse_rule(white))
    broker.decisions.rules = AccessRules({"worker1": account})
    assert broker.decide(host=host, secret=secret) == answer


def test_account_may_require_signatures_of_version_2() -> None:
    broker = Broker(signature_version=2)
    assert broker.decide(version=1) == "Signature version 2 is required for accessKey=worker1"
    assert broker.decide(version=2) == "worker1"


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "\u0661", "1" * 16])
def test_time_of_a_signature_must_be_milliseconds(text: str) -> None:
    broker = Broker()
    request = broker.request(version=0)
    request.command.ext |= {
        "AccessKey": "worker1",
        "SignatureVersion": "2",
        "SignatureTime": text,
        "SignatureNonce": "n",
    }
    if not text:
        del request.command.ext["SignatureTime"]
    request.command.ext["Signature"] = v2_signature(SECRET, request.command.code, request.command.ext, None)
    with pytest.raises(AccessDenied, match="SignatureTime of accessKey=worker1 must be Unix milliseconds"):
        broker.decisions.decide(request)


@pytest.mark.spec("SEC-10")
@pytest.mark.parametrize(
    ("difference_ms", "answer"),
    [
        (WINDOW_MS, "worker1"),
        (-WINDOW_MS, "worker1"),
        (
            WINDOW_MS + 1,
            "SignatureTime of accessKey=worker1 differs by 300001 ms from this broker's clock, at most 300000 are allowed",
        ),
        (
            -WINDOW_MS - 1,
            "SignatureTime of accessKey=worker1 differs by 300001 ms from this broker's clock, at most 300000 are allowed",
        ),
    ],
)
def test_time_of_a_signature_is_within_the_window(difference_ms: int, answer: str) -> None:
    broker = Broker()
    broker.now_ms += 2 * WINDOW_MS
    assert broker.decide(version=2, time_ms=broker.now_ms + difference_ms) == answer


def test_signature_made_before_the_start_is_refused() -> None:
    broker = Broker()
    assert broker.decide(version=2, time_ms=NOW) == "worker1"
    refusal = "SignatureTime of accessKey=worker1 is before the start of this broker; sign again"
    assert broker.decide(version=2, time_ms=NOW - 1) == refusal


def test_signature_is_used_once() -> None:
    broker = Broker()
    request = broker.request(version=2)
    assert broker.decisions.decide(request) == "worker1"
    with pytest.raises(AccessDenied, match="Signature of accessKey=worker1 was used before"):
        broker.decisions.decide(request)
    assert broker.decide(version=1) == broker.decide(version=1) == "worker1", "version 1 has no nonce"


@pytest.mark.parametrize(
    ("account", "wanted", "answer"),
    [
        ({}, on("T", PUB), "No default permission for topic:T"),
        ({"default_topic": PUB}, on("T", PUB), "worker1"),
        ({"default_topic": SUB}, on("T", PUB), "No default permission for topic:T"),
        ({"default_group": SUB}, on("%RETRY%g", SUB), "worker1"),
        ({"default_topic": SUB}, on("%RETRY%g", SUB), "No default permission for group:g"),
        ({"permissions": {"T": PUB}}, on("T", PUB), "worker1"),
        ({"permissions": {"T": DENY}, "default_topic": PUB}, on("T", PUB), "No default permission for topic:T"),
        (
            {"permissions": {"T": PUB, "U": SUB}},
            RequiredRights(resources=(("T", PUB), ("U", PUB))),
            "No default permission for topic:U",
        ),
        ({"admin": True}, on("T", PUB), "worker1"),
        ({"admin": True, "permissions": {"U": PUB}}, on("T", PUB), "No default permission for topic:T"),
        # Internal topics and requests without a topic need an entry of their own.
        ({"default_topic": PUB | SUB}, on("SCHEDULE_TOPIC_XXXX", SUB), "No default permission for topic:SCHEDULE_TOPIC_XXXX"),
        ({"default_topic": PUB | SUB}, on("", SUB), "No default permission for topic:"),
        ({"permissions": {"SCHEDULE_TOPIC_XXXX": SUB}}, on("SCHEDULE_TOPIC_XXXX", SUB), "worker1"),
        ({"permissions": {"T": SUB}, "default_topic": SUB}, on("SCHEDULE_TOPIC_XXXX", SUB),
         "No default permission for topic:SCHEDULE_TOPIC_XXXX"),
        ({}, NOTHING, "worker1"),
    ],
)  # fmt: skip
def test_rights_on_resources(account: dict[str, Any], wanted: RequiredRights, answer: str) -> None:
    assert Broker(**account).decide(wanted=wanted) == answer


def test_compatibility_mode_covers_internal_topics_by_the_default() -> None:
    assert Broker(compat=True, default_topic=SUB).decide(wanted=on("SCHEDULE_TOPIC_XXXX", SUB)) == "worker1"


@pytest.mark.parametrize(
    ("permissions", "line"), [({"T": SUB}, 610), ({"U": SUB}, 605), (None, 605)]
)  # of PlainPermissionManager.java: by the account's own entry, or by the default
def test_refused_right_names_the_frame_of_apache(permissions: dict[str, int] | None, line: int) -> None:
    broker = Broker(permissions=permissions)
    with pytest.raises(AccessDenied, match=rf"checkPerm\(PlainPermissionManager\.java:{line}\)$"):
        broker.decisions.decide(broker.request(wanted=on("T", PUB)))


PLAIN_REFUSED = (
    "Request code=17 of accessKey=worker1 needs TLS, signature version 2, or an address of aclPlainAdminAddresses"
)


@pytest.mark.parametrize(
    ("options", "request_", "answer"),
    [
        ({}, {"encrypted": True}, "Need admin permission for request code=17, but accessKey=worker1 is not"),
        ({"admin": True}, {}, PLAIN_REFUSED),
        ({"admin": True}, {"encrypted": True}, "worker1"),
        ({"admin": True}, {"version": 2}, "worker1"),
        ({"admin": True, "admin_from": HOST}, {}, "worker1"),
        ({"admin": True, "admin_from": "10.0.0.2"}, {}, PLAIN_REFUSED),
        ({"admin": True}, {"wanted": RequiredRights(admin=True)}, "worker1"),  # it only reads
        ({"admin": True, "compat": True}, {}, "worker1"),
        ({"compat": True}, {}, "Need admin permission for request code=17, but accessKey=worker1 is not"),
        ({"admin": True, "permissions": {"T": SUB}}, {"encrypted": True}, "worker1"),
    ],
)
def test_administrative_requests(options: dict[str, Any], request_: dict[str, Any], answer: str) -> None:
    more = {"wanted": ADMINISTRATIVE} | request_
    assert Broker(**options).decide(RequestCode.UPDATE_AND_CREATE_TOPIC, **more) == answer


def test_every_account_may_send_traces_within_a_quota() -> None:
    broker = Broker(trace=100)
    for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        assert broker.decide(code, TRACE, body=b"x" * 300) == "worker1"
    with pytest.raises(ResponseError) as caught:
        broker.decide(RequestCode.SEND_MESSAGE, TRACE, body=b"x" * 101)
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    assert caught.value.remark == "accessKey=worker1 has used up aclTraceBytesPerSecond=100 for RMQ_SYS_TRACE_TOPIC"
    broker.now_ms += 10
    assert broker.decide(RequestCode.SEND_MESSAGE, TRACE, body=b"x" * 101) == "worker1", "100 left and 1 more"
    assert broker.decide(RequestCode.SEND_MESSAGE, TRACE) == "worker1", "no body, no bytes"


def test_other_requests_need_a_right_on_the_trace_topic() -> None:
    refusal = "No default permission for topic:RMQ_SYS_TRACE_TOPIC"
    assert Broker(trace=100).decide(RequestCode.SEND_REPLY_MESSAGE, TRACE) == refusal
    assert Broker(trace=100).decide(wanted=on("RMQ_SYS_TRACE_TOPIC", SUB)) == refusal
    assert Broker(trace=100).decide(wanted=on("T", PUB)) == "No default permission for topic:T"


def test_right_on_the_trace_topic_has_no_quota() -> None:
    for options in ({"permissions": {"RMQ_SYS_TRACE_TOPIC": PUB}}, {"compat": True}):
        assert Broker(**options).decide(wanted=TRACE, body=b"x" * 1000) == "worker1", options
    both = RequiredRights(resources=(("RMQ_SYS_TRACE_TOPIC", PUB), ("T", PUB)))
    refusal = "No default permission for topic:T"
    assert Broker(permissions={"RMQ_SYS_TRACE_TOPIC": PUB}).decide(wanted=both) == refusal
