"""Delays that a sender asks for."""
# ruff: noqa: SIM117 - the cluster, the client and what is made from it are three steps

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from saturnmq import Client, MessageRefused, Unsupported
from saturnmq.client.delays import LEVEL_SECONDS, level_of
from saturnmq.protocol.message import decode_properties
from saturnmq.testing import EmbeddedBroker

Run = Callable[[Callable[[], Any]], Any]


@pytest.mark.spec("API-13", "DLY-01")
@pytest.mark.parametrize(
    ("delay", "level"),
    [(timedelta(seconds=1), 1), (10, 3), (10.0, 3), (timedelta(minutes=30), 16), (timedelta(hours=2), 18), (0, 0)],
)
def test_a_delay_of_a_level_is_that_level(delay: Any, level: int) -> None:
    assert level_of(delay, None, 0) == level
    assert level_of(None, None, 7) == 7
    assert level_of(None, None, 0) == 0
    assert len(LEVEL_SECONDS) == 18


@pytest.mark.spec("API-13")
@pytest.mark.parametrize(
    ("delay", "words"),
    [(2, "the nearest are 1 s and 5 s"), (0.5, "the nearest are 1 s"), (timedelta(days=1), "the nearest are 7200 s")],
)
def test_any_other_delay_is_refused_with_the_nearest_levels(delay: Any, words: str) -> None:
    with pytest.raises(Unsupported) as caught:
        level_of(delay, None, 0)
    assert str(caught.value).endswith(words)


@pytest.mark.spec("API-13")
@pytest.mark.parametrize(
    ("delay", "at", "level", "words"),
    [
        (1, None, 2, "one of delay"),
        (1, datetime.now(UTC), 0, "one of delay"),
        (-1, None, 0, "not below 0"),
        (float("nan"), None, 0, "not below 0"),
        (float("inf"), None, 0, "not below 0"),
        ("1s", None, 0, "timedelta or seconds"),
        (True, None, 0, "timedelta or seconds"),
        (None, None, -1, "delay_level is -1"),
        (None, None, True, "delay_level is True"),
        (None, datetime(2030, 1, 1), 0, "time zone"),
    ],
)
def test_what_means_nothing_is_refused(delay: Any, at: Any, level: Any, words: str) -> None:
    with pytest.raises(MessageRefused, match=words):
        level_of(delay, at, level)


@pytest.mark.spec("API-09", "API-13")
def test_delay_is_a_property_on_the_wire_and_nothing_leaves_for_an_unsupported_one(run: Run, cluster: Any) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
            with pytest.raises(Unsupported):
                await out.send("T", b"x", delay=3)
            with pytest.raises(Unsupported):
                await out.send_oneway("T", b"x", deliver_at=datetime.now(UTC) + timedelta(days=1))
            assert c.broker.of(310) == []
            await out.send("T", b"x", delay=timedelta(seconds=30), tag="t")
            await out.send_oneway("T", b"x", delay_level=2)
            await out.send("T", b"x")
            await c.broker.wait_for(310, 3)
            sent = [decode_properties(command.ext["i"]).get("DELAY") for command in c.broker.of(310)]
            assert sorted(sent, key=str) == ["2", "4", None]

    run(work)


@pytest.mark.spec("API-13", "API-21", "DLY-04")
def test_a_delayed_message_arrives_after_its_delay_and_never_early(run: Run) -> None:
    async def work() -> None:
        async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("g") as out:
            async with client.consumer("readers", start="first") as inbox:
                await inbox.subscribe("Late")
                await out.send("Late", b"later", delay=1)
                await out.send("Late", b"now")
                first, second = await inbox.recv(30), await inbox.recv(30)
                assert (first.body, second.body) == (b"now", b"later")
                waited = second.stored_at - second.born_at
                assert timedelta(milliseconds=999) <= waited < timedelta(seconds=3)
                await first.ack()
                await second.retry(timedelta(seconds=1))
                again = await inbox.recv(30)
                assert (again.body, again.attempt) == (b"later", 2)
                await again.ack()

    run(work)
