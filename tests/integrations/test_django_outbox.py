"""Django: the tables of the outbox, rows in transactions, and the command that relays them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_shop.settings")
import django

django.setup()
from django.core.management import call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402

from saturnmq import OUTBOX_ID, sync  # noqa: E402
from saturnmq.django.outbox import outbox_of, send_later  # noqa: E402
from saturnmq.testing import SyncEmbeddedBroker  # noqa: E402

HERE = Path(__file__).resolve().parent


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "shop.db"
    monkeypatch.setitem(connections["later"].settings_dict, "NAME", str(path))
    call_command("migrate", "saturnmq_outbox", database="later", verbosity=0)
    yield path
    connections["later"].close()


@pytest.mark.realtime
def test_command_sends_the_rows_of_committed_transactions(database: Path) -> None:
    call_command("makemigrations", "saturnmq_outbox", check=True, dry_run=True, verbosity=0)
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="later"):
        send_later("orders", b"rolled back", using="later")
        raise ZeroDivisionError
    with transaction.atomic(using="later"):
        ids = [send_later("orders", body, using="later", tag="paid", shard_by="o") for body in (b"one", b"two")]
    with SyncEmbeddedBroker() as server, sync.Client.from_url(server.url) as client:
        environment = {
            "TEST_SATURNMQ_URL": server.url, "TEST_DATABASE": str(database), "DJANGO_SETTINGS_MODULE": "django_shop.settings",
        }  # fmt: skip
        command = [sys.executable, "-m", "django", "saturnmq_outbox", "--database", "later", "--interval", "0.05"]
        with subprocess.Popen(command, cwd=HERE, env={**os.environ, **environment}, stderr=subprocess.PIPE) as relay:
            try:
                with client.consumer("c", start="first", route_timeout=None) as inbox:
                    inbox.subscribe("orders")
                    messages = [inbox.recv(60) for _ in range(2)]
                relay.send_signal(signal.SIGTERM)
                _, errors = relay.communicate(timeout=60)
                assert relay.returncode == 0, errors
            finally:
                relay.kill()
        assert [(message.body, message.tag) for message in messages] == [(b"one", "paid"), (b"two", "paid")]
        assert [message.properties[OUTBOX_ID] for message in messages] == ids
    with connections["later"].cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM saturnmq_outbox")
        assert cursor.fetchone() == (0,)
        cursor.execute("SELECT held_until FROM saturnmq_outbox_lease")
        assert cursor.fetchone() == (0,), "the relay let go of the lease"
    assert outbox_of("later").stats.sent == 0
