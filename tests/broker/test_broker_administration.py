"""Administrative requests without access control: served from adminAddresses only, and written to the audit log."""

from __future__ import annotations

import logging

import pytest
from wire import run, wire

from saturnmq.broker import BrokerSettings
from saturnmq.broker.requests.table import ROUTES
from saturnmq.config.settings import load
from saturnmq.protocol.bodies import SubscriptionGroupConfig
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError

ELSEWHERE = "127.0.0.2"  # an address that the test's own connections do not have
ADMINISTRATIVE = {17, 25, 200, 207, 215, 222, 306, 314, 316, 323, 329}
TOPIC = {
    "topic": "New",
    "defaultTopic": "",
    "readQueueNums": 1,
    "writeQueueNums": 1,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "saturnmq.audit"]


def test_administrative_codes_are_those_of_the_specification() -> None:
    accounts = {50, 51, 52, 53, 54}
    assert {int(route.code) for route in ROUTES if route.administrative} == ADMINISTRATIVE | accounts


@pytest.mark.spec("SEC-20", "UX-12")
def test_administrative_requests_from_elsewhere_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    assert BrokerSettings().admin_addresses == "127.*.*.*,::1"

    async def work() -> None:
        async with wire(admin_addresses=ELSEWHERE) as w:
            await w.send("Kept")
            before = dict(w.broker.topics.table), dict(w.broker.groups.table)
            for code in sorted(ADMINISTRATIVE):
                answer = await w.call(code, b'{"groupName":"G"}', **TOPIC | {"topic": "Kept"})
                assert answer.code == 16, code
                assert "adminAddresses=127.0.0.2" in (answer.remark or ""), code
            assert (dict(w.broker.topics.table), dict(w.broker.groups.table)) == before
            # An honest client beside it, and the requests of consumers that change offsets.
            assert (await w.send("Kept")).code == 0
            fields = {"topic": "Kept", "consumerGroup": "G", "queueId": 0, "commitOffset": 1}
            assert (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)).code == 0
            assert (await w.heartbeat("G", "Kept")).code == 0

    run(work)
    written = lines(caplog)
    assert len(written) == 10, "rejections of an address are limited to 10 lines a minute"
    assert all('result="refused: ' in line and "account=- peer=127.0.0.1:" in line for line in written)


@pytest.mark.spec("SEC-20")
def test_every_administrative_request_has_an_audit_line(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with wire() as w:
            assert (await w.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **TOPIC)).code == 0
            assert (await w.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **TOPIC | {"topic": "a b"})).code == 1
            assert (await w.call(RequestCode.DELETE_TOPIC_IN_BROKER)).code == 1, "a missing field"
            group = SubscriptionGroupConfig("G").encode()
            assert (await w.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)).code == 0
            assert (await w.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0

    logging.getLogger("saturnmq").setLevel(logging.ERROR)
    try:
        run(work)
    finally:
        logging.getLogger("saturnmq").setLevel(logging.NOTSET)
    written = lines(caplog)
    assert [line.split(" name=")[1].split(" ")[0] for line in written] == [
        "UPDATE_AND_CREATE_TOPIC", "UPDATE_AND_CREATE_TOPIC", "DELETE_TOPIC_IN_BROKER",
        "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "CLEAN_UNUSED_TOPIC",
    ]  # fmt: skip
    assert [line.split(" result=")[1].split(" suppressed")[0].partition(":")[0] for line in written] == [
        "ok",
        '"code 1',
        '"MissingField',
        "ok",
        "ok",
    ]
    assert "topic=New" in written[0] and "code=17" in written[0] and "time=20" in written[0]
    assert '\\"groupName\\":\\"G\\"' in written[3]


@pytest.mark.spec("SEC-20")
def test_text_of_a_request_cannot_forge_audit_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with wire() as w:
            fields = TOPIC | {
                "topic": "T\nadmin request account=root result=ok",
                "x\nadmin request": "1",
                "secretKey": "hush",
            }
            assert (await w.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)).code == 1

    run(work)
    (line,) = lines(caplog)
    assert "\n" not in line and "hush" not in line
    assert line.split(" target=")[1].startswith('"'), (
        "values with blanks are quoted: they cannot be read as fields of the line"
    )


def test_admin_addresses_that_are_none_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"adminAddresses=10\.0\.0\.0/8"):
        load(BrokerSettings, ("file", {"adminAddresses": "10.0.0.0/8"}))
    assert load(BrokerSettings, ("file", {"adminAddresses": "10.0.*.*,127.0.0.1"})).settings.admin_addresses
