"""Questions to several brokers for one page: which brokers, and one deadline for all."""

from __future__ import annotations

import asyncio

import pytest

from saturnmq.admin.survey import BrokerState, Survey
from saturnmq.console.asking import AT_ONCE, PAGE_SECONDS, masters_of, within
from saturnmq.console.state import View
from saturnmq.errors import CallTimeout
from saturnmq.protocol.errors import ConfigError


async def passed(seconds: float) -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, event.set)
    await event.wait()


def test_only_masters_of_the_cluster_with_the_names_are_asked() -> None:
    brokers = [
        BrokerState("C", "a", 0, "a:1", {}),
        BrokerState("C", "a", 1, "a-slave:1", {}),
        BrokerState("C", "b", 0, "b:1", {}, "no answer"),
        BrokerState("C", "b", 1, "b-slave:1", {}, "no answer either"),
        BrokerState("C", "c", 0, "c:1", {}),
        BrokerState("D", "a", 0, "d:1", {}),
        BrokerState("D", "b", 0, "d:2", {}, "no answer"),
    ]
    view = View(Survey(brokers, {}, {}, {}), 0.0)
    assert masters_of(view, "C", iter("ab")) == (["a:1"], {"b:1": "no answer"})
    assert masters_of(view, "E", "ab") == ([], {})


async def test_answers_and_errors_come_by_name() -> None:
    async def ask(name: str) -> str:
        if name == "bad":
            raise ConfigError("refused")
        return name.upper()

    answers = await within(["a", "bad", "a", "b"], ask)
    assert {name: str(answer) for name, answer in answers.items()} == {"a": "A", "bad": "refused", "b": "B"}
    assert await within([], ask) == {}


async def test_all_questions_together_have_one_deadline() -> None:
    """What is late has an error that names the time, and no question goes on behind it."""
    cancelled: list[str] = []

    async def ask(name: str) -> str:
        try:
            await passed(0.6 if name == "quick" else 60)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise
        return name

    loop = asyncio.get_running_loop()
    begin = loop.time()
    answers = await within(["quick", "hangs", "hangs too"], ask)
    assert loop.time() - begin == pytest.approx(PAGE_SECONDS, abs=0.1)
    late = answers["hangs"]
    assert answers["quick"] == "quick" and isinstance(late, CallTimeout)
    assert late.message == "no response within 0.7 s" and isinstance(answers["hangs too"], CallTimeout)
    assert sorted(cancelled) == ["hangs", "hangs too"]


async def test_questions_at_once_are_limited() -> None:
    running, most = 0, 0

    async def ask(name: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await passed(0.1)
        running -= 1

    await within([str(number) for number in range(2 * AT_ONCE)], ask)
    assert most == AT_ONCE == 32
