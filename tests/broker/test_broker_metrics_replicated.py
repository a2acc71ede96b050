"""Metrics of brokers with slaves and of the members of a DLedger group."""

from __future__ import annotations

from pathlib import Path

import brokerpair
import pytest
from brokergroup import LedgerGroup

from metricstext import families, values
from saturnmq.broker import Broker
from waiting import until


def scrape(broker: Broker) -> str:
    return b"".join(broker.metrics.pieces()).decode()


@pytest.mark.spec("INT-11")
async def test_a_group_shows_its_term_followers_and_replication_times(ledger_group: LedgerGroup) -> None:
    for number in range(3):
        await ledger_group.send(b"%d" % number)
    leader = await ledger_group.master()
    await ledger_group.until(lambda: all(b.store.max_offset("T", 0) == 3 for b in ledger_group.followers()), "behind")
    await ledger_group.until(
        lambda: set(values(scrape(leader), "rocketmq_broker_commitlog_diff").values()) == {0}, "behind"
    )
    text, follower = scrape(leader), scrape(ledger_group.followers()[0])
    term = ledger_group.member(ledger_group.name_of(leader)).status().term
    assert set(values(text, "saturnmq_raft_term").values()) == {term}
    # Three messages, and the leader's own entry at the beginning of its term if nothing came in time.
    assert min(values(text, "saturnmq_replication_seconds_count").values()) >= 3
    assert next(iter(values(text, "saturnmq_fsync_seconds_count").values())) > 0
    assert len(values(text, "saturnmq_replica_behind_bytes")) == 2
    assert set(values(text, "saturnmq_master").values()) == {1}
    assert set(values(follower, "saturnmq_master").values()) == {0}
    assert set(values(follower, "saturnmq_raft_term").values()) == {term}
    assert not [f for f in families(follower).values() if f.name.startswith("rocketmq_") and f.samples]


async def test_a_master_shows_how_far_its_slaves_are_behind(tmp_path: Path) -> None:
    async with brokerpair.pair(tmp_path, broker_role="SYNC_MASTER") as both:
        master = both.master.ha_master
        assert master is not None
        await until(lambda: master.acks.slaves)
        await both.send(both.master)
        await both.replicated()
        await until(lambda: master.behind() == [("127.0.0.1", 0)])
        text, slave = scrape(both.master), scrape(both.slave)
        labels = (("broker", "broker-a"), ("brokerIP", "127.0.0.1"), ("cluster", "DefaultCluster"))
        assert values(text, "rocketmq_broker_commitlog_diff") == {labels: 0}
        assert set(values(text, "saturnmq_replication_seconds_count").values()) == {1}
        assert set(values(slave, "saturnmq_master").values()) == {0}
        assert "saturnmq_replication_seconds" not in families(slave)
