"""Errors of administration are those of the client: one class for each name, one exit code for each class."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from admincluster import admin_cluster, silent_server

import saturnmq
import saturnmq.admin
import saturnmq.client
import saturnmq.net
from saturnmq import errors
from saturnmq.admin import Admin
from saturnmq.cli.output import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, exit_code
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import response_error

DEAD = "127.0.0.1:1"


def error_names(package: Any) -> dict[str, set[type]]:
    """Classes of exceptions by name that the modules of a package have."""
    names: dict[str, set[type]] = {}
    modules = [package.__name__, *(one.name for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))]
    for module in modules:
        for name, value in vars(importlib.import_module(module)).items():
            if isinstance(value, type) and issubclass(value, saturnmq.SaturnError):
                names.setdefault(name, set()).add(value)
    return names


def test_each_name_is_one_class_in_client_admin_and_net() -> None:
    public = {name: getattr(saturnmq, name) for name in dir(saturnmq)}
    packages = [error_names(package) for package in (saturnmq.admin, saturnmq.client, saturnmq.net)]
    assert all({"ConnectFailed", "CallTimeout", "SaturnError"} <= set(names) for names in packages)
    for name in set().union(*packages):
        classes = set().union(*(names.get(name, set()) for names in packages))
        assert len(classes) == 1 and classes <= {public.get(name, next(iter(classes)))}, (name, classes)
        assert getattr(errors, name, next(iter(classes))) in classes, name
    both = set(public) & set(saturnmq.admin.__all__)
    assert {"ConnectFailed", "CallTimeout", "NoNameServer", "ConfigError", "ResponseError", "SaturnError"} <= both
    for name in both:
        assert getattr(saturnmq.admin, name) is public[name], name


@pytest.mark.parametrize(
    ("ask", "kind"),
    [
        (lambda admin, silent: admin.brokers.runtime(DEAD), saturnmq.ConnectFailed),
        (lambda admin, silent: admin.brokers.runtime(silent), saturnmq.CallTimeout),
        (lambda admin, silent: admin.topics.names(), saturnmq.NoNameServer),
    ],
)
@pytest.mark.realtime
async def test_administration_raises_what_the_client_exports(
    ask: Callable[[Admin, str], Coroutine[Any, Any, object]], kind: type[saturnmq.ClientError]
) -> None:
    async with silent_server() as silent, Admin(DEAD, timeout_ms=200) as admin:
        with pytest.raises(kind) as caught:
            await ask(admin, silent)
        assert exit_code(caught.value) == EXIT_UNREACHABLE


@pytest.mark.realtime
async def test_lost_connection_says_that_the_request_may_have_been_executed() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, Admin(f"{host}:{port}") as admin:
        with pytest.raises(saturnmq.ConnectFailed) as caught:
            await admin.brokers.runtime(f"{host}:{port}")
        assert caught.value.sent and caught.value.broker == f"{host}:{port}"
        with pytest.raises(saturnmq.NoNameServer):
            await admin.topics.names()


async def test_refusals_keep_their_class() -> None:
    async with admin_cluster() as cluster:
        with pytest.raises(saturnmq.ResponseError) as caught:
            await cluster.admin.connection.read(
                cluster.server.broker_address, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "no"}
            )
        assert exit_code(caught.value) == EXIT_FAILED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (saturnmq.ConfigError("x"), EXIT_USAGE),
        (errors.ConnectFailed("x"), EXIT_UNREACHABLE),
        (errors.CallTimeout("x"), EXIT_UNREACHABLE),
        (errors.NoNameServer("x"), EXIT_UNREACHABLE),
        (ConnectionRefusedError("x"), EXIT_UNREACHABLE),
        (TimeoutError(), EXIT_UNREACHABLE),
        (errors.BrokerNotExist("x"), EXIT_FAILED),
        (errors.RouteNotFound("x"), EXIT_FAILED),
        (response_error(17, "x"), EXIT_FAILED),
        (FileNotFoundError("x"), EXIT_FAILED),
        (saturnmq.SaturnError("x"), EXIT_FAILED),
    ],
)
def test_exit_code_follows_the_error(error: Exception, code: int) -> None:
    assert exit_code(error) == code
