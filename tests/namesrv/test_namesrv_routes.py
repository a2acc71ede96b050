"""The route table: rules of registration and removal, and a model-based property test."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saturnmq.namesrv.routes import Registration, RouteTable, TopicTable, pack
from saturnmq.protocol.bodies import DataVersion, TopicConfig
from saturnmq.slices import Steps

T = TypeVar("T")


def done(work: Steps[T]) -> T:
    """The result of work in steps."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: T = end.value
            return value


def topics(*names: str, queues: int = 4, perm: int = 6, flag: int = 0) -> dict[str, int]:
    return {name: pack(TopicConfig(name, queues, queues, perm, "SINGLE_TAG", flag)) for name in names}


def registration(
    name: str = "broker-a",
    number: int = 0,
    address: str = "10.0.0.1:10911",
    *,
    cluster: str = "c",
    version: int = 1,
    of: dict[str, int] | None = None,
    **more: Any,
) -> Registration:
    held = topics("T") if of is None else of
    return Registration(cluster, name, number, address, f"{address}0", DataVersion(1, version), held, **more)


@pytest.mark.spec("NS-07", "NS-08")
def test_registration_fills_all_tables() -> None:
    table = RouteTable()
    conn = object()
    table.register(registration(filter_servers=["f:1"]), conn, 7)
    assert table.cluster_info().cluster_addr_table == {"c": ["broker-a"]}
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}
    assert table.topics["T"]["broker-a"].write_queue_nums == 4
    live = table.live["10.0.0.1:10911"]
    assert (live.updated_ms, live.connection, live.ha_address) == (7, conn, "10.0.0.1:109110")
    assert live.version == DataVersion(1, 1)
    assert table.filter_servers == {"10.0.0.1:10911": ["f:1"]}
    table.register(registration(filter_servers=[]), conn, 8)
    assert table.filter_servers == {}


@pytest.mark.spec("NS-09")
def test_topics_change_only_by_master_with_new_version() -> None:
    table = RouteTable()
    table.register(registration(), 1, 0)
    table.register(registration(of=topics("T", queues=9)), 1, 1)
    assert table.topics["T"]["broker-a"].read_queue_nums == 4
    table.register(registration(number=1, address="10.0.0.2:10911", version=5, of=topics("T", queues=9)), 2, 1)
    assert table.topics["T"]["broker-a"].read_queue_nums == 4
    table.register(registration(version=2, of=topics("T", queues=9)), 1, 1)
    assert table.topics["T"]["broker-a"].read_queue_nums == 9
    table.register(registration(address="10.0.0.3:10911", version=2, of=topics("T", queues=5)), 3, 2)
    assert table.topics["T"]["broker-a"].read_queue_nums == 5, "no version is stored for this address"


@pytest.mark.spec("NS-09")
def test_first_registration_of_id_sets_topics_of_known_version() -> None:
    table = RouteTable()
    table.register(registration(number=1), 1, 0)
    assert table.topics == {}
    table.register(registration(number=0), 1, 1)
    assert set(table.topics) == {"T"}


@pytest.mark.spec("NS-09")
def test_only_complete_registration_drops_missing_topics() -> None:
    table = RouteTable()
    table.register(registration(of=topics("T", "U")), 1, 0)
    table.register(registration(version=2, of=topics("T")), 1, 1)
    assert set(table.topics) == {"T", "U"}
    table.register(registration(version=3, of=topics("T"), complete=True), 1, 1)
    assert set(table.topics) == {"T"}


@pytest.mark.spec("NS-10")
def test_promoted_slave_has_one_address() -> None:
    table = RouteTable()
    table.register(registration(number=1), 1, 0)
    table.register(registration(number=0), 1, 1)
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}


@pytest.mark.spec("NS-11")
def test_slave_registration_returns_live_master() -> None:
    table = RouteTable()
    slave = registration(number=1, address="10.0.0.2:10911")
    assert table.register(slave, 2, 0).master_address == ""
    assert table.register(registration(), 1, 0).master_address == ""
    answer = table.register(slave, 2, 1)
    assert (answer.master_address, answer.ha_address) == ("10.0.0.1:10911", "10.0.0.1:109110")
    table.connection_closed(1)
    assert table.register(slave, 2, 2).master_address == ""


@pytest.mark.spec("NS-15")
def test_broker_expires_one_ms_after_the_limit() -> None:
    table = RouteTable()
    conn = object()
    table.register(registration(), conn, 1000)
    assert table.expired(121_000, 120_000) == []
    assert table.expired(121_001, 120_000) == [("10.0.0.1:10911", conn)]
    assert (table.topics, table.brokers, table.clusters, table.live) == ({}, {}, {}, {})


@pytest.mark.spec("NS-16", "NS-17")
def test_close_of_old_connection_keeps_reregistered_broker() -> None:
    table = RouteTable()
    old, new = object(), object()
    table.register(registration(), old, 0)
    table.register(registration(), new, 1)
    assert table.connection_closed(old) == []
    assert table.route("T") is not None
    assert table.connection_closed(new) == ["10.0.0.1:10911"]
    assert table.route("T") is None


