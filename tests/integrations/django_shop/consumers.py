"""Listeners, found by manage.py saturnmq_consumers."""

from django.db import connection

from saturnmq.django import listener
from saturnmq.sync import Message


@listener("orders", group="billing", start="first")
def bill(message: Message[bytes]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        print("billed", message.body.decode(), cursor.fetchone()[0], flush=True)
