"""The examples of docs/guide.md, each run separately against an embedded broker."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import saturnmq.sync
from saturnmq.broker import BrokerSettings
from saturnmq.testing import BrokerFixture

GUIDE = (Path(__file__).resolve().parent.parent.parent / "docs" / "guide.md").read_text(encoding="utf-8")
SETTINGS = BrokerSettings(property_filter_enable=True)
BLOCKS = re.findall(r"```python( sync)?\n(.*?)```", GUIDE, re.S)
SHARED = BLOCKS[0][1]


@pytest.mark.spec("UX-01", "TST-08")
@pytest.mark.saturn_settings(broker=SETTINGS)
@pytest.mark.parametrize("code", [body for kind, body in BLOCKS if not kind])
def test_guide_example_runs(code: str, capsys: pytest.CaptureFixture[str], saturn_broker: BrokerFixture) -> None:
    async def work() -> None:
        async with asyncio.timeout(60):
            names: dict[str, Any] = {"__name__": __name__}
            exec(SHARED, names)  # names that the guide does not import are undefined here too
            names["URL"] = saturn_broker.url
            exec("async def example():\n" + textwrap.indent(code, "    "), names)
            await names["example"]()

    asyncio.run(work())
    assert capsys.readouterr().err == ""


@pytest.mark.spec("API-31", "TST-08")
@pytest.mark.parametrize("code", [body for kind, body in BLOCKS if kind])
def test_guide_example_without_asyncio_runs(
    code: str, capsys: pytest.CaptureFixture[str], saturn_broker: BrokerFixture
) -> None:
    exec(code, {"Client": saturnmq.sync.Client, "URL": saturn_broker.url})
    assert capsys.readouterr().out.strip() == "0"


def test_guide_contains_examples() -> None:
    assert len(BLOCKS) >= 6