@pytest.mark.spec("NS-18", "NS-19")
def test_last_address_of_name_removes_cluster_and_topics() -> None:
    table = RouteTable()
    table.register(registration(), 1, 0)
    table.register(registration(number=1, address="10.0.0.2:10911"), 2, 0)
    table.unregister("10.0.0.1:10911")
    route = table.route("T")
    assert route is not None and route.broker_datas[0].broker_addrs == {1: "10.0.0.2:10911"}
    table.unregister("10.0.0.2:10911")
    assert (table.topics, table.brokers, table.clusters, table.live) == ({}, {}, {}, {})


@pytest.mark.spec("NS-25")
def test_equal_version_query_refreshes_broker_liveness() -> None:
    table = RouteTable()
    assert table.version_changed("10.0.0.1:10911", DataVersion(1, 1), 0) == (True, None)
    table.register(registration(), 1, 0)
    assert table.version_changed("10.0.0.1:10911", DataVersion(1, 1), 100_000) == (False, DataVersion(1, 1))
    assert table.expired(130_000, 120_000) == []
    assert table.version_changed("10.0.0.1:10911", DataVersion(1, 2), 0) == (True, DataVersion(1, 1))


@pytest.mark.spec("NS-26")
def test_write_permission_is_wiped_and_restored_as_read_write() -> None:
    table = RouteTable()
    table.register(registration(of=topics("T", perm=7) | topics("U")), 1, 0)
    table.register(registration("broker-b", address="10.0.0.3:10911"), 2, 0)
    assert done(table.wipe_write_permission("broker-a")) == 2
    assert [table.topics[t]["broker-a"].perm for t in ("T", "U")] == [5, 4]
    assert table.topics["T"]["broker-b"].perm == 6
    assert done(table.add_write_permission("broker-a")) == 2
    assert [table.topics[t]["broker-a"].perm for t in ("T", "U")] == [6, 6]
    done(table.wipe_write_permission("broker-a"))
    table.register(registration(of=topics("T", "U")), 1, 1)
    assert table.topics["T"]["broker-a"].perm == 4, "not changed"
    table.register(registration(version=2, of=topics("T", "U")), 1, 1)
    assert table.topics["T"]["broker-a"].perm == 6
    done(table.wipe_write_permission("broker-a"))
    table.connection_closed(1)
    table.register(registration(version=2, of=topics("T", "U")), 3, 2)
    assert table.topics["T"]["broker-a"].perm == 6, "restarted, with the version that it had"


@pytest.mark.spec("NS-27")
def test_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    table = RouteTable()
    table.register(registration(of=topics("T", "U")), 1, 0)
    table.register(registration("broker-b", address="b:1", cluster="d", of=topics("T", "U")), 2, 0)
    table.delete_topic("T", "d")
    assert set(table.topics["T"]) == {"broker-a"}
    table.delete_topic("U")
    assert set(table.topics) == {"T"}
    table.delete_topic("absent")


@pytest.mark.spec("NS-28")
def test_route_table_lists_topics_and_clusters() -> None:
    table = RouteTable()
    table.register(registration(of=topics("T") | topics("U", flag=1) | topics("V", flag=2) | topics("W", flag=3)), 1, 0)
    assert sorted(done(table.topics_of_cluster("c"))) == ["T", "U", "V", "W"]
    assert done(table.topics_of_cluster("nowhere")) == []
    assert table.system_topics() == (["c", "broker-a"], "10.0.0.1:10911")
    assert done(table.unit_topics(1)) == ["U", "W"]
    assert done(table.unit_topics(2)) == ["V", "W"]
    assert done(table.unit_topics(2, without=1)) == ["V"]
    assert table.cluster_info().cluster_addr_table == {"c": ["broker-a"]}


@pytest.mark.spec("NS-20")
def test_route_requires_a_queue_and_a_broker() -> None:
    table = RouteTable()
    assert table.route("T") is None
    table.register(registration(of={}), 1, 0)
    assert table.route("T") is None
    table.queues["gone"] = TopicTable(topics("T"), "")
    assert table.route("T") is None, "there is no such broker"


STEP = st.tuples(
    st.sampled_from(["register", "close", "unregister", "expire"]),
    st.integers(0, 2),
    st.integers(0, 1),
    st.integers(0, 3),
)


@pytest.mark.spec("NS-14", "NS-19")
@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_route_tables_contain_only_data_of_live_brokers(steps: list[tuple[str, int, int, int]]) -> None:
    """Model: the set of live (name, id) pairs with their topics; every table must be derivable from it."""
    table = RouteTable()
    alive: dict[tuple[str, int], str] = {}
    connections: dict[str, object] = {f"b{n}-{i}:1": object() for n in range(3) for i in range(2)}
    for now, (kind, which, number, version) in enumerate(steps):
        name = f"b{which}"
        address = f"{name}-{number}:1"
        if kind == "register":
            table.register(
                registration(name, number, address, version=version, of=topics("T", name)), connections[address], now
            )
            alive[(name, number)] = address
        elif kind == "close":
            table.connection_closed(connections[address])
            alive.pop((name, number), None)
        elif kind == "unregister":
            table.unregister(address)
            alive.pop((name, number), None)
        else:
            table.expired(now + 10**6, 10)
            alive.clear()
        names = {key[0] for key in alive}
        assert set(table.live) == set(alive.values())
        assert set(table.brokers) == names
        assert {n for members in table.clusters.values() for n in members} == names
        assert all(table.clusters.values()) and all(table.topics.values())
        assert {n for queues in table.topics.values() for n in queues} <= names
