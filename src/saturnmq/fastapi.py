"""FastAPI and Starlette: a lifespan that owns the client, dependencies, and a health endpoint. Needs Starlette alone.

Example:
    client = Client.from_url("rmq://127.0.0.1:9876")
    app = FastAPI(lifespan=lifespan(client))
    app.add_api_route("/health", health)
    orders = producer("orders-p", codec=json_codec(Order))

    @app.post("/orders")
    async def create(order: Order, out: Annotated[Producer[Order], Depends(orders)]) -> str:
        return (await out.send("orders", order)).message_id

Requirements: INT-08.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Unpack

from saturnmq.client.client import Client
from saturnmq.client.codecs import Codec, bytes_codec
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.settings import ProducerOptions
from saturnmq.extras import install_command
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.tasks import cancel

try:
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"saturnmq.fastapi needs package starlette: {install_command('fastapi')}", name=error.name
    ) from error

__all__ = ["get_client", "health", "lifespan", "producer"]

logger = logging.getLogger(__name__)

HEALTH_TOPIC: Final = "SELF_TEST_TOPIC"  # every broker has it
HEALTH_SECONDS: Final = 2.0


@dataclass
class _Messaging:
    """What belongs to one run of an application. producers: by their dependency, each started by its first request."""

    client: Client
    listeners: asyncio.Task[None] | None
    producers: dict[object, Producer[Any]] = field(default_factory=dict)


def lifespan(
    client: Client | Callable[[], Client], *, drain_timeout: float = 20.0
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """The lifespan of an application: starts the client, runs its listeners, and at the end drains them and stops the client.

    client: or a function that creates one, for an application that is started several times, as in tests. drain_timeout: seconds
    for running handlers to finish. An application with a lifespan of its own enters this one: `async with lifespan(client)(app):`.

    Example:
        app = FastAPI(lifespan=lifespan(client))
    """

    @asynccontextmanager
    async def context(app: Any) -> AsyncIterator[None]:
        running = client if isinstance(client, Client) else client()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(running)
            task = None
            if running.has_listeners:
                task = asyncio.create_task(running.run(drain_timeout=drain_timeout), name="message listeners")
                task.add_done_callback(_listeners_ended)
                stack.push_async_callback(cancel, task)
            app.state.saturnmq = _Messaging(running, task)
            try:
                yield
            finally:
                del app.state.saturnmq

    return context


def _listeners_ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("listeners failed error=%r", error, exc_info=error)


def _messaging(connection: HTTPConnection) -> _Messaging:
    messaging = getattr(connection.app.state, "saturnmq", None)
    if not isinstance(messaging, _Messaging):
        raise ConfigError(["the application runs without a client: create it with lifespan=lifespan(client)"])
    return messaging


def get_client(connection: HTTPConnection) -> Client:
    """Dependency: the client of the application.

    Example:
        @app.get("/topics/{topic}")
        async def exists(topic: str, client: Annotated[Client, Depends(get_client)]) -> bool:
            return await client.topic_exists(topic)
    """
    return _messaging(connection).client


def producer(
    group: str, *, codec: Codec[Any] | None = None, **options: Unpack[ProducerOptions]
) -> Callable[[HTTPConnection], Awaitable[Producer[Any]]]:
    """A dependency: the producer of this group, started by the first request and shared by all.

    codec, options: of `Client.producer`.

    Example:
        orders = producer("orders-p")

        @app.post("/orders")
        async def create(out: Annotated[Producer[bytes], Depends(orders)]) -> None:
            await out.send("orders", b"hello")

        async def endpoint(request: Request) -> Response:  # Starlette
            out = await orders(request)
    """

    async def dependency(connection: HTTPConnection) -> Producer[Any]:
        messaging = _messaging(connection)
        out = messaging.producers.get(dependency)
        if out is None:
            out = messaging.producers[dependency] = messaging.client.producer(
                group, codec=codec or bytes_codec(), **options
            )
        await out.start()
        return out

    return dependency


async def health(request: Request) -> JSONResponse:
    """Endpoint: 200 if a broker answers within 2 s and the listeners run, else 503. The body states each broker.

    Example:
        app.add_api_route("/health", health)  # FastAPI
        app = Starlette(routes=[Route("/health", health)], lifespan=lifespan(client))
    """
    messaging = _messaging(request)
    brokers: dict[str, str] = {}
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            queues = await messaging.client.puller().queues(HEALTH_TOPIC)
            first_queues = {queue.broker_name: queue for queue in reversed(queues)}
            answers = await asyncio.gather(*(_ask(messaging.client, queue) for queue in first_queues.values()))
            brokers = dict(zip(first_queues, answers, strict=True))
    except (SaturnError, TimeoutError) as error:
        logger.warning("health check failed error=%r", error)
    listeners_failed = messaging.listeners is not None and messaging.listeners.done()
    is_healthy = "ok" in brokers.values() and not listeners_failed
    content = {
        "status": "ok" if is_healthy else "unavailable",
        "brokers": brokers,
        "listeners": "failed" if listeners_failed else "ok",
    }
    return JSONResponse(content, 200 if is_healthy else 503)


async def _ask(client: Client, queue: MessageQueue) -> str:
    """Whether the broker of a queue answers, as the text for the health body; addresses are left to the log."""
    try:
        await client.puller().max_offset(queue, timeout=HEALTH_SECONDS * 0.9)
    except SaturnError as error:
        logger.warning("broker did not answer broker=%s error=%s", queue.broker_name, error)
        return "unreachable"
    return "ok"
