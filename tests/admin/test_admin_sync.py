"""saturnmq.admin.sync: the async classes with blocking calls, and the examples of docs/admin.md."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import saturnmq.admin
from saturnmq.admin import sync
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.testing import SyncEmbeddedBroker

# Async iterators, what returns an object of asyncio, and what needs no connection.
WITHOUT = {
    "groups": {"topics_of"},
    "messages": {"puller", "timed_sends", "timed_sends_in_turn"},
}
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[SyncEmbeddedBroker]:
    with SyncEmbeddedBroker() as started:
        yield started


def methods(one: Any) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(type(one), callable) if not name.startswith("_")}


@pytest.mark.spec("ADM-09")
def test_every_operation_exists_without_await() -> None:
    plain, blocking = saturnmq.admin.Admin("127.0.0.1:1"), sync.Admin("127.0.0.1:1")
    families = [name for name in vars(plain) if name != "connection"]
    assert len(families) >= 10
    for family in families:
        theirs, ours = getattr(plain, family), getattr(blocking, family)
        expected = set(methods(theirs)) - set(WITHOUT.get(family, set()))
        assert set(methods(ours)) == expected, family
        for name in expected:
            there, here = (inspect.signature(one) for one in (methods(theirs)[name], methods(ours)[name]))
            assert list(here.parameters) == list(there.parameters), (family, name)
            assert not inspect.iscoroutinefunction(methods(ours)[name]), (family, name)


@pytest.mark.spec("ADM-09")
def test_topic_is_created_and_read_back(server: SyncEmbeddedBroker) -> None:
    with sync.Admin(server.name_servers) as admin:
        admin.topics.update(server.broker_address, TopicConfig("Blocking", 3, 2))
        assert "Blocking" in admin.topics.names()
        config = admin.topics.configuration(server.broker_address, "Blocking")
        assert config is not None and (config.read_queue_nums, config.write_queue_nums) == (3, 2)


@pytest.mark.parametrize("kind", ["python", "python sync"])
def test_examples_of_the_page_run(server: SyncEmbeddedBroker, kind: str) -> None:
    page = (REPOSITORY / "docs" / "admin.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"^```{kind}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    code = code.replace("127.0.0.1:9876", server.name_servers)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout, done.stderr
