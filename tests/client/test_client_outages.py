"""Log lines about failures that repeat: one when they begin, one a minute, one when they end."""

from __future__ import annotations

from typing import Any

import pytest

from saturnmq import Client
from saturnmq.client.connection.outages import Outages


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outages(clock: Clock) -> Outages:
    return Outages(clock)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_outage_is_logged_at_its_beginning_each_minute_and_at_its_end(
    outages: Outages, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outages.failed("pull", "q0", "broker=b0", "refused", detail="queue_id=0")
    assert lines(caplog) == ["pull failed broker=b0 queue_id=0 error=refused"]
    for second in range(1, 121):
        clock.now = 1000.0 + second
        outages.failed("pull", "q0", "broker=b0", "refused")
        outages.failed("pull", "q1", "broker=b0", "timeout")
    assert lines(caplog) == [
        "pull still fails broker=b0 sources=2 failures=120 elapsed_s=60 error=refused",
        "pull still fails broker=b0 sources=2 failures=240 elapsed_s=120 error=refused",
    ]
    outages.succeeded("pull", "q0")
    assert lines(caplog) == [], "q1 still fails"
    outages.succeeded("pull", "q1")
    assert lines(caplog) == ["pull works again broker=b0 failures=241 elapsed_s=120"]
    outages.succeeded("pull", "q1")
    assert lines(caplog) == []


def test_outages_differ_by_work_and_by_subject(outages: Outages, caplog: pytest.LogCaptureFixture) -> None:
    outages.failed("pull", "q0", "broker=b0", "refused")
    outages.failed("offset store", "q0", "broker=b0", "refused")
    outages.failed("pull", "q9", "broker=b1", "refused")
    assert len(lines(caplog)) == 3
    outages.succeeded("offset store", "q0")
    assert lines(caplog) == ["offset store works again broker=b0 failures=1 elapsed_s=0"]
    outages.failed("pull", "q0", "broker=b0 topic=T code=17", "not exist")
    assert lines(caplog) == ["pull failed broker=b0 topic=T code=17 error=not exist"], "it belongs to one outage only"
    outages.succeeded("pull", "q0")
    assert lines(caplog) == ["pull works again broker=b0 topic=T code=17 failures=1 elapsed_s=0"]


def test_outages_that_come_and_go_are_summarised(
    outages: Outages, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(240):
        clock.now = 1000.0 + second
        outages.failed("pull", "q0", "broker=b0", "timeout")
        outages.succeeded("pull", "q0")
    assert len(lines(caplog)) == 8, "a beginning and an end each minute"


def test_forgotten_source_ends_its_outage_silently(outages: Outages, caplog: pytest.LogCaptureFixture) -> None:
    outages.failed("pull", "q0", "broker=b0", "timeout")
    outages.forget("pull", "q0")
    outages.forget("pull", "q0")
    assert len(lines(caplog)) == 1
    outages.succeeded("pull", "q0")
    assert lines(caplog) == []


async def silence(inbox: Any, seconds: float) -> None:
    """No message for some time of the virtual clock."""
    with pytest.raises(TimeoutError):
        await inbox.recv(timeout=seconds)


@pytest.mark.parametrize("is_deleted", [False, True], ids=["broker away", "topic deleted"])
async def test_consumer_logs_a_few_lines_a_minute_for_many_queues(
    cluster: Any, caplog: pytest.LogCaptureFixture, is_deleted: bool
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=64, write=64)
        c.broker.put("T", 0, b"x")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await (await inbox.recv(30)).ack()
            caplog.clear()
            if is_deleted:
                c.broker.script[11] = lambda command: command.reply(17, "topic[T] not exist")
            else:
                port = int(c.broker.address.rpartition(":")[2])
                await c.broker.stop()
            await silence(inbox, 150)
            during = lines(caplog)
            assert len(during) <= 20, during
            assert [line for line in during if line.startswith("pull still fails broker=b0")], during
            if is_deleted:
                del c.broker.script[11]
            else:
                again = type(c.broker)("b0")
                await again.start(port)
            await silence(inbox, 60)
            assert len([line for line in lines(caplog) if line.startswith("pull works again broker=b0")]) == 1
            if not is_deleted:
                await again.stop()
