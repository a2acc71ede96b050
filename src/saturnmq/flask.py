"""Flask: an extension with one blocking client per application, and a command that runs listeners.

Example:
    mq = SaturnMQ()

    def create_app() -> Flask:
        app = Flask(__name__)
        app.config["SATURNMQ_URL"] = "rmq://127.0.0.1:9876"
        mq.init_app(app)
        return app

    @mq.listener("orders", group="billing")  # flask --app shop saturnmq-consumers
    def bill(message: Message[bytes]) -> None:
        ...
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, Unpack

from saturnmq.client.codecs import Codec, bytes_codec
from saturnmq.client.consumer.listener import ListenerOptions
from saturnmq.client.producer.settings import ProducerOptions
from saturnmq.extras import install_command
from saturnmq.protocol.errors import ConfigError
from saturnmq.sync import Client, Producer

try:
    import flask
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"saturnmq.flask needs package flask: {install_command('flask')}", name=error.name
    ) from error

__all__ = ["SaturnMQ"]

H = TypeVar("H", bound=Callable[[Any], Any])
NAME: Final = "saturnmq"
URL: Final = "SATURNMQ_URL"


@dataclass
class _Messaging:
    """The client of one application and its started producers."""

    client: Client
    lock: threading.Lock = field(default_factory=threading.Lock)
    producers: dict[str, Producer[Any]] = field(default_factory=dict)


class SaturnMQ:
    """The extension. It serves any number of applications; `client` and `producer` are those of the current one.

    SATURNMQ_URL in the application's configuration names the cluster; without it the environment does, as in `Client.from_env`.
    The client starts at its first use, in a forked worker too.

    Example:
        mq = SaturnMQ(app)

        @app.post("/orders")
        def create() -> str:
            return mq.producer("orders-p").send("orders", request.get_data()).message_id
    """

    def __init__(self, app: flask.Flask | None = None) -> None:
        self._listeners: list[tuple[Callable[[Any], Any], str, str, ListenerOptions]] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Add a client and the command `saturnmq-consumers` to an application. Raises ConfigError for a bad URL."""
        app.extensions[NAME] = _Messaging(self._new_client(app))
        app.cli.command("saturnmq-consumers", help="Run the listeners until SIGTERM or Ctrl-C.")(self._run)

    def stop(self) -> None:
        """Stop the client of the current application, for tests. The next use starts another one."""
        app = flask.current_app
        messaging, app.extensions[NAME] = self._messaging(), _Messaging(self._new_client(app))
        messaging.client.stop()

    @property
    def client(self) -> Client:
        """The started client of the current application."""
        messaging = self._messaging()
        with messaging.lock:
            messaging.client.start()
        return messaging.client

    def producer(
        self, group: str, *, codec: Codec[Any] | None = None, **options: Unpack[ProducerOptions]
    ) -> Producer[Any]:
        """The started producer of this group in the current application.

        codec, options: of `Client.producer`, used by the first call.
        """
        messaging = self._messaging()
        if group not in messaging.producers:
            client = self.client
            with messaging.lock:
                if group not in messaging.producers:
                    out = client.producer(group, codec=codec or bytes_codec(), **options)
                    out.start()
                    messaging.producers[group] = out
        return messaging.producers[group]

    def listener(self, topic: str, *, group: str, **options: Unpack[ListenerOptions]) -> Callable[[H], H]:
        """Decorator as `Client.listener`. Each message is handled in an application context, which is torn down afterwards."""

        def decorate(handler: H) -> H:
            self._listeners.append((handler, topic, group, options))
            return handler

        return decorate

    def _messaging(self) -> _Messaging:
        messaging: _Messaging | None = flask.current_app.extensions.get(NAME)
        if messaging is None:
            raise ConfigError(["the application has no client: call init_app(app) of the SaturnMQ object"])
        return messaging

    def _new_client(self, app: flask.Flask) -> Client:
        url = app.config.get(URL)
        return Client.from_url(url) if url else Client.from_env()

    def _run(self) -> None:
        """The command: run all listeners until a signal, then drain."""
        app, client = flask.current_app._get_current_object(), self._messaging().client  # type: ignore[attr-defined]
        for handler, topic, group, options in self._listeners:
            client.listener(topic, group=group, **options)(_in_context(app, handler))
        with client:
            client.run(handle_signals=True)


def _in_context(app: flask.Flask, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(handler)
    def call(argument: Any) -> Any:
        with app.app_context():
            return handler(argument)

    return call
