"""The pytest plugin: fixtures `saturn_*`, the option `--saturn-url`, and the check for leaked resources.

pytest loads this module in every session where SaturnMQ is installed, so it imports the rest of SaturnMQ only when a
fixture is used. The fixtures are synchronous: they work in plain tests and under every plugin that runs async tests.

Requirements: TST-02, TST-04, TST-07.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from saturnmq.client.client import Client
    from saturnmq.testing.fixture_broker import BrokerFixture, ClockFixture
    from saturnmq.testing.leftovers import LeakWatch

_PREFIX: Final = "saturn_"
_NAME_CHARS_MAX: Final = 80
_watch: Final[pytest.StashKey[LeakWatch]] = pytest.StashKey()
_running: Final[pytest.StashKey[BrokerFixture]] = pytest.StashKey()
_numbers: Final = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("saturnmq").addoption(
        "--saturn-url",
        metavar="URL",
        help="run the tests that use saturn_* fixtures on this broker, such as rmq://127.0.0.1:9876, SaturnMQ's or Apache's; "
        "tests that need the embedded one are skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "saturn_settings(broker=BrokerSettings(...), store=StoreSettings(...)): settings of the embedded broker of this test",
    )


@pytest.fixture
def saturn_broker(request: pytest.FixtureRequest) -> Iterator[BrokerFixture]:
    """A broker and a NameServer for this test only, on a thread, on free ports; or the real broker of `--saturn-url`.

    Example:
        def test_orders_are_stored(saturn_broker, saturn_topic):
            with saturnmq.sync.Client.from_url(saturn_broker.url) as client, client.producer("p") as out:
                out.send(saturn_topic, b"one")
            assert [message.body for message in saturn_broker.published(saturn_topic)] == [b"one"]

    `@pytest.mark.saturn_settings(broker=BrokerSettings(...), store=StoreSettings(...))` configures the embedded broker;
    a test with that marker is skipped on a real one.
    """
    from saturnmq.testing.fixture_broker import BrokerFixture

    url = request.config.getoption("--saturn-url")
    marker = request.node.get_closest_marker("saturn_settings")
    settings = dict(marker.kwargs) if marker is not None else {}
    if settings and url:
        pytest.skip("this gives settings to the embedded broker, and --saturn-url names a real one")
    broker = BrokerFixture(url, settings=settings.pop("broker", None), store=settings.pop("store", None))
    if settings:
        raise pytest.UsageError(f"saturn_settings knows broker and store, not {', '.join(settings)}")
    broker.start()
    request.node.stash[_running] = broker
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def saturn_client(saturn_broker: BrokerFixture, tmp_path: Path) -> Client:
    """An asynchronous client of the test's broker, not started; it refreshes routes and commits offsets quickly.

    Example:
        async def test_orders_are_stored(saturn_client, saturn_topic):
            async with saturn_client as client, client.producer("p") as out:
                await out.send(saturn_topic, b"one")
    """
    from saturnmq.client.client import Client

    return Client.from_url(
        saturn_broker.url,
        timeout=10.0,
        route_poll_ms=200,
        persist_offsets_ms=100,
        rebalance_ms=1000,
        offsets_dir=str(tmp_path / "saturn-offsets"),
    )


@pytest.fixture
def saturn_topic(request: pytest.FixtureRequest, saturn_broker: BrokerFixture) -> str:
    """The name of a topic that only this test uses; the topic exists, with 4 queues."""
    name = fresh_name(request.node.name)
    saturn_broker.create_topic(name)
    return name


@pytest.fixture
def saturn_group(request: pytest.FixtureRequest) -> str:
    """The name of a consumer group that only this test uses."""
    return fresh_name(f"{request.node.name}-group")


@pytest.fixture
def saturn_clock(saturn_broker: BrokerFixture) -> ClockFixture:
    """The embedded broker's clock: `await saturn_clock.advance(timedelta(hours=2))`. Skips the test on a real broker."""
    return saturn_broker.clock


def fresh_name(of: str) -> str:
    """A topic or group name that was never used: `of` reduced to legal characters, a number and a random suffix."""
    legal_name = re.sub(r"[^A-Za-z0-9_-]+", "_", of).strip("_")[:_NAME_CHARS_MAX]
    return f"{legal_name}-{next(_numbers)}-{os.urandom(4).hex()}"


# ---- leftovers


def _uses_fixtures(item: pytest.Item) -> bool:
    return any(name.startswith(_PREFIX) for name in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that used a fixture and leaked resources. If its event loop outlives the call, `teardown` checks instead."""
    if not _uses_fixtures(item):
        return (yield)
    from saturnmq.testing.leftovers import LeakWatch

    watch = item.stash[_watch] = LeakWatch()
    try:
        outcome = yield
    except BaseException:
        watch.close()  # a failing test need not clean up
        del item.stash[_watch]
        raise
    leaks = watch.of_loops()
    if watch.loops_ended:
        broker = item.stash.get(_running, None)
        leaks += watch.of_process(broker.ports() if broker is not None else ())
    _fail(leaks)
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Check the tests whose event loop outlived the call."""
    watch = item.stash.get(_watch, None)
    try:
        outcome = yield
    finally:
        if watch is not None:
            watch.close()
    if watch is not None:
        del item.stash[_watch]
        _fail(watch.of_loops() if watch.loops_ended else watch.of_loops() + watch.of_process(()))
    return outcome


def _fail(leaks: list[str]) -> None:
    if leaks:
        pytest.fail("the test left behind:\n" + "\n".join(f"  {line}" for line in leaks), pytrace=False)
