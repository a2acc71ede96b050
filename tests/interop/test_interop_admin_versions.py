"""`saturnmq.admin` against a NameServer and a broker of Apache RocketMQ 5.3.3: what works, and what that version refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import apache
import pytest
from peers import Peer

from harness.adminsmoke import check_operations, eventually
from saturnmq.admin import Admin, AdminAccess
from saturnmq.protocol.bodies import MessageQueue, SubscriptionGroupConfig, TopicConfig
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ResponseError

pytestmark = pytest.mark.interop_full

VERSION = "5.3.3"
REPORTED = "V5_3_3"
HEAP_MB = 512
ACCOUNT = ("smokeadmin", "12345678")
AUTH = "org.apache.rocketmq.auth"


@pytest.fixture(scope="module")
def cluster(java: None) -> Iterator[Peer]:
    with apache.ApacheCluster(version=VERSION, heap_mb=HEAP_MB) as started:
        yield started


@pytest.fixture(scope="module")
def protected(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A broker with the access control of 5.3, which replaced the account files of 4.9."""
    folder = tmp_path_factory.mktemp("apache-auth")
    settings = {
        "authConfigPath": str(folder / "auth"),
        "initAuthenticationUser": json.dumps({"username": ACCOUNT[0], "password": ACCOUNT[1]}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": ACCOUNT[0], "secretKey": ACCOUNT[1]}),
    }
    for kind in ("authentication", "authorization"):
        settings |= {
            f"{kind}Enabled": "true",
            f"{kind}Provider": f"{AUTH}.{kind}.provider.Default{kind.title()}Provider",
            f"{kind}MetadataProvider": f"{AUTH}.{kind}.provider.Local{kind.title()}MetadataProvider",
        }
    with apache.ApacheCluster(folder, settings=settings, version=VERSION, heap_mb=HEAP_MB) as started:
        yield started


def run(cluster: Peer, work: Callable[[Admin, str], Awaitable[None]], access: AdminAccess | None = None) -> None:
    """Run with a connected library and the address of the registered broker."""

    async def bounded() -> None:
        async with asyncio.timeout(120), Admin(cluster.name_servers, access=access) as admin:
            await eventually(lambda: admin.connection.masters("DefaultCluster"), why="the broker is registered")
            await work(admin, cluster.broker_address)

    asyncio.run(bounded())


def signed(version: str = "v1", secret: str = ACCOUNT[1]) -> AdminAccess:
    return AdminAccess(access_key=ACCOUNT[0], secret_key=secret, signature=version)


async def refused(call: Awaitable[Any]) -> ResponseError:
    with pytest.raises(ResponseError) as caught:
        await call
    return caught.value


async def consumed(admin: Admin, address: str, topic: str, group: str) -> None:
    """Create a topic of one queue and a group that has consumed its only message."""
    await admin.topics.update(address, TopicConfig(topic, 1, 1))
    await admin.groups.put(address, SubscriptionGroupConfig(group))
    await eventually(lambda: admin.topics.readable_queues(topic), why="the topic is registered")
    client = await admin.connection.messaging()
    async with client.producer("versions-out") as out:
        await out.send(topic, b"only")
    async with client.consumer(group, start="first") as inbox:
        await inbox.subscribe(topic)
        await (await inbox.recv(30)).ack()


def test_everyday_operations_work(cluster: Peer) -> None:
    async def work(admin: Admin, address: str) -> None:
        assert await check_operations(admin) == REPORTED

    run(cluster, work)


def test_listings_clients_statistics_and_exports_are_read(cluster: Peer) -> None:
    """Answers of 5.3.3 have members that 4.9.7 does not know, such as attributes of topics and groups."""
    queue = MessageQueue("Listed", "broker-a", 0)

    async def work(admin: Admin, address: str) -> None:
        await consumed(admin, address, "Listed", "listed")
        assert await admin.topics.clusters("Listed") == ["DefaultCluster"]
        # Its table of groups by topic lists the topic itself as a group: apache/rocketmq pull request 9444, fixed later.
        assert set(await admin.topics.groups("Listed", address)) == {"Listed", "listed"}
        assert "listed" in {one.group for one in (await admin.groups.summaries()).groups}
        (position,) = await admin.offsets.positions("listed", "Listed")
        assert (position.queue, position.first, position.end, position.committed) == (queue, 0, 1, 1)
        assert (await admin.statistics.topic("Listed")).topic == "Listed"
        assert (await admin.name_servers.configuration())[admin.connection.name_servers[0]]
        assert "Listed" in (await admin.export.topics(address))["topicConfigTable"]
        assert "listed" in (await admin.export.groups(address))["subscriptionGroupTable"]
        units = await admin.brokers.consume_queue(address, "Listed", 0, 0)
        assert len(units.response.queue_data or []) == 1
        assert await admin.brokers.update_configuration([address], "flushIntervalCommitLog", "600") == {}
        assert (await admin.brokers.configuration(address))["flushIntervalCommitLog"] == "600"
        client = await admin.connection.messaging()
        async with client.consumer("listed", start="first") as inbox:
            await inbox.subscribe("Listed")
            found = await eventually(lambda: admin.clients.consumers("listed"), why="the consumer is known")
            (one,) = found.connection_set
            assert (await admin.clients.running_info("listed", one.client_id)).properties["start"] == "first"
            await eventually(lambda: admin.offsets.of_clients("listed", "Listed"), why="the client owns the queue")
            assert await admin.offsets.reset("listed", "Listed", 0) == {queue: 0}

    run(cluster, work)


def test_what_the_version_refuses_is_raised_with_its_reason(cluster: Peer) -> None:
    async def work(admin: Admin, address: str) -> None:
        await consumed(admin, address, "Refused", "refused")
        # Codes 50 to 54 managed the account files of 4.9; 5.3 has users and policies with codes of their own.
        for code, call in {
            RequestCode.DELETE_ACL_CONFIG: admin.accounts.delete(address, "unknown"),
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: admin.accounts.versions(address),
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: admin.accounts.set_white_addresses(address, ["10.0.0.1"]),
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: admin.accounts.listing(address),
        }.items():
            error = await refused(call)
            assert error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert error.remark.strip() == f"request type {int(code)} not supported"
        # Groups must exist, where 4.9.7 stores offsets of any name.
        for call in (admin.offsets.clone("refused", "never", "Refused"), admin.offsets.reset("never", "Refused", 0)):
            error = await refused(call)
            assert error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and "never" in error.remark

    run(cluster, work)


def test_a_signed_account_works_with_the_access_control_of_the_version(protected: Peer) -> None:
    async def work(admin: Admin, address: str) -> None:
        assert await check_operations(admin) == REPORTED

    run(protected, work, signed())


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        (None, "username cannot be null"),
        (signed(secret="87654321"), "check signature failed"),
        (signed("v2"), "check signature failed"),
    ],
    ids=["unsigned", "wrong-secret", "signature-v2"],
)
def test_other_requests_are_refused_by_its_access_control(
    protected: Peer, access: AdminAccess | None, reason: str
) -> None:
    """Signatures of version 2 are for brokers of SaturnMQ."""

    async def work(admin: Admin, address: str) -> None:
        error = await refused(admin.groups.all_on(address))
        assert error.code == ResponseCode.NO_PERMISSION and reason in error.remark

    run(protected, work, access)
