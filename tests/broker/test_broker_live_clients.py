"""The registry of live clients: units of subscriptions, each limit, and what is left of clients that leave."""

from __future__ import annotations

from typing import Any, cast

import pytest

from saturnmq.broker.state import clients as registry
from saturnmq.broker.state.clients import ClientInfo, Clients, ConsumerGroup, units, version_ms
from saturnmq.net import Connection
from saturnmq.protocol.bodies import ConsumerData, ConsumerIdList, SubscriptionData


class Peer:
    """A connection as the registry sees it: an identity with an address."""

    closed = False

    def __init__(self, host: str = "") -> None:
        self.remote_address = f"{host}:1"


def peer(host: str = "") -> Connection:
    return cast(Connection, Peer(host))


def info(client_id: str = "c", now_ms: int = 0, host: str = "") -> ClientInfo:
    return ClientInfo(client_id, 0, 407, now_ms, (host, None))


def consumer(group: str, *subscriptions: SubscriptionData) -> ConsumerData:
    return ConsumerData(group, subscription_data_set=list(subscriptions))


def subscription(topic: str, text: str = "*", version: int = 1, **more: Any) -> SubscriptionData:
    return SubscriptionData(topic, text, sub_version=version, **more)


@pytest.mark.parametrize(
    ("text", "more", "count"),
    [
        ("*", {}, 1),
        ("x" * 1023, {}, 1),
        ("x" * 1024, {}, 2),
        ("x" * 3072, {}, 4),
        ("", {"tags_set": ["t" * 1015]}, 1),
        ("", {"tags_set": ["t" * 1016]}, 2),  # and 8 bytes for its code
        ("x" * 500, {"tags_set": ["t" * 516]}, 2),
        ("", {"code_set": [1] * 127}, 1),
        ("", {"code_set": [1] * 128}, 2),
    ],
)
def test_units_of_a_subscription_grow_with_its_text_and_codes(text: str, more: dict[str, Any], count: int) -> None:
    assert units([subscription("T", text, **more)]) == count
    assert units([subscription("T", text, **more), subscription("U")]) == count + 1


def test_versions_in_nanoseconds_become_ms() -> None:
    assert version_ms(10**17 - 1) == 10**17 - 1
    assert version_ms(10**17) == 10**11
    assert version_ms(1_700_000_000_000_000_001) == 1_700_000_000_000


def test_ids_of_a_group_are_encoded_once_until_its_members_change() -> None:
    live, first, second = Clients(), peer(), peer()
    live.register_consumer(consumer("G", subscription("T")), first, info("a"))
    group = live.consumers["G"]
    encoded = group.encoded_ids()
    assert encoded is not None and ConsumerIdList.decode(encoded).consumer_id_list == ["a"]
    live.register_consumer(consumer("G", subscription("T", "x", 2)), first, info("a"))
    assert group.encoded_ids() is encoded, "a new subscription is no new member"
    live.register_consumer(consumer("G", subscription("T")), second, info("b"))
    assert ConsumerIdList.decode(group.encoded_ids() or b"").consumer_id_list == ["a", "b"]
    live.register_consumer(consumer("G", subscription("T")), second, info("c"))
    assert ConsumerIdList.decode(group.encoded_ids() or b"").consumer_id_list == ["a", "c"]
    live.unregister(first, None, "G")
    assert ConsumerIdList.decode(group.encoded_ids() or b"").consumer_id_list == ["c"]
    assert ConsumerGroup("empty").encoded_ids() is None


def test_newest_subscription_of_a_topic_is_the_groups() -> None:
    live, first, second = Clients(), peer(), peer()
    changes: list[str] = []
    live.changed.subscribe(lambda group: changes.append(group.name))

    def beat(connection: Connection, *subscriptions: SubscriptionData) -> dict[str, str]:
        live.register_consumer(consumer("G", *subscriptions), connection, info(str(id(connection))))
        return {topic: data.sub_string for topic, data in live.consumers["G"].subscriptions.items()}

    assert beat(first, subscription("T", "old", 5), subscription("T", "twice", 4)) == {"T": "old"}
    assert beat(second, subscription("T", "equal", 5)) == {"T": "old"} and changes == ["G", "G"]
    assert beat(second, subscription("T", "newer", 6)) == {"T": "newer"} and changes == ["G", "G"]
    assert beat(second, subscription("T", "newer", 6), subscription("U", "u")) == {"T": "newer", "U": "u"}
    assert beat(first, subscription("T", "old", 5)) == {"T": "newer"}, "a topic that a member does not name is dropped"
    assert changes == ["G"] * 4


def test_each_limit_of_a_heartbeat_is_its_last_allowed_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "GROUPS_MAX", 6)
    names = [f"g{number}" for number in range(7)]
    live = Clients(100, client_subscriptions_max=4, subscriptions_max=10)
    assert live.problem(peer(), names[:3], [consumer(name) for name in names[3:6]]) is None
    assert "7 groups of one client, at most 6" in str(live.problem(peer(), names, []))
    connection, four = peer(), [subscription(f"t{number}") for number in range(4)]
    assert live.problem(connection, [], [consumer("G", *four)]) is None
    text = live.problem(connection, [], [consumer("G", *four), consumer("H", subscription("t"))])
    assert "5 subscriptions of one client, at most 4 are allowed (subscriptionsMaxPerClient)" in str(text)
    live.register_consumer(consumer("G", *four), connection, info())
    assert live.problem(connection, [], [consumer("G", *four[1:], subscription("other"))]) is None, (
        "it replaces its own"
    )
    assert "5 subscriptions" in str(live.problem(connection, [], [consumer("H", subscription("t"))]))
    live.register_consumer(consumer("G", *four), peer(), info("d"))
    assert live.problem(peer(), [], [consumer("G", *four[:2])]) is None
    assert "liveSubscriptionsMax" in str(live.problem(peer(), [], [consumer("G", *four[:3])])), "8 of 10 are in use"


