"""Apache RocketMQ keys that this version does not support: rejected if data would be missing, otherwise warned about."""

from __future__ import annotations

from typing import Any

import pytest

from saturnmq.config.settings import load, without_effect
from saturnmq.net import NetSettings
from saturnmq.protocol.errors import ConfigError
from saturnmq.store import StoreSettings


@pytest.mark.spec("ST-20", "UX-05")
def test_read_only_commit_log_paths_are_rejected() -> None:
    with pytest.raises(
        ConfigError, match=r"readOnlyCommitLogStorePaths=/old,/older: .* would be missing; move the files"
    ):
        load(StoreSettings, ("file", {"readOnlyCommitLogStorePaths": "/old,/older"}))
    assert load(StoreSettings, ("file", {"readOnlyCommitLogStorePaths": ""})).unknown_keys == {}


@pytest.mark.spec("UX-05")
@pytest.mark.parametrize(
    ("settings", "name", "usual", "other"),
    [
        (NetSettings, "serverWorkerThreads", "8", "16"),
        (NetSettings, "useEpollNativeSelector", "false", "true"),
    ],
)
def test_key_without_effect_is_warned_about(settings: type[Any], name: str, usual: str, other: str) -> None:
    assert without_effect(load(settings, ("file", {name: usual})).settings) == []
    (text,) = without_effect(load(settings, ("file", {name: other})).settings)
    assert text.partition(":")[0] == f"{name}={other} has no effect"
