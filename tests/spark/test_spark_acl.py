"""The source against a broker that checks accounts like Apache's: signatures, and SUB on topic and group of a read.

The checks are the test's own, in front of the broker's handler; refusals have the wording of 4.9.7.

Requirements: SRC-20.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from saturnmq import Outgoing
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

SECRETS = {"reader": "hush-hush", "stranger": "sh-sh"}
PREFIX = "org.apache.rocketmq.acl.common.AclException: "


@dataclass
class Accounts:
    """Resources that each account may read; groups as %RETRY%GROUP. `seen`: accounts of the pulls that were allowed."""

    may_read: dict[str, set[str]]
    seen: list[str] = field(default_factory=list)

    def refusal(self, command: Command) -> str | None:
        """Return why the request is refused, None if it is allowed."""
        ext = dict(command.ext)
        signature, name = ext.pop("Signature", ""), ext.get("AccessKey", "")
        if name not in SECRETS:
            return f"No acl config for {name}"
        data = "".join(ext[key] for key in sorted(ext)).encode() + (command.body or b"")
        wanted = base64.b64encode(hmac.new(SECRETS[name].encode(), data, hashlib.sha1).digest()).decode()
        if signature != wanted:
            return f"Check signature failed for accessKey={name}"
        if ext["topic"] not in self.may_read[name]:
            return f"No default permission for topic:{ext['topic']}"
        if f"%RETRY%{ext['consumerGroup']}" not in self.may_read[name]:
            return f"No default permission for group:{ext['consumerGroup']}"
        self.seen.append(name)
        return None

    def before(self, handler: Callable[[Any, Command], Any]) -> Callable[[Any, Command], Any]:
        """Wrap the handler with these checks; only pulls are checked, other requests come from the test itself."""

        def checked(connection: Any, command: Command) -> Any:
            why = self.refusal(command) if command.code == RequestCode.PULL_MESSAGE else None
            return (
                handler(connection, command) if why is None else command.reply(ResponseCode.SYSTEM_ERROR, PREFIX + why)
            )

        return checked


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[SyncEmbeddedBroker, Accounts]]:
    accounts = Accounts({"reader": {"open", "%RETRY%CID_RMQ_SYS_SPARK"}, "stranger": {"open"}})
    with SyncEmbeddedBroker() as server:
        with Client(name_servers=server.name_servers) as client, client.producer("acl-tests") as out:
            for topic in ("open", "closed"):
                client.create_topic(topic, queues=1)
                out.send_many(topic, [Outgoing(value=b"%d" % n) for n in range(10)])
        remoting = server.inner.broker._server
        remoting.handler = accounts.before(remoting.handler)
        yield server, accounts


def read(server: SyncEmbeddedBroker, topic: str, account: str, secret: str | None = None, **options: str) -> list[int]:
    given = {"nameServer": server.name_servers, "topic": topic, "accessKey": account, "columns": "body",
             "secretKey": secret or SECRETS[account], "readTimeoutMs": "2000"}  # fmt: skip
    source = RocketMQDataSource(given | options)
    made = source.reader(source.schema())
    batches = [batch for p in made.partitions() for batch in made.read(p)]
    return [int(body) for batch in batches for body in batch.column(0).to_pylist()]  # type: ignore[union-attr]


@pytest.mark.spec("SRC-20", "SRC-11")
def test_acl_read_with_sub_on_topic_and_group_succeeds(guarded: tuple[SyncEmbeddedBroker, Accounts]) -> None:
    server, accounts = guarded
    assert read(server, "open", "reader") == list(range(10))
    assert accounts.seen and set(accounts.seen) == {"reader"}


@pytest.mark.spec("SRC-20", "SPK-11")
@pytest.mark.parametrize(
    ("topic", "account", "more", "words"),
    [
        ("closed", "reader", {}, "No default permission for topic:closed"),
        ("open", "stranger", {}, "No default permission for group:CID_RMQ_SYS_SPARK"),
        ("open", "reader", {"secret": "guessed-wrong"}, "Check signature failed for accessKey=reader"),
    ],
)
def test_acl_refusal_names_resource_and_hides_secret(
    guarded: tuple[SyncEmbeddedBroker, Accounts], topic: str, account: str, more: dict[str, str], words: str
) -> None:
    server, _ = guarded
    with pytest.raises(ResponseError) as caught:
        read(server, topic, account, **more)
    said = str(caught.value)
    assert words in said
    assert f"{topic}/broker-a/0" in said and "group CID_RMQ_SYS_SPARK" in said
    assert all(secret not in said for secret in (*SECRETS.values(), "guessed-wrong"))
