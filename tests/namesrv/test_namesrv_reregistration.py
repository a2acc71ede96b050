"""Brokers that register twice, under another name, in another cluster, or over a connection that closes late."""

from __future__ import annotations

import pytest

from saturnmq.namesrv.routes import Registration, RouteTable, pack
from saturnmq.protocol.bodies import DataVersion, TopicConfig

FIRST, SECOND = "10.0.0.1:10911", "10.0.0.2:10911"


def registration(
    name: str = "broker-a", number: int = 0, address: str = FIRST, *, cluster: str = "c", version: int = 1
) -> Registration:
    return Registration(
        cluster, name, number, address, f"{address}0", DataVersion(1, version), {"T": pack(TopicConfig("T"))}
    )


@pytest.mark.spec("NS-17", "NS-18")
def test_unregister_of_old_instance_keeps_its_successor() -> None:
    table = RouteTable()
    table.register(registration(), "old", 0)
    table.register(registration(address=SECOND), "new", 1)
    table.unregister(FIRST)
    table.connection_closed("old")
    assert table.brokers["broker-a"].broker_addrs == {0: SECOND}
    assert table.route("T") is not None and set(table.live) == {SECOND}
    table.unregister(SECOND)
    assert table.brokers == {} and table.topics == {}


@pytest.mark.spec("NS-10", "NS-19")
def test_renamed_broker_is_removed_from_old_name() -> None:
    table = RouteTable()
    table.register(registration("broker-a"), "old", 0)
    table.register(registration("broker-b"), "new", 1)
    table.connection_closed("old")
    assert set(table.brokers) == {"broker-b"} and table.cluster_info().cluster_addr_table == {"c": ["broker-b"]}
    assert set(table.topics["T"]) == {"broker-b"}


@pytest.mark.spec("NS-07", "NS-19")
def test_broker_moved_to_another_cluster_leaves_old_cluster() -> None:
    table = RouteTable()
    table.register(registration(cluster="old"), 1, 0)
    before = table.changes
    table.register(registration(cluster="new"), 1, 1)
    assert table.cluster_info().cluster_addr_table == {"new": ["broker-a"]}
    assert table.brokers["broker-a"].cluster == "new" and table.changes > before
    table.register(registration(number=1, address=SECOND, cluster="old"), 2, 1)
    assert table.brokers["broker-a"].cluster == "new", "a slave does not move its master"


@pytest.mark.spec("NS-16")
def test_closed_connection_removes_all_its_brokers() -> None:
    table = RouteTable()
    table.register(registration("broker-a"), "shared", 0)
    table.register(registration("broker-b", address=SECOND), "shared", 0)
    assert table.connection_closed("shared") == [FIRST, SECOND]
    assert table.live == {} and table.brokers == {} and table.topics == {}


@pytest.mark.spec("NS-17", "NS-25")
def test_version_query_binds_broker_to_new_connection() -> None:
    """With forceRegister=false an unchanged broker does not register again; its version query binds it to the new connection."""
    table = RouteTable()
    table.register(registration(), "old", 0)
    assert table.version_changed(FIRST, DataVersion(1, 1), 1, "new") == (False, DataVersion(1, 1))
    table.connection_closed("old")
    assert set(table.live) == {FIRST}
    table.connection_closed("new")
    assert table.live == {}


@pytest.mark.spec("NS-07", "NS-20")
def test_changed_filter_servers_change_the_route() -> None:
    table = RouteTable()
    table.register(registration(), 1, 0)
    for filters in (["f:1"], []):
        before = table.changes
        what = registration()
        changed = Registration(
            what.cluster, what.broker_name, 0, what.address, what.ha_address, what.version, what.queues, filters
        )
        table.register(changed, 1, 1)
        assert table.changes > before
        before = table.changes
        table.register(changed, 1, 2)
        assert table.changes == before
