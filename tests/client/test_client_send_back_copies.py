"""Copies that a consumer sends when its broker takes no message back: how many at a time, and what they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.client.consumer.send_back import DEAD_LETTER, EXACT_DELAY_FIELD, REASON_PROPERTY, SendBack
from saturnmq.client.producer.send_request import Prepared
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from waiting import until

Run = Callable[[Callable[[], Any]], Any]
AT_A_TIME = 64


async def test_copies_are_sent_64_at_a_time(cluster: Any) -> None:
    """A broker that takes no message back is not sent hundreds of copies at once either."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", c.route(read=1, write=1))
        c.add("%RETRY%g", c.route(read=1, write=1))
        for number in range(AT_A_TIME + 10):
            c.broker.put("T", 0, b"%d" % number)
        c.broker.script[36] = lambda command: command.reply(1, "no")
        answers = asyncio.Semaphore(0)
        open_now = most = 0

        async def late(command: Command) -> Command:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            await answers.acquire()
            open_now -= 1
            return c.broker.on_310(command)  # type: ignore[no-any-return]

        c.broker.script[310] = late
        async with client.consumer("g", start="first", prefetch=1000, max_times=5) as inbox:
            await inbox.subscribe("T")
            messages = [await inbox.recv(30) for _ in range(AT_A_TIME + 10)]
            settling = [asyncio.create_task(message.retry()) for message in messages]
            await until(
                lambda: len(c.broker.of(36)) == AT_A_TIME + 10 and open_now >= AT_A_TIME, 3, why=lambda: open_now
            )
            for _ in range(AT_A_TIME + 10):
                answers.release()
            await asyncio.gather(*settling)
            assert (most, open_now) == (AT_A_TIME, 0)
            bodies = sorted(int(command.body) for command in c.broker.of(310))
            assert bodies == list(range(AT_A_TIME + 10)), "each exactly once"


def taken(**fields: Any) -> Any:
    record = SimpleNamespace(
        topic="T", physical_offset=7, body=b"b", flag=3, sys_flag=0x7FF, reconsume_times=4,
        properties={"k": "v", "DELAY": "9", "WAIT": "false"},
    )  # fmt: skip
    vars(record).update(fields)
    return SimpleNamespace(record=record, queue=MessageQueue("T", "b0", 1), message_id="ID", offset_message_id="OFFSET")


def recording(*answers: BaseException | None) -> tuple[SendBack, list[Any]]:
    """A SendBack and what it sent: requests to the master, of which some fail, and copies."""
    sent: list[Any] = []
    failures = iter(answers)

    async def master_address(topic: str, broker: str) -> str:
        return f"{topic}@{broker}"

    async def call_broker(address: str, command: Command, timeout_ms: int, *, topic: str) -> None:
        sent.append((address, command.code, dict(command.ext), timeout_ms, topic))
        if (failure := next(failures, None)) is not None:
            raise failure

    async def send_prepared(prepared: Prepared, *, timeout: float) -> None:
        sent.append((prepared.topic, prepared.body, prepared.flag, prepared.sys_flag, timeout))
        sent.append(dict(pair.split("\x01") for pair in prepared.properties.split("\x02")))

    core: Any = SimpleNamespace(
        master_address=master_address,
        call_broker=call_broker,
        timer_limits=SimpleNamespace(limit_of=lambda address: 5000),
    )
    back: Any = SendBack.__new__(SendBack)
    back._core, back._group, back.max_times = core, "g", 16
    back._inner = SimpleNamespace(send_prepared=send_prepared)
    return back, sent


@pytest.mark.parametrize(
    ("after_s", "exact"),
    [(None, None), (0.0001, "1"), (4.0, "4000"), (5.0, None), (5.001, None), (4.9991, "5000"), (1.0, None)],
)
async def test_message_is_sent_back_with_its_place_and_its_delay(after_s: float | None, exact: str | None) -> None:
    """An exact delay goes with what is no level, up to the limit of the broker."""
    back, sent = recording()
    after = timedelta(seconds=after_s) if after_s is not None else None
    await back.send(taken(), 3, "why", after)
    ((address, code, ext, timeout_ms, topic),) = sent
    assert (address, code, timeout_ms, topic) == ("T@b0", 36, 5000, "T")
    assert ext.pop(EXACT_DELAY_FIELD, None) == exact
    assert ext == {
        "offset": "7", "group": "g", "delayLevel": "3", "originMsgId": "ID", "originTopic": "T", "unitMode": "false",
        "maxReconsumeTimes": "16", "bname": "b0",
    }  # fmt: skip


@pytest.mark.parametrize(("level", "delay"), [(0, "7"), (2, "2")])
async def test_copy_has_the_delay_and_the_count_of_its_next_attempt(level: int, delay: str) -> None:
    back, sent = recording(SaturnError("no"))
    await back.send(taken(properties={"k": "v", "RETRY_TOPIC": "first", "ORIGIN_MESSAGE_ID": "root"}), level, "why")
    request, copy, properties = sent
    assert request[2]["originTopic"] == "first"
    assert copy == ("%RETRY%g", b"b", 3, 0x701, 5.0)
    assert properties == {
        "k": "v", "RETRY_TOPIC": "first", "ORIGIN_MESSAGE_ID": "root", "RECONSUME_TIME": "5", "DELAY": delay,
        "MAX_RECONSUME_TIMES": "16",
    }  # fmt: skip


async def test_dead_letter_with_a_reason_is_a_copy_whose_retries_are_used_up() -> None:
    back, sent = recording()
    await back.send(taken(properties={}), DEAD_LETTER, "a\x01b\x02" + "c" * 2000)
    await back.dead_letter(taken(properties={}))
    plain = {"ORIGIN_MESSAGE_ID": "OFFSET", "RETRY_TOPIC": "T", "RECONSUME_TIME": "5", "MAX_RECONSUME_TIMES": "0"}
    assert sent[1::2] == [plain | {REASON_PROPERTY: "a b " + "c" * 1020}, plain]
    await back.send(taken(), DEAD_LETTER)
    assert sent[-1][1:3][0] == 36, "without a reason the broker makes it one"
