"""Celery over RocketMQ: a virtual transport of kombu.

With `broker_transport` Celery imports it by itself. This import also registers the alias `rocketmq`, if kombu has none, so that
`broker_url` alone is enough.

Example:
    from celery import Celery

    app = Celery("shop", broker="rocketmq://127.0.0.1:9876")
    app.conf.broker_transport = "saturnmq.kombu:Transport"

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

Requirements: INT-03, PKG-05.
"""

from __future__ import annotations

from saturnmq.extras import install_command

try:
    from kombu.transport import TRANSPORT_ALIASES
except ImportError as error:
    raise ImportError(f"saturnmq.kombu needs kombu: {install_command('celery')}") from error

from saturnmq.kombu.transport import Channel as Channel
from saturnmq.kombu.transport import Transport as Transport

TRANSPORT_ALIASES.setdefault("rocketmq", "saturnmq.kombu:Transport")
