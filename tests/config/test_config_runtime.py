"""Keys that may change while a server runs, and the configuration file that keeps them."""

from __future__ import annotations

import pytest

from saturnmq.broker import BrokerSettings
from saturnmq.broker.configuration import black_list
from saturnmq.config.runtime import FixedKey, RuntimeSettings, edited
from saturnmq.config.settings import MASK, keys_of, parse_properties
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.net import NetSettings
from saturnmq.protocol.errors import ConfigError
from saturnmq.store import FlushDiskType, StoreSettings


def test_changes_are_applied_to_the_settings_that_readers_have() -> None:
    broker, store = BrokerSettings(), StoreSettings()
    settings = RuntimeSettings(broker, store)
    pairs = {
        "brokerPermission": " 4 ",
        "fileReservedTime": "48",
        "flushDiskType": "SYNC_FLUSH",
        "brokerName": "broker-a",
    }
    changes = settings.parse(pairs, {})
    assert (broker.broker_permission, store.file_reserved_hours) == (6, 72), "nothing changes before apply"
    assert [(c.name, c.before, c.after) for c in changes] == [
        ("brokerPermission", "6", "4"), ("fileReservedTime", "72", "48"), ("flushDiskType", "ASYNC_FLUSH", "SYNC_FLUSH"),
    ]  # fmt: skip
    settings.apply(changes)
    assert (broker.broker_permission, store.file_reserved_hours) == (4, 48)
    assert store.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert settings.parse({"brokerPermission": "4"}, {}) == []


@pytest.mark.spec("SEC-03", "ACL-01")
@pytest.mark.parametrize(
    "name",
    ["rocketmqHome", "filterServerNums", "configStorePath", "storePathRootDir", "namesrvAccessKey", "aclEnable", "x"],
)
def test_keys_that_are_not_listed_are_refused_with_the_list(name: str) -> None:
    settings = RuntimeSettings(BrokerSettings(), StoreSettings())
    with pytest.raises(
        FixedKey, match=rf"{name} cannot change .* Keys that can: autoCreateTopicEnable, .*brokerPermission,"
    ):
        settings.parse({name: "/tmp/evil", "brokerPermission": "4"}, {name: "before"})
    assert settings.parse({name: MASK}, {name: MASK}) == [], "a masked value as shown is no change"


@pytest.mark.spec("SEC-03")
def test_no_key_that_may_change_is_a_path() -> None:
    texts = {
        name
        for settings in (BrokerSettings(), StoreSettings(), NameServerSettings(), NetSettings())
        for name, (attribute, meta) in keys_of(type(settings)).items()
        if meta.runtime and isinstance(getattr(settings, attribute), str)
    }
    assert texts == {"namesrvAddr", "deleteWhen", "logLevel"}, "all others are numbers, switches and choices"


def test_refusals_of_many_and_long_keys_are_short() -> None:
    settings = RuntimeSettings(BrokerSettings())
    with pytest.raises(FixedKey, match="and 990 more cannot change") as caught:
        settings.parse({f"k{number}" * 50: "v" for number in range(1000)}, {})
    assert len(caught.value.message) < 3000
    with pytest.raises(ConfigError) as invalid:
        settings.parse({"brokerPermission": "9" * 50_000}, {})
    assert len(invalid.value.message) < 500


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("brokerPermission", "16", "must be in 0..15"),
        ("brokerPermission", "9" * 5000, "brokerPermission"),
        ("fileReservedTime", "-1", "0.."),
        ("deleteWhen", "25", "hour from 00 to 23"),
        ("logLevel", "LOUD", "one of"),
        ("maxMessageSize", "1 potato", "64MiB"),
    ],
)
def test_invalid_values_are_refused_with_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=allowed):
        RuntimeSettings(BrokerSettings(), StoreSettings()).parse({name: value}, {})


@pytest.mark.spec("SEC-03")
@pytest.mark.parametrize(
    "value",
    [
        "/tmp/evil", "127.0.0.1:9876/tmp/evil", "127.0.0.1:9876;/etc/passwd:1", "$(touch /tmp/evil):9876", "127.0.0.1:9876 -x",
        "h", "h:", ":1", "h:0", "h:65536", "h:1:2", "h:x", "h:1;touch x", "a:1;b", "http://h:1", "k:s@h:1", "h\x00:1", "[::1",
        "[::1]", ";".join(f"h{number}:1" for number in range(65)),
    ],
)  # fmt: skip
def test_name_servers_are_a_list_of_host_and_port(value: str) -> None:
    settings = RuntimeSettings(BrokerSettings(namesrv_addr="h:9876"))
    with pytest.raises(ConfigError, match="namesrvAddr must be host:port;host:port") as caught:
        settings.parse({"namesrvAddr": value, "brokerPermission": "4"}, {})
    assert not isinstance(caught.value, FixedKey) and len(caught.value.message) < 500
    for valid in (
        "h:1",
        "a-b.c_d:1;127.0.0.1:65535",
        "[::1]:9876",
        "[fe80::1%eth0]:9876,h:1",
        "b\u00fccher.example:9876",
    ):
        assert [change.after for change in settings.parse({"namesrvAddr": valid}, {})] == [valid]


