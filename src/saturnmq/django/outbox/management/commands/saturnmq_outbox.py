"""manage.py saturnmq_outbox: the relay of the outbox."""

import asyncio
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS

from saturnmq import Client
from saturnmq.django import client_settings
from saturnmq.django.outbox import outbox_of
from saturnmq.protocol.errors import ConfigError


class OutboxCommand(BaseCommand):  # type: ignore[misc]  # Django has no types
    """The command."""

    help = "Sends the messages of the outbox until SIGTERM or Ctrl-C. Several may run: one sends, the others wait to take over."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="alias of the database")
        parser.add_argument("--group", default="saturnmq-outbox", help="producer group")
        parser.add_argument("--interval", type=float, default=1.0, help="seconds between two looks into an empty table")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            asyncio.run(_relay(options["database"], options["group"], options["interval"]))
        except ConfigError as error:
            raise CommandError(str(error)) from error


async def _relay(database: str, group: str, interval: float) -> None:
    url, settings = client_settings()
    async with Client.from_url(url, **settings) as client, client.producer(group) as out:
        await outbox_of(database).run(out, interval=interval, handle_signals=True)


Command = OutboxCommand  # the name that Django looks for
