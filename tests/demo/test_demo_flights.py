"""The demo's parts that need no Spark: the data set, sending and consuming against a real broker, and the final comparison."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

from saturnmq.testing import EmbeddedBroker

SCRIPT = Path(__file__).resolve().parents[2] / "demo" / "flights.py"
ROWS = 1000


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with the first flights of the data set only."""
    spec = importlib.util.spec_from_file_location("demo_flights", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo_flights", module)  # dataclasses look it up
    spec.loader.exec_module(module)
    whole = module.flights
    monkeypatch.setattr(module, "flights", lambda: islice(whole(), ROWS))
    return module


def test_flights_are_sent_and_consumed_once(demo: ModuleType) -> None:
    outcome = demo.Outcome()

    async def work() -> None:
        async with EmbeddedBroker() as broker:
            await demo.produce(broker.name_servers, outcome)
            await demo.consume(broker.name_servers, outcome)

    asyncio.run(work())
    assert outcome.flights == outcome.sent == ROWS and sum(outcome.expected.values()) == ROWS
    assert sorted(outcome.consumed) == list(range(ROWS)) and outcome.lag == 0
    assert sum(outcome.by_member.values()) == ROWS and set(outcome.seconds) == {"send", "consume"}
    assert all("spark" in problem for problem in demo.problems(outcome)), "only the export is missing"


def complete(demo: ModuleType) -> object:
    return demo.Outcome(
        flights=3, sent=3, consumed=[2, 0, 1], lag=0, spark_rows=3, spark_ids=3, spark_low=0, spark_high=2,
        carriers={"AA": 2, "UA": 1}, expected=Counter(["AA", "UA", "AA"]),
    )  # fmt: skip


def test_complete_run_has_no_problems(demo: ModuleType) -> None:
    assert demo.problems(complete(demo)) == []


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("sent", 2, "3 flights, 2 sent"),
        ("consumed", [0, 2, 2, 7], "consumed: 1 missing, 1 doubled, 1 unknown"),
        ("spark_rows", 4, "spark: 4 rows, 3 distinct ids, from 0 to 2"),
        ("spark_high", 3, "spark: 3 rows, 3 distinct ids, from 0 to 3"),
        ("carriers", {"AA": 3}, "spark: rows per carrier differ from the data set"),
        ("lag", 1, "group flight-counters has a lag of 1"),
    ],
)
def test_each_loss_and_repetition_is_a_problem(demo: ModuleType, field: str, value: object, text: str) -> None:
    outcome = complete(demo)
    setattr(outcome, field, value)
    assert demo.problems(outcome) == [text]


def test_final_tables_show_counts_and_problems(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = complete(demo)
    facts = {"namesrv": "127.0.0.1:1", "broker": "127.0.0.1:2", "loop": "asyncio"}
    demo.show(outcome, facts, tmp_path, [])
    assert "arrived exactly once" in capsys.readouterr().out
    demo.show(outcome, facts, tmp_path, ["spark: 4 rows"])
    shown = capsys.readouterr().out
    assert "wrong: spark: 4 rows" in shown and "exactly once" not in shown