def test_required_key_cannot_become_empty_at_run_time() -> None:
    settings = RuntimeSettings(BrokerSettings(namesrv_addr="h:9876"), required=frozenset({"namesrvAddr"}))
    with pytest.raises(ConfigError, match="namesrvAddr='': cannot become empty while the server runs"):
        settings.parse({"namesrvAddr": " "}, {})
    assert settings.differing_values([BrokerSettings(broker_permission=4)]) == {"brokerPermission": "4"}, (
        "left out of a reload"
    )
    assert settings.differing_values([BrokerSettings(namesrv_addr="i:1")]) == {"namesrvAddr": "i:1"}


def test_flush_disk_type_changes_to_sync_flush_only() -> None:
    settings = RuntimeSettings(StoreSettings(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    with pytest.raises(ConfigError, match="can only become SYNC_FLUSH"):
        settings.parse({"flushDiskType": "ASYNC_FLUSH"}, {})
    fixed = RuntimeSettings(StoreSettings(), fixed={"flushDiskType": "a member"})
    with pytest.raises(FixedKey, match=r"flushDiskType cannot change at run time \(a member\)"):
        fixed.parse({"flushDiskType": "SYNC_FLUSH"}, {})


def test_wanted_values_are_those_that_can_change_and_differ() -> None:
    broker, store = BrokerSettings(), StoreSettings(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    settings = RuntimeSettings(broker, store, black_list={"logLevel": "listed"})
    read = [
        BrokerSettings(broker_permission=4, broker_name="other", log_level="DEBUG"),
        StoreSettings(flush_disk_type=FlushDiskType.ASYNC_FLUSH, file_reserved_hours=1),
        NameServerSettings(topics_max=7),
    ]
    assert settings.differing_values(read) == {"brokerPermission": "4", "fileReservedTime": "1", "logLevel": "DEBUG"}
    assert settings.differing_values([broker, store]) == {}
    assert len(settings.parse_reloaded(read)) == 3, "the black list is for requests"


@pytest.mark.spec("ADM-13")
def test_keys_of_the_black_list_may_not_even_be_named() -> None:
    assert BrokerSettings().config_black_list == "configBlackList;brokerConfigPath"
    broker = BrokerSettings(config_black_list="brokerPermission;logLevel")
    settings = RuntimeSettings(broker, black_list=black_list(broker))
    assert "brokerPermission" not in settings.names
    for name in ("brokerConfigPath", "rocketmqHome", "configBlackList"):
        with pytest.raises(FixedKey, match=f"{name}: it never changes at run time; set it in the configuration file"):
            settings.parse({name: "", "sendThreadPoolQueueCapacity": "7"}, {name: ""})
    with pytest.raises(FixedKey, match="brokerPermission: it is listed in configBlackList; remove it there"):
        settings.parse({"brokerPermission": "6"}, {})
    assert [change.name for change in settings.parse({"sendThreadPoolQueueCapacity": "7"}, {})] == [
        "sendThreadPoolQueueCapacity"
    ]


def test_edited_file_keeps_comments_and_other_lines() -> None:
    text = "# brokerPermission=1\n\n! note\nbrokerName = a\\\n  b\nbrokerPermission:6\nlong=1,\\\n  2\nbrokerPermission 5\nlast=x"
    after = edited(text, {"brokerPermission": "4", "long": "3", "deleteWhen": "05"})
    assert after == (
        "# brokerPermission=1\n\n! note\nbrokerName = a\\\n  b\nbrokerPermission=4\nlong=3\nlast=x\ndeleteWhen=05\n"
    )
    assert parse_properties(after) == {
        "brokerName": "ab", "brokerPermission": "4", "long": "3", "last": "x", "deleteWhen": "05",
    }  # fmt: skip
    assert edited("", {"a": "1"}) == "a=1\n"


def test_unknown_key_is_refused_with_the_nearest() -> None:
    settings = RuntimeSettings(BrokerSettings(), StoreSettings())
    with pytest.raises(
        FixedKey, match=r"fileReservedTme cannot change at run time \(did you mean fileReservedTime\?\)"
    ):
        settings.parse({"fileReservedTme": "1"}, {})
    with pytest.raises(FixedKey, match="xyzzy cannot change at run time; nothing was changed"):
        settings.parse({"xyzzy": "1"}, {})
