"""Keys of the network layer and of the NameServer: each is read, or marked as without effect and warned about."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import saturnmq
from loglines import own_messages
from saturnmq.config.settings import keys_of, load, without_effect
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.net import NetSettings

SOURCE = Path(saturnmq.__file__).parent
WITHOUT_EFFECT = [
    (NetSettings, "serverWorkerThreads", "8", "16"),
    (NetSettings, "serverCallbackExecutorThreads", "0", "4"),
    (NetSettings, "serverSelectorThreads", "3", "1"),
    (NetSettings, "serverPooledByteBufAllocatorEnable", "true", "false"),
    (NetSettings, "useEpollNativeSelector", "false", "true"),
    (NetSettings, "clientWorkerThreads", "4", "8"),
    (NetSettings, "clientCallbackExecutorThreads", str(os.cpu_count() or 1), "99"),
    (NetSettings, "channelNotActiveInterval", "60000", "1000"),
    (NetSettings, "clientPooledByteBufAllocatorEnable", "false", "true"),
    (NameServerSettings, "productEnvName", "center", "east"),
    (NameServerSettings, "clusterTest", "false", "true"),
]


@pytest.mark.spec("NS-03", "NS-04")
@pytest.mark.parametrize(("cls", "name", "usual", "other"), WITHOUT_EFFECT, ids=[row[1] for row in WITHOUT_EFFECT])
def test_key_without_effect_is_warned_about(cls: type[Any], name: str, usual: str, other: str) -> None:
    assert without_effect(load(cls, ("file", {name: usual})).settings) == []
    loaded = load(cls, ("file", {name: other}))
    assert loaded.unknown_keys == {}
    (text,) = without_effect(loaded.settings)
    assert text.startswith(f"{name}={other} has no effect: ")


@pytest.mark.parametrize("cls", [NetSettings, NameServerSettings])
def test_key_that_nothing_reads_is_marked(cls: type[Any]) -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    read = set(re.findall(r"\.(\w+)", text))
    unread = {java for java, (attribute, _) in keys_of(cls).items() if attribute not in read}
    marked = {java for java, (_, meta) in keys_of(cls).items() if meta.no_effect}
    assert unread == marked == {name for owner, name, _, _ in WITHOUT_EFFECT if owner is cls}


def test_defaults_cause_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    for cls in (NetSettings, NameServerSettings):
        load(cls, ("file", {}))
    assert not own_messages(caplog)
