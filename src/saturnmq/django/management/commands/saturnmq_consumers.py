"""manage.py saturnmq_consumers: run the listeners of all installed applications."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.module_loading import autodiscover_modules

from saturnmq.django import run_listeners
from saturnmq.protocol.errors import ConfigError


class ConsumersCommand(BaseCommand):  # type: ignore[misc]  # Django has no types
    """The command."""

    help = "Runs the listeners in module `consumers` of every installed application until SIGTERM or Ctrl-C."

    def handle(self, *args: Any, **options: Any) -> None:
        autodiscover_modules("consumers")
        try:
            run_listeners()
        except ConfigError as error:
            raise CommandError(str(error)) from error


Command = ConsumersCommand  # the name that Django looks for
