"""The application `saturnmq.django`, for its commands; it has no models."""

from django.apps import AppConfig


class SaturnMQConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """The application, whose label is `saturnmq`."""

    name = "saturnmq.django"
    label = "saturnmq"
