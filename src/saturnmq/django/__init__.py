"""Django: a blocking client from the settings, sends when a transaction commits, and a command that runs listeners.

    INSTALLED_APPS = [..., "saturnmq.django"]
    SATURNMQ = {"url": "rmq://127.0.0.1:9876", "timeout": 5.0}  # further keys: arguments of Client.from_url

`manage.py saturnmq_consumers` imports module `consumers` of every installed application and runs the listeners found there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, Unpack

from saturnmq.client.codecs import Codec, bytes_codec
from saturnmq.client.consumer.listener import ListenerOptions
from saturnmq.client.producer.settings import ProducerOptions
from saturnmq.extras import install_command
from saturnmq.protocol.errors import ConfigError
from saturnmq.sync import Client, Producer

try:
    from django.conf import settings
    from django.db import close_old_connections, transaction
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"saturnmq.django needs package django: {install_command('django')}", name=error.name
    ) from error

__all__ = ["get_client", "get_producer", "listener", "send_on_commit"]

H = TypeVar("H", bound=Callable[[Any], Any])
SETTING: Final = "SATURNMQ"

_lock: Final = threading.Lock()
_producers: Final[dict[str, Producer[Any]]] = {}
_listeners: Final[list[tuple[Callable[[Any], Any], str, str, ListenerOptions]]] = []


def client_settings() -> tuple[str, dict[str, Any]]:
    """The URL and the other arguments of `Client.from_url`. Raises ConfigError."""
    options = dict(getattr(settings, SETTING, {}))
    url = options.pop("url", None)
    if not url:
        raise ConfigError([f"setting {SETTING} has no url, give it one such as {{'url': 'rmq://127.0.0.1:9876'}}"])
    return url, options


@functools.cache
def _client() -> Client:
    url, options = client_settings()
    return Client.from_url(url, **options)


def get_client() -> Client:
    """The started client of this process, in a forked worker one of its own. Raises ConfigError for bad settings.

    Example:
        if not get_client().topic_exists("orders"):
            get_client().create_topic("orders")
    """
    with _lock:
        client = _client()
        client.start()
    return client


def get_producer(group: str, *, codec: Codec[Any] | None = None, **options: Unpack[ProducerOptions]) -> Producer[Any]:
    """The started producer of this group in this process. codec, options: of `Client.producer`, used by the first call.

    Example:
        get_producer("orders-p").send("orders", b"hello")
    """
    if group not in _producers:
        client = get_client()
        with _lock:
            if group not in _producers:
                out = client.producer(group, codec=codec or bytes_codec(), **options)
                out.start()
                _producers[group] = out
    return _producers[group]


def send_on_commit(
    out: Producer[Any], topic: str, value: Any, *, using: str | None = None, robust: bool = False, **options: Any
) -> None:
    """Send when the transaction of database `using` commits, at once outside of one; not at all if it is rolled back.

    options: of `Producer.send`. robust: log an error of the send instead of raising it, as in Django's `on_commit`. The message is
    lost if the process dies between commit and send; where that matters, use `saturnmq.django.outbox.send_later`.

    Example:
        with transaction.atomic():
            order = Order.objects.create(total=9.5)
            send_on_commit(get_producer("orders-p"), "orders", b"%d" % order.pk)
    """

    def send() -> None:  # no functools.partial: with robust=True Django logs the function's __qualname__
        out.send(topic, value, **options)

    transaction.on_commit(send, using=using, robust=robust)


def listener(topic: str, *, group: str, **options: Unpack[ListenerOptions]) -> Callable[[H], H]:
    """Decorator as `Client.listener`, for module `consumers` of an application; `manage.py saturnmq_consumers` runs it.

    Database connections that are too old or broken are closed before and after each message, as Django does for a request.

    Example:
        @listener("orders", group="billing")
        def bill(message: Message[bytes]) -> None:
            Invoice.objects.create(order_id=int(message.body))
    """

    def decorate(handler: H) -> H:
        _listeners.append((handler, topic, group, options))
        return handler

    return decorate


def run_listeners() -> None:
    """Run the registered listeners until SIGTERM or Ctrl-C, then drain. Raises ConfigError if there is none."""
    with _client() as client:
        for handler, topic, group, options in _listeners:
            client.listener(topic, group=group, **options)(_with_fresh_connections(handler))
        client.run(handle_signals=True)


def _with_fresh_connections(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(handler)
    def call(argument: Any) -> Any:
        close_old_connections()
        try:
            return handler(argument)
        finally:
            close_old_connections()

    return call
