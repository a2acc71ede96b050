"""Names that users set, and that stores and members of other versions hold: a change of one is silent and breaks them."""

from __future__ import annotations

import pytest

from saturnmq.acl.plain import ENTRY_POINTS
from saturnmq.admin.mail import PASSWORD_VARIABLE
from saturnmq.metrics.text import CONTENT_TYPE
from saturnmq.raft.cluster_secret import FIELD
from saturnmq.raft.ledger.member_entries import MEMBERS_TOPIC
from saturnmq.raft.wire.push import OFFER


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (ENTRY_POINTS, "saturnmq.access_validators"),
        (PASSWORD_VARIABLE, "SATURNMQ_MAIL_PASSWORD"),
        (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8"),
        (FIELD, "saturnmqMac"),
        (MEMBERS_TOPIC, "rmq_sys_SATURNMQ_MEMBERS"),
        (OFFER, "saturnmqPush"),
    ],
)
def test_names_known_outside_of_this_version_are_kept(name: str, text: str) -> None:
    assert name == text
