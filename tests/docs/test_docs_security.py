"""SECURITY.md names a regression file for each published vulnerability, and docs/security.md names keys that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from saturnmq.broker import BrokerSettings
from saturnmq.config.settings import keys_of
from saturnmq.namesrv import NameServerSettings
from saturnmq.net import TlsSettings
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.masterslave.settings import HaSettings

ROOT = Path(__file__).resolve().parents[2]
POLICY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
MODEL = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
SPEC = (ROOT / "docs" / "spec" / "07-reliability-security.md").read_text(encoding="utf-8")
SETTINGS = (BrokerSettings, NameServerSettings, TlsSettings, RaftSettings, HaSettings)
KEYS = {key for cls in SETTINGS for key in keys_of(cls)}
ROWS = re.findall(r"^\| (CVE-[\d-]+|fastjson family) .*`(tests/[^`]+)` \|$", POLICY, re.M)
KEY = re.compile(r"`([a-z][A-Za-z.]*[A-Z.][A-Za-z.]*)(?:=[a-z]+)?`")
NOT_KEYS = {"saturnmq.audit", "dLegerPeers", "defaultTopicPerm"}


@pytest.mark.spec("SEC-23")
def test_each_published_vulnerability_has_a_regression_file() -> None:
    published = set(re.findall(r"^\| SEC-0\d \| (\d{4}-\d+)", SPEC, re.M))
    assert published
    assert {name.removeprefix("CVE-") for name, _ in ROWS if name.startswith("CVE-")} == published
    for name, path in ROWS:
        assert "pytest.mark.spec(" in (ROOT / path).read_text(encoding="utf-8"), name


def test_keys_of_the_threat_model_exist() -> None:
    named = set(KEY.findall(MODEL)) - NOT_KEYS
    assert len(named) > 10
    assert named <= KEYS, sorted(named - KEYS)
