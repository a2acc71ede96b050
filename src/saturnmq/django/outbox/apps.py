"""The application `saturnmq.django.outbox`, for its tables and its command."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """The application, whose label is `saturnmq_outbox`."""

    name = "saturnmq.django.outbox"
    label = "saturnmq_outbox"
