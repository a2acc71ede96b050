"""Apache RocketMQ keys that have no effect in this version are warned about."""

from __future__ import annotations

from typing import Any

import pytest

from saturnmq.config.settings import load, without_effect
from saturnmq.net import NetSettings


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
