"""Differential test of access control: plain requests that `saturnmq.hot` takes are allowed and refused as by the reference.

Two brokers with the same accounts get the same bytes. One takes what it can before it is decoded, compiled or interpreted; the
other decodes all. Answers, records, log lines with those of the audit, rejections, counters and callers are equal.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from protected import ACCOUNTS, ADMIN, USER, protected, topics, v1, v2, write_accounts
from recordedclient import RecordedClient
from wire import Clock, Wire

from hotways import hot_module
from saturnmq.broker.access_control import PLAIN_RESOURCES
from saturnmq.broker.requests.plain_requests import PlainRequests, plain_commits, plain_pulls
from saturnmq.broker.requests.plain_sends import PlainRules, plain_sends
from saturnmq.broker.requests.rights import COMPAT_NEEDS
from saturnmq.broker.requests.table import TABLE
from saturnmq.broker.requests.table_row import CALLER
from saturnmq.filter import sql, tags
from saturnmq.log_limit import LogLimit
from saturnmq.protocol.codes import TRACE_TOPIC, RequestCode
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.headers.send_fields import SEND_V1_BY_V2
from saturnmq.protocol.message import BatchItem, decode_record, encode_batch

V1, V2, BATCH = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
PULL, LITE_PULL = RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
CLEAN = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE  # of an administrator
UNKNOWN, LIMITED, CLOSED = ("stranger", "12345678"), ("limitedAdmin", "12345678"), ("elsewhere", "12345678")
ELSEWHERE = """  - accessKey: elsewhere
    secretKey: 12345678
    whiteRemoteAddress: 10.0.0.1
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
"""
CAUSED_BY_REQUESTS = (
    "saturnmq.audit",
    "saturnmq.net",
    "saturnmq.acl",
    "saturnmq.broker.state",
    "saturnmq.broker.access",
)
TOPICS = ("Both", "Read", "Write", "Never", "Other")
SEND = {
    "a": "producers", "b": "Both", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795246686100", "h": "0",
    "i": "UNIQ_KEY\x01ABC\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
FETCH = {
    "consumerGroup": "open", "topic": "Both", "queueId": "0", "queueOffset": "0", "maxMsgNums": "4", "sysFlag": "5",
    "commitOffset": "1", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip


@dataclass
class Side:
    """One of the two brokers and its client."""

    wire: Wire
    taken: dict[int, int] = field(default_factory=dict)

    def start(self, way: str) -> None:
        """way: compiled, interpreted, or decoded, how requests are read."""
        broker = self.wire.broker
        broker._server.request_seconds = broker.metrics.request_seconds
        broker._server.take_plain(None)
        if way != "decoded":
            grants = broker._access.grants
            assert grants is not None
            rules = PlainRules(broker.admission, None, broker._server.frame_limits, grants.admits)
            modules = [hot_module(name, way) for name in ("sends", "pulls", "commits")]
            sends = plain_sends(broker._send_context, rules, modules[0])
            pulls = plain_pulls(broker._pull_context, rules, modules[1])
            context = broker._all_routes[COMMIT].context
            commits = plain_commits(context, rules, modules[2])  # type: ignore[arg-type]
            broker._server.take_plain(Counting(sends, (pulls, commits), self.taken))
        self.client = RecordedClient(broker)

    def reconnect(self) -> None:
        self.client.end()
        self.client = RecordedClient(self.wire.broker)

    def state(self) -> dict[str, Any]:
        broker, connection = self.wire.broker, self.client.connection
        return {
            "rejections": dict(broker.rejections.counts),
            "requests": {code: sum(times.counts) for code, times in (broker.metrics.request_seconds or {}).items()},
            "caller": connection.attributes.get(CALLER), "signed": connection.signed, "closed": connection.closed,
            "end": broker.store.log.end, "offsets": {topic: broker.offsets.of(topic, "open") for topic in TOPICS},
            "put": (broker.stats.put_messages, broker.stats.put_bytes), "found": broker.stats.get_found,
        }  # fmt: skip


class Counting(PlainRequests):
    """Plain requests, counted by code."""

    def __init__(self, sends: Any, kinds: tuple[Any, ...], taken: dict[int, int]) -> None:
        super().__init__(sends, kinds)
        self._taken = taken

    def finish(self) -> dict[int, int]:
        counts = super().finish()
        for code, number in counts.items():
            self._taken[code] = self._taken.get(code, 0) + number
        return counts


@asynccontextmanager
async def sides(folder: Path, way: str, **settings: Any) -> AsyncIterator[list[Side]]:
    clock, text = Clock(), ACCOUNTS + ELSEWHERE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogLimit, "suppressed", lambda *_: 0)  # else a line depends on the time of the one before
        async with (
            protected(folder / "a", text, clock=clock, **settings) as a,
            protected(folder / "b", text, clock=clock, **settings) as b,
        ):
            pair = [Side(a), Side(b)]
            for side, each_way in zip(pair, (way, "decoded"), strict=True):
                await topics(side.wire, *TOPICS)
                assert side.wire.broker.groups.find("open", "") is not None
                assert side.wire.broker.groups.find("closed", "") is not None
                side.start(each_way)
            try:
                yield pair
            finally:
                for side in pair:
                    side.client.end()


def records(w: Wire) -> list[Any]:
    found = []
    store = w.broker.store
    for topic, queue_id in sorted(store.topic_queues()):
        for offset in range(store.max_offset(topic, queue_id)):
            data = store.read_record(store.physical_offset(topic, queue_id, offset)) or b""
            m = decode_record(data, check_crc=True)
            found.append(
                (topic, queue_id, m.physical_offset, m.body, m.properties_raw, m.born_host, m.store_timestamp_ms)
            )
    return found


def shown(answer: Command, w: Wire) -> dict[str, Any]:
    """A response without what differs between the two brokers."""
    ext = {name: value for name, value in answer.ext.items() if name != "msgId"}
    remark = (answer.remark or "").replace(w.broker.advertised_address, "ADDRESS")
    body = bytes(answer.body or b"").replace(w.broker.identity.store_host.ip.encode(), b"")
    return {"code": answer.code, "opaque": answer.opaque, "serialization": answer.serialization, "remark": remark,
            "ext": ext, "bytes": len(body)}  # fmt: skip


async def assert_same(pair: list[Side], pieces: list[bytes], caplog: pytest.LogCaptureFixture) -> list[Command]:
    """Hand the same bytes to both brokers; everything that is visible is equal. Returns the responses of the second."""
    views = []
    answers: list[Command] = []
    for side in pair:
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="saturnmq"):
            answers = await side.client.send(pieces)
        answers.sort(key=lambda answer: answer.opaque)  # the answer to what waits for a file may come later
        lines = [(r.name, r.levelname, r.getMessage()) for r in caplog.records if r.name.startswith(CAUSED_BY_REQUESTS)]
        lines = [(name, level, re.sub(r" time=\S+", "", text)) for name, level, text in lines]
        address, root = side.wire.broker.advertised_address, str(side.wire.broker.store.settings.root)
        lines = [(name, level, text.replace(address, "ADDRESS").replace(root, "ROOT")) for name, level, text in lines]
        # The audit writes when a request ends, and some wait for a file meanwhile: among the lines of others it has no fixed place.
        audit = sorted(line for line in lines if line[0] == "saturnmq.audit")
        lines = [line for line in lines if line[0] != "saturnmq.audit"] + audit
        views.append([[shown(answer, side.wire) for answer in answers], lines, side.state()])
    assert views[0] == views[1]
    return answers


def request(code: int, opaque: int, fields: dict[str, str], **how: Any) -> Command:
    ext = dict(SEND if code in (V1, V2, BATCH) else FETCH) | fields
    if code == COMMIT:
        ext = {
            name: value for name, value in ext.items() if name in ("consumerGroup", "topic", "queueId", "commitOffset")
        }
    if code == V1:
        ext = {SEND_V1_BY_V2.get(name, name): value for name, value in ext.items()}
    if code in (V1, V2, BATCH):
        how.setdefault("body", b"body")
    return Command(code, ext=ext, opaque=opaque, language=0, **how)


def signed(command: Command, account: tuple[str, str]) -> bytes:
    v1(account)(command)
    return encode_frame(command)


async def change_account(pair: list[Side], text: str) -> None:
    """Write the account files of both brokers and let them be read."""
    for name, side in zip("ab", pair, strict=True):
        home = Path(side.wire.broker.settings.acl_home)
        assert home.name == name
        write_accounts(home, text)
        await side.wire.broker._access.reload()


WAYS = pytest.mark.parametrize("way", ["compiled", "interpreted"])


@pytest.mark.parametrize("needs", [{code: route.needs for code, route in TABLE.items()}, COMPAT_NEEDS])
def test_plain_requests_name_all_resources_that_they_need(needs: dict[int, Any]) -> None:
    for code, names in PLAIN_RESOURCES.items():
        assert {need.field for need in needs.get(code, ())} <= set(names)


@WAYS
@pytest.mark.spec("FUZ-04")
async def test_arbitrary_signed_requests_equal_reference(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(33)
    async with sides(tmp_path, way) as pair:
        sign2 = v2(USER, pair[0].wire.broker._clock_ms)
        for number in range(400):
            if number % 100 == 0:
                for side in pair:
                    side.reconnect()
            frames = []
            for opaque in range(random.randint(1, 4)):
                account = random.choice([*[USER] * 9, ADMIN, LIMITED, UNKNOWN, CLOSED])
                code = random.choice([V1, V2, V2, BATCH, PULL, PULL, LITE_PULL, LITE_PULL, COMMIT, COMMIT, CLEAN])
                topic = random.choice([*TOPICS, *["Both"] * 14, TRACE_TOPIC, "SCHEDULE_TOPIC_XXXX"])
                how: dict[str, Any] = {"serialization": random.choice(list(Serialization))}
                if code == BATCH:
                    how["body"] = encode_batch([BatchItem(b"one"), BatchItem(b"two", b"TAGS\x01a")])
                fields = {"b": topic} if code in (V1, V2, BATCH) else {"topic": topic}
                if code == COMMIT:
                    fields["commitOffset"] = str(random.randrange(9))
                if code in (PULL, LITE_PULL, COMMIT):
                    fields["consumerGroup"] = random.choice([*["open"] * 6, "closed"])
                    how["body"] = None
                command = request(code, opaque, fields, **how)
                kind = random.randrange(20)
                if kind == 0:
                    frame = encode_frame(command)
                elif kind == 1:
                    sign2(command)
                    frame = encode_frame(command)
                else:
                    if kind == 2:
                        command.ext["SecurityToken"] = "token"
                    if kind == 3:
                        command.flag = 2
                    frame = signed(command, account)
                    if kind == 4:  # changed after it was signed
                        at = random.randrange(8, len(frame))
                        frame = frame[:at] + bytes((frame[at] ^ 1,)) + frame[at + 1 :]
                    elif kind == 5:
                        command.ext[random.choice(sorted(command.ext))] = "1"
                        frame = encode_frame(command)
                    elif kind == 6:
                        frame = frame.replace(b'"AccessKey":', b'"AccessKey":"%b","AccessKey":' % USER[0].encode())
                        frame = (len(frame) - 4).to_bytes(4, "big") + frame[4:]
                frames.append(frame)
            data = b"".join(frames)
            cut = random.randrange(len(data)) if random.random() < 0.2 else 0
            await assert_same(pair, [data[:cut], data[cut:]], caplog)
            if pair[0].client.connection.closed:
                for side in pair:
                    side.reconnect()
        assert records(pair[0].wire) == records(pair[1].wire)
        assert all(pair[0].taken.get(code, 0) > 3 for code in (V1, V2, BATCH, PULL, LITE_PULL, COMMIT)), pair[0].taken


@WAYS
@pytest.mark.spec("FUZ-04")
@pytest.mark.parametrize("code", [V2, BATCH, PULL, COMMIT])
async def test_changed_rights_hold_for_the_next_request_of_a_connection(
    code: int, way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    how: dict[str, Any] = {"body": encode_batch([BatchItem(b"one")])} if code == BATCH else {}
    texts = {
        "rights": ACCOUNTS.replace("Both=PUB|SUB", "Both=DENY"),
        "secret": ACCOUNTS.replace("secretKey: 87654321", "secretKey: 11111111"),
        "address": ACCOUNTS.replace("whiteRemoteAddress:\n", "whiteRemoteAddress: 10.0.0.1\n", 1),
        "deleted": ACCOUNTS.replace("accessKey: RocketMQ\n", "accessKey: AnotherOne\n"),
    }
    async with sides(tmp_path, way) as pair:
        await assert_same(pair, [signed(request(V2, 1, {}), USER)], caplog)
        taken = pair[0].taken
        for text in texts.values():
            for number in range(3):
                answers = await assert_same(pair, [signed(request(code, number, {}, **how), USER)], caplog)
                assert [answer.code for answer in answers] == [0]
            before = dict(taken)
            assert before[code] >= 2
            await change_account(pair, text)
            answers = await assert_same(pair, [signed(request(code, 9, {}, **how), USER)], caplog)
            assert [answer.code for answer in answers] == [1] and taken == before
            await change_account(pair, ACCOUNTS)


@WAYS
@pytest.mark.spec("FUZ-04")
async def test_only_signature_and_resources_that_were_allowed_are_taken(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sides(tmp_path, way) as pair:
        taken = pair[0].taken
        frame = signed(request(V2, 1, {}), USER)
        for _ in range(3):
            await assert_same(pair, [frame], caplog)
        assert taken == {V2: 2}  # the first of its connection was decided about
        for odd in (
            encode_frame(request(V2, 2, {})),
            signed(request(V2, 2, {}), UNKNOWN),
            signed(request(V2, 2, {}), (USER[0], "87654322")),
            signed(request(V2, 2, {"b": "Read"}), USER),
            signed(request(V2, 2, {"b": "Other"}), USER),
            signed(request(PULL, 2, {"consumerGroup": "closed"}), USER),
        ):
            answers = await assert_same(pair, [odd], caplog)
            assert [answer.code for answer in answers] == [1] and taken == {V2: 2}
        for side in pair:
            side.reconnect()
        await assert_same(pair, [frame], caplog)
        assert taken == {V2: 2}  # another connection


@WAYS
async def test_filter_of_a_pull_that_is_not_allowed_is_not_parsed(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Parsing takes milliseconds, and a stranger's filters would take the places of the clients' in the caches."""

    def parsed() -> tuple[int, int]:
        return tags._parsed.cache_info().misses, sql._compiled.cache_info().misses

    async with sides(tmp_path, way) as pair:
        await assert_same(pair, [signed(request(V2, 1, {}), USER)], caplog)
        before = parsed()
        for number in range(4):
            for fields in (
                {"subscription": f"stranger{number}{way}"},
                {"subscription": f"a{number}{way} = 1 or b = 2", "expressionType": "SQL92"},
            ):
                unsigned = request(PULL, number, fields)
                for frame in (encode_frame(unsigned), signed(unsigned, (USER[0], "87654322"))):
                    answers = await assert_same(pair, [frame], caplog)
                    assert [answer.code for answer in answers] == [1] and parsed() == before
        await assert_same(pair, [signed(request(PULL, 9, {"subscription": f"own{way}"}), USER)], caplog)
        assert parsed()[0] == before[0] + 1


