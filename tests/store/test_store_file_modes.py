"""Permissions of created files: state and configuration for the owner only, messages also for the group, nothing for others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from saturnmq import Client
from saturnmq.store.files.properties_file import set_values
from saturnmq.testing import EmbeddedBroker


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_files_of_a_broker_are_closed_to_others(tmp_path: Path) -> None:
    async with (
        EmbeddedBroker(tmp_path / "data") as server,
        Client.from_url(server.url) as client,
        client.producer("p") as producer,
    ):
        await producer.send("T", b"secret", keys="k")
        await server.broker.topics.writer.saved()
    store = tmp_path / "data" / "store"
    modes = {path.relative_to(store).as_posix(): mode(path) for path in store.rglob("*")}
    assert all(not found & 0o007 for found in modes.values()), modes
    assert modes["config/topics.json"] == modes["checkpoint"] == 0o600
    log = next(name for name in modes if name.startswith("commitlog/"))
    assert modes[log] == 0o640 and modes["config"] == 0o750


def test_file_created_under_another_mode_is_closed_when_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ns.properties"
    set_values(path, {"a": "1"})
    assert mode(path) == 0o600
    path.chmod(0o640)
    (tmp_path / "ns.properties.tmp").touch(0o666)
    set_values(path, {"a": "2"})
    assert mode(path) == 0o640, "the operator's choice stays"
