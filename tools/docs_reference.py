"""The pages of the reference that are made of code when the site is built: the API, error codes, metrics.

As an extension of Griffe it makes the examples of docstrings code blocks, and leaves out the requirements that they name.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any, Final

import griffe

import saturnmq.sync
from saturnmq.protocol.errors import ResponseError
from saturnmq.testing import EmbeddedBroker

# Of each public name of `saturnmq`, the module that defines it: imports are lazy, so Griffe does not see where they lead.
MODULES: Final = {name: module for module, names in saturnmq._HOME.items() for name in names}
# Page: title, introduction, and the objects in order: names of `saturnmq`, or paths of others.
API: Final = {
    "client": (
        "Client",
        "The asyncio client, `from saturnmq import Client`. [The client by example](../guide.md) shows it at work.",
        "Client saturnmq.client.connection.url.ClientSettings",
    ),
    "producer": (
        "Producer",
        "Made by `client.producer(...)`.",
        "Producer ProducerStats Transaction Outgoing Receipt SendStatus Confirmation TransactionState MessageQueue"
        " random_queue same_site Outbox OutboxStats",
    ),
    "consumer": (
        "Consumer",
        "Made by `client.consumer(...)`, by `client.listener(...)`, and by `client.puller()`.",
        "Consumer ConsumerStats saturnmq.client.consumer.settings.ConsumerSettings Message Batch Ack Retry Filter tag sql"
        " Puller PullResult PullStatus",
    ),
    "values": (
        "Codecs, hooks and traces",
        "Conversion of bodies, functions around sends and deliveries, and records of the message trace.",
        "Codec PropertyCodec bytes_codec str_codec json_codec SendHook SendContext ConsumeHook ConsumeContext EndContext"
        " install_hooks remove_hooks ClientMetrics TraceStats TraceRecord Pub SubBefore SubAfter EndTransaction",
    ),
    "errors": (
        "Errors",
        "All are a `SaturnError`. What a broker answered is a `ResponseError`, with a class for each [code](error-codes.md).",
        " ".join(["SaturnError", "ConfigError", "ResponseError", *saturnmq._HOME["saturnmq.errors"]]),
    ),
    "testing": (
        "Testing kit",
        "A broker for tests, and what the fixtures of pytest return. [In tests](../guide.md#in-tests) shows them at work.",
        "saturnmq.testing.embedded.EmbeddedBroker saturnmq.testing.embedded.SyncEmbeddedBroker"
        " saturnmq.testing.fixture_broker.BrokerFixture saturnmq.testing.fixture_broker.ClockFixture",
    ),
    "admin": (
        "Administration",
        "`from saturnmq.admin import Admin`. [Administration](../admin.md) shows it at work.",
        "saturnmq.admin.admin.Admin saturnmq.admin.credentials.read_access",
    ),
    "spark": (
        "Spark",
        "[SaturnMQ and Spark](../spark.md) has the options of source and sink.",
        "saturnmq.spark saturnmq.spark.topic_reads.TopicReads",
    ),
    "integrations": (
        "Integrations",
        "[Web frameworks](../web-frameworks.md), [FastStream](../faststream.md) and [OpenTelemetry](../opentelemetry.md) show them"
        " at work.",
        "saturnmq.fastapi saturnmq.flask saturnmq.sqlalchemy saturnmq.django saturnmq.django.outbox"
        " saturnmq.opentelemetry saturnmq.faststream.broker.RocketBroker",
    ),
}
_EXAMPLE: Final = re.compile(r"^( *)Example:\n((?:\1 +.*\n?|\n)+)", re.MULTILINE)
_REQUIREMENTS: Final = re.compile(
    r"\n*^ *Requirements: [^\n]*(?:\n[^\n]+)*\Z| \([A-Z]{2,4}-[A-Z]?\d{2}\)", re.MULTILINE
)


def pages() -> dict[str, str]:
    """The text of each generated page."""
    texts = {
        f"api/{page}.md": "\n\n".join((f"# {title}", introduction, *map(_directive, names.split()))) + "\n"
        for page, (title, introduction, names) in API.items()
    }
    return texts | {"api/sync.md": blocking(), "api/error-codes.md": error_codes(), "api/metrics.md": metrics()}


def _directive(name: str) -> str:
    """A directive of mkdocstrings. A module has no heading of its own, only its names have."""
    path = f"{MODULES[name]}.{name}" if name in MODULES else name
    options = ""
    if path.count(".") == 1:
        options = "\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false"
    return f"::: {path}{options}"


def blocking() -> str:
    """The methods of `saturnmq.sync`, which are made when it is imported."""
    text = (
        "# Client without asyncio\n\n`from saturnmq.sync import Client`: the names and parameters of the"
        " [asyncio client](client.md), without `await`. Each object has `start` and `stop`, or a `with` block."
        " [Examples](../guide.md#without-asyncio).\n\n"
    )
    for name in saturnmq.sync.__all__:
        methods = inspect.getmembers(getattr(saturnmq.sync, name), callable)
        rows = [
            (f"`{method}`", (call.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " "))
            for method, call in methods
            if not method.startswith("_") and call.__doc__ and not hasattr(list, method)
        ]
        text += f"## {name}\n\n" + _table("method | what it does", [(a, re.sub(r" +", " ", b)) for a, b in rows]) + "\n"
    return text


def error_codes() -> str:
    """The table of response codes and their error classes."""
    rows = [
        (
            int(code),
            code.name,
            f"`{cls.__name__}`",
            (cls.__doc__ or "").rpartition(" (")[0],
            "yes" if cls.retryable else "",
        )
        for cls in ResponseError.__subclasses__()
        if (code := cls.response_code) is not None
    ]
    return (
        "# Error codes\n\nWhat brokers and NameServers answer with, and the class in `saturnmq.protocol.errors` that the client"
        " raises. *Retried*: a `send` tries again by itself.\n\n"
        + _table("code | name | class | meaning | retried", sorted(rows))
    )


def metrics() -> str:
    """The families of a broker's metrics page, from a scrape."""
    text = asyncio.run(_scrape())
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    rows = [
        (f"`{name}`", kinds[name], meaning) for name, meaning in re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE)
    ]
    return (
        "# Metrics\n\nWhat `GET /metrics` of a broker answers when `metricsPort` is set; [operations](../operations.md#metrics)"
        " says how to scrape it. Names that begin with `rocketmq_` are those of the exporter of Apache RocketMQ.\n\n"
        + _table("name | kind | meaning", rows)
    )


async def _scrape() -> str:
    async with EmbeddedBroker() as server:
        return b"".join(server.broker.metrics.pieces()).decode()


def _table(head: str, rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, " | ".join("---" for _ in head.split("|")), *(" | ".join(map(str, row)) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


class Docstrings(griffe.Extension):
    """Docstrings as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """A docstring with its example as a block of code, and without requirements."""
    text = _REQUIREMENTS.sub("", docstring)

    def block(match: re.Match[str]) -> str:
        return f"\n```python\n{textwrap.dedent(match[2]).strip()}\n```\n"

    return _EXAMPLE.sub(block, text + "\n").rstrip()
