"""FastAPI and Starlette applications with a client, called over ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from saturnmq import Client, ConfigError, Message, Producer, json_codec
from saturnmq.fastapi import get_client, health, lifespan, producer
from saturnmq.testing import EmbeddedBroker
from waiting import until


@dataclass
class Order:
    id: int


orders = producer("orders-p", codec=json_codec(Order))


def application(client: Client) -> FastAPI:
    app = FastAPI(lifespan=lifespan(client))
    app.add_api_route("/health", health)

    @app.post("/orders")
    async def create(order: Order, out: Annotated[Producer[Order], Depends(orders)]) -> str:
        return (await out.send("orders", order)).message_id

    @app.get("/topics/{topic}")
    async def exists(topic: str, client: Annotated[Client, Depends(get_client)]) -> bool:
        return await client.topic_exists(topic)

    return app


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The application with its lifespan, as a server runs it."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as http,
    ):
        yield http


@pytest.mark.spec("INT-08")
async def test_fastapi_sends_by_dependencies_and_runs_listeners() -> None:
    async with EmbeddedBroker() as server:
        client = Client.from_url(server.url)
        received: list[Message[Order]] = []

        @client.listener("orders", group="search", start="first")
        async def index(message: Message[Order]) -> None:
            received.append(message)

        async with serving(application(client)) as http:
            first = await http.post("/orders", json={"id": 1})
            second = await http.post("/orders", json={"id": 2})
            assert (await http.get("/topics/orders")).json() is True
            await until(lambda: len(received) == 2)
            healthy = await http.get("/health")
        assert {message.message_id for message in received} == {first.json(), second.json()}
        assert {message.value.id for message in received} == {1, 2}
        assert (healthy.status_code, healthy.json()) == (
            200,
            {"status": "ok", "brokers": {"broker-a": "ok"}, "listeners": "ok"},
        )


def test_dependency_without_a_lifespan_names_it() -> None:
    with pytest.raises(ConfigError, match="lifespan"):
        get_client(Request({"type": "http", "app": FastAPI()}))


@pytest.mark.spec("INT-08")
async def test_starlette_sends_and_its_health_is_503_without_a_broker() -> None:
    async def create(request: Request) -> Response:
        out = await orders(request)
        return PlainTextResponse((await out.send("orders", Order(1))).message_id)

    async with EmbeddedBroker() as server:
        routes = [Route("/orders", create, methods=["POST"]), Route("/health", health)]
        app = Starlette(routes=routes, lifespan=lifespan(lambda: Client.from_url(server.url)))
        for _ in range(2):  # a factory lets it start again
            async with serving(app) as http:
                assert len((await http.post("/orders")).text) == 32
                assert (await http.get("/health")).status_code == 200
        async with serving(app) as http:
            assert (await http.get("/health")).status_code == 200
            await server.broker.stop()
            answer = await http.get("/health")
            assert (answer.status_code, answer.json()["brokers"]) == (503, {"broker-a": "unreachable"})
    async with serving(app) as http:
        answer = await http.get("/health")
        assert (answer.status_code, answer.json()) == (503, {"status": "unavailable", "brokers": {}, "listeners": "ok"})


@pytest.mark.spec("INT-08")
async def test_health_is_503_when_listeners_have_failed() -> None:
    async with EmbeddedBroker() as server:
        client = Client.from_url(server.url)

        @client.listener("orders", group="search")
        async def index(message: Message[bytes]) -> None:
            raise AssertionError

        async with serving(application(client)) as http, client.consumer("search"):  # the group is in use
            answer = await until_failed(http)
        assert answer == {"status": "unavailable", "brokers": {"broker-a": "ok"}, "listeners": "failed"}


async def until_failed(http: httpx.AsyncClient) -> Any:
    """The body of the first health answer with code 503."""
    async with asyncio.timeout(30):
        while (answer := await http.get("/health")).status_code == 200:
            await asyncio.sleep(0.01)  # poll
    return answer.json()