@WAYS
@pytest.mark.spec("FUZ-04")
async def test_sends_to_the_trace_topic_use_its_quota(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sides(tmp_path, way, acl_trace_bytes=10) as pair:
        codes = []
        for number in range(40):
            answers = await assert_same(pair, [signed(request(V2, number, {"b": TRACE_TOPIC}), USER)], caplog)
            codes += [answer.code for answer in answers]
        assert codes.count(0) == 25 and codes[-1] == 2


@WAYS
@pytest.mark.parametrize("white", ["127.0.0.1", "10.0.0.1"])
async def test_compatibility_mode_equals_reference(
    white: str, way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sides(tmp_path, way, acl_compat=True) as pair:
        await change_account(
            pair, ACCOUNTS.replace("globalWhiteRemoteAddresses: []", f"globalWhiteRemoteAddresses: [{white}]")
        )
        for number, (code, account) in enumerate(
            (c, a) for c in (V2, PULL, V2, PULL) for a in (USER, ADMIN, UNKNOWN, USER)
        ):
            for topic in ("Both", "Other"):
                fields = {"b": topic} if code == V2 else {"topic": topic}
                await assert_same(pair, [signed(request(code, number, fields), account)], caplog)
        assert bool(pair[0].taken) == (white == "10.0.0.1")


@WAYS
async def test_grants_of_a_connection_are_bounded(way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with sides(tmp_path, way) as pair:
        for number in range(600):
            await assert_same(pair, [signed(request(PULL, 1, {"topic": f"T{number}"}), ADMIN)], caplog)
        rules, granted = pair[0].client.connection.attributes["acl_grants"]  # type: ignore[misc]
        assert rules is pair[0].wire.broker._access.plain_validator.rules and 0 < len(granted) <= 256
