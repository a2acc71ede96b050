"""Django: an outbox, messages that are written in a database transaction and sent by a relay.

    INSTALLED_APPS = [..., "saturnmq.django", "saturnmq.django.outbox"]

`manage.py migrate` makes its tables, `manage.py saturnmq_outbox` is the relay.
"""

from __future__ import annotations

from typing import Unpack

from django.db import DEFAULT_DB_ALIAS, connections

from saturnmq.client.outbox import Outbox, OutboxOptions

__all__ = ["outbox_of", "send_later"]


def outbox_of(using: str = DEFAULT_DB_ALIAS) -> Outbox:
    """The outbox in the database of this alias; `await outbox.pending()` counts what waits.

    Example:
        print(asyncio.run(outbox_of().pending()))
    """
    return Outbox(lambda: connections[using].copy(), paramstyle="format")


def send_later(topic: str, body: bytes, *, using: str = DEFAULT_DB_ALIAS, **options: Unpack[OutboxOptions]) -> str:
    """Write a message in the current transaction of database `using`; a relay sends it after the commit. Returns the OUTBOX_ID.

    options: tag, keys, properties and shard_by of `Producer.send`.

    Example:
        with transaction.atomic():
            order = Order.objects.create(total=9.5)
            send_later("orders", b"%d" % order.pk, shard_by=f"order-{order.pk}")
    """
    return outbox_of(using).add(connections[using], topic, body, **options)
