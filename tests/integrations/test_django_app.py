"""Django: a client from the settings, sends on commit, and the command that runs consumers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_shop.settings")
import django

django.setup()
from consumerprocess import handled_line  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import transaction  # noqa: E402

import saturnmq.django as integration  # noqa: E402
from saturnmq import ConfigError, MessageRefused  # noqa: E402
from saturnmq.django import get_client, get_producer, send_on_commit  # noqa: E402
from saturnmq.testing import SyncEmbeddedBroker  # noqa: E402

HERE = Path(__file__).resolve().parent


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncEmbeddedBroker]:
    with SyncEmbeddedBroker() as broker:
        monkeypatch.setattr(settings, "SATURNMQ", {"url": broker.url, "timeout": 10.0})
        yield broker
        get_client().stop()
        integration._client.cache_clear()
        integration._producers.clear()


def stored(server: SyncEmbeddedBroker, topic: str) -> list[bytes]:
    puller = get_client().puller()
    pulled = [puller.pull(queue, 0).messages() for queue in puller.queues(topic)]
    return sorted(message.body for messages in pulled for message in messages)


def test_send_on_commit_follows_the_transaction(server: SyncEmbeddedBroker) -> None:
    get_client().create_topic("orders", queues=1)
    out = get_producer("orders-p")
    assert get_producer("orders-p") is out
    with transaction.atomic():
        send_on_commit(out, "orders", b"committed", tag="paid")
        assert stored(server, "orders") == []
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        send_on_commit(out, "orders", b"rolled back")
        raise ZeroDivisionError
    send_on_commit(out, "orders", b"no transaction")
    assert stored(server, "orders") == [b"committed", b"no transaction"]
    with pytest.raises(MessageRefused):
        send_on_commit(out, "bad topic", b"x")
    with transaction.atomic():
        send_on_commit(out, "bad topic", b"x", robust=True)


@pytest.mark.realtime
def test_command_runs_consumers_of_installed_applications(server: SyncEmbeddedBroker) -> None:
    get_producer("orders-p").send("orders", b"7")
    environment = {"TEST_SATURNMQ_URL": server.url, "DJANGO_SETTINGS_MODULE": "django_shop.settings"}
    assert handled_line(["django", "saturnmq_consumers"], HERE, **environment) == "billed 7 1"


def test_missing_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SATURNMQ", {})
    with pytest.raises(ConfigError, match="setting SATURNMQ has no url"):
        get_client()
    with pytest.raises(CommandError, match="setting SATURNMQ has no url"):
        call_command("saturnmq_consumers")
