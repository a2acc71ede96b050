"""Keys without effect do not change how settings are constructed."""

from __future__ import annotations

from saturnmq.broker import BrokerSettings
from saturnmq.store import StoreSettings


def test_first_argument_of_settings_is_their_own_first_field() -> None:
    assert StoreSettings("data").store_path_root_dir == "data"
    assert BrokerSettings("Cluster", "broker-b").broker_name == "broker-b"