def test_groups_online_are_limited_and_those_that_exist_are_free() -> None:
    live, connection = Clients(3), peer()
    for name in ("a", "b", "c"):
        assert live.problem(connection, [name], []) is None
        live.register_producer(name, connection, info())
    assert live.problem(peer(), ["a", "b"], []) is None
    assert "(liveGroupsMax)" in str(live.problem(peer(), ["d"], [])), "a fourth group of producers"
    assert live.problem(peer(), [], [consumer("a"), consumer("b"), consumer("c")]) is None, "consumers have their own"
    live.unregister(connection, "b", None)
    assert live.problem(peer(), ["d"], []) is None


def test_client_with_many_groups_waits_while_many_are_online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CROWDED_GROUPS_MAX", 2)
    live, names = Clients(10), [f"g{number}" for number in range(5)]
    assert live.problem(peer(), names, []) is None, "half of all"
    connection = peer()
    live.register_producer("other", connection, info())
    assert "5 groups of one client, at most 2 while more than half" in str(live.problem(peer(), names, []))
    for name in names:
        live.register_producer(name, connection, info())
    assert live.problem(peer(), names, []) is None, "none of them is new"
    assert live.problem(peer(), ["new", "g0"], []) is None, "two are few"
    assert live.problem(peer(), ["new", "g0", "g1"], []) is not None


def test_memberships_of_a_client_with_many_groups_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CROWDED_GROUPS_MAX", 1)
    live, member = Clients(2), peer()
    for name in ("a", "b"):
        live.register_producer(name, member, info())
        live.register_consumer(consumer(name), member, info())
    assert live.problem(peer(), ["a", "b"], [consumer("a"), consumer("b")]) is None, "8 of 4 x liveGroupsMax"
    another = peer()
    live.register_producer("a", another, info("x"))
    assert "memberships in groups" in str(live.problem(peer(), ["a", "b"], [consumer("a"), consumer("b")]))
    assert live.problem(member, ["a", "b"], [consumer("a"), consumer("b")]) is None, "it is a member already"
    live.unregister(another, "a", None)
    assert live.problem(peer(), ["a", "b"], [consumer("a"), consumer("b")]) is None


def test_only_new_memberships_of_a_client_count_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CROWDED_GROUPS_MAX", 1)
    live, first, member = Clients(2), peer(), peer()
    for name in ("a", "b"):
        live.register_producer(name, first, info())
        live.register_consumer(consumer(name), first, info())
        live.register_consumer(consumer(name), member, info("x"))
    live.register_producer("a", member, info("x"))
    both = ["a", "b"], [consumer("a"), consumer("b")]
    assert live.problem(member, *both) is None, "one more, the last of 4 x liveGroupsMax"
    live.register_producer("a", peer(), info("y"))
    assert "memberships in groups" in str(live.problem(member, *both))


@pytest.mark.spec("HB-06")
def test_client_expires_after_the_expiry_in_any_of_its_groups() -> None:
    live, producer, member, both = Clients(), peer(), peer(), peer()
    live.register_producer("P", producer, info("p", 1000))
    live.register_consumer(consumer("G"), member, info("c", 2000))
    live.register_producer("P", both, info("b", 9000))
    live.register_consumer(consumer("G"), both, info("b", 3000))
    for now_ms, expected in (
        (2000, set()), (2001, {producer}), (3000, {producer}), (3001, {producer, member}), (4001, {producer, member, both}),
    ):  # fmt: skip
        steps = live.expired(now_ms, 1000)
        with pytest.raises(StopIteration) as done:
            for _ in range(5):
                next(steps)
        assert done.value.value == expected, now_ms


@pytest.mark.spec("HB-07")
def test_nothing_is_left_of_clients_that_leave() -> None:
    live = Clients()
    offline: list[str] = []
    live.offline.subscribe(offline.append)
    peers = [peer(f"192.0.2.{number}") for number in range(3)]
    for number, connection in enumerate(peers):
        for name in ("A", "B"):
            owner = info(f"c{number}", host=f"192.0.2.{number}")
            live.register_producer(name, connection, owner)
            live.register_consumer(consumer(name, subscription("T", "x" * 2000 * number)), connection, owner)
    live.unregister(peers[0], "A", None)
    live.unregister(peers[0], None, "A")
    live.unregister(peers[0], "absent", "absent")
    assert live.producer_of_id("c0") is peers[0], "still a producer of B"
    live.unregister(peers[0], "B", "B")
    assert live.producer_of_id("c0") is None and offline == []
    live.connection_closed(peers[1])
    assert len(list(live.leaving(peers[2]))) == 4, "a step for each group"
    assert sorted(offline) == ["A", "B"]
    assert live.producers == live.consumers == {}
    for name, value in vars(live).items():
        if name.startswith("_") and isinstance(value, dict):
            assert value == {}, name
    shares = [live._units, live._memberships, *live._created]
    assert [(each.total, each._of) for each in shares] == [(0, {})] * 4
