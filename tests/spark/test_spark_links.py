"""Clients that the users of one process share: how they are counted, how long one lives, and what its end leaves to others."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest

from saturnmq.client.connection.core import ClientState
from saturnmq.spark import connect
from saturnmq.spark.connect import ConnectionOptions, Link, close_all, linked
from saturnmq.testing import SyncEmbeddedBroker


@pytest.fixture(autouse=True)
def _no_clients() -> Iterator[None]:
    close_all()
    yield
    close_all()


async def _seconds() -> float:
    return asyncio.get_running_loop().time()


async def _expire(link: Link) -> None:
    """Run the timer of an idle client now, and wait for what it began."""
    assert link.idle is not None
    link.idle._run()
    await asyncio.gather(*connect._closing)


@pytest.mark.spec("SRC-21")
def test_client_is_shared_counted_and_idle_after_its_last_user(server: SyncEmbeddedBroker) -> None:
    options = ConnectionOptions(server.name_servers)
    with linked(options) as first:
        assert (first.users, first.idle) == (1, None)
        with linked(dataclasses.replace(options)) as second:
            assert second is first and first.users == 2
        assert (first.users, first.idle) == (1, None), "it has another user"
    assert first.users == 0 and first.idle is not None
    assert 50 < first.idle.when() - first.run(_seconds()) <= connect.IDLE_SECONDS == 60
    timer = first.idle
    with linked(options) as again:
        assert again is first and (first.users, first.idle) == (1, None)
    assert timer.cancelled() and first.idle is not timer


@pytest.mark.spec("SRC-21")
@pytest.mark.parametrize(
    "change", [{"name_server": "127.0.0.1:1"}, {"access_key": "a", "secret_key": "b"}, {"read_from": "slave"}]
)
def test_client_is_not_shared_with_other_connections(server: SyncEmbeddedBroker, change: dict[str, str]) -> None:
    options = ConnectionOptions(server.name_servers)
    with linked(options) as link, linked(dataclasses.replace(options, **change)) as other:  # type: ignore[arg-type]
        assert other is not link and other.client is not link.client
        names = set(other.client.settings.name_servers)
        assert names == {change.get("name_server", server.name_servers)}


def test_user_that_fails_leaves_the_client_idle(server: SyncEmbeddedBroker) -> None:
    with pytest.raises(ValueError, match="of the user"), linked(ConnectionOptions(server.name_servers)) as link:
        raise ValueError("of the user")
    assert link.users == 0 and link.idle is not None


@pytest.mark.spec("SRC-21")
def test_idle_client_is_closed_and_the_next_use_opens_another(server: SyncEmbeddedBroker) -> None:
    options = ConnectionOptions(server.name_servers)
    with linked(options) as first:
        assert first.core.state is ClientState.RUNNING
    first.run(_expire(first))
    assert first.core.state is ClientState.STOPPED and connect._state.links == {}
    with linked(options) as second:
        assert second is not first and second.core.state is ClientState.RUNNING


def test_timer_closes_no_client_in_use_or_of_another(server: SyncEmbeddedBroker) -> None:
    """A timer may run at the moment when the next user comes."""
    options = ConnectionOptions(server.name_servers)
    with linked(options) as link:
        pass
    link.users += 1
    link.run(_expire(link))
    assert link.core.state is ClientState.RUNNING and list(connect._state.links.values()) == [link]
    link.users -= 1
    other = connect._state.links[options.connection] = Link(options.make_client())
    link.run(_expire(link))
    assert connect._state.links == {options.connection: other}
    connect._state.links[options.connection] = link


def test_timer_that_finds_the_lock_taken_tries_again_later(server: SyncEmbeddedBroker) -> None:
    """It runs on the loop's thread, for which the holder of the lock may wait: perhaps to open a client of another cluster."""
    with linked(ConnectionOptions(server.name_servers)) as link:
        pass
    timer = link.idle
    with connect._state.lock:
        link.run(_expire(link))
    assert link.core.state is ClientState.RUNNING and connect._state.links
    assert link.idle is not None and link.idle is not timer
    assert 50 < link.idle.when() - link.run(_seconds()) <= connect.IDLE_SECONDS
    link.run(_expire(link))
    assert link.core.state is ClientState.STOPPED


def test_link_of_masters_is_not_counted(server: SyncEmbeddedBroker) -> None:
    with linked(ConnectionOptions(server.name_servers)) as link:
        masters = link.masters()
        assert masters.client is link.client and masters.puller is not link.puller
        assert list(connect._state.links.values()) == [link] and link.users == 1
